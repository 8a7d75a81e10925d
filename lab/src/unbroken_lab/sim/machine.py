"""A simulated machine: a disk that survives, a clock that is wrong, and the process of a node with its protocol object.

The process is the shell around :class:`NodeProtocol`, like ``node/node.py`` around the real one: one queue of
events, one handler after the other, every instruction carried out in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unbroken.errors import broken
from unbroken.protocol.events import Event, LinkUp, Started, Tick
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.ids import NodeId
from unbroken_lab.sim.carrying import Carrying
from unbroken_lab.sim.coordination import StoreClient
from unbroken_lab.sim.disk import Disk
from unbroken_lab.sim.hosting import Hosting
from unbroken_lab.sim.orders import Orders

if TYPE_CHECKING:
    from unbroken_lab.sim.world import World

MOST_AT_ONCE = 100_000
"""Events that one node may handle without time passing: more means that it goes round in circles."""

TICK = Tick()


@dataclass
class Machine:
    """What outlives the process of a node. Its clocks run ``drift`` times as fast as they should and began anywhere;
    ``slowness`` is how many times longer its queries take."""

    name: NodeId
    disk: Disk
    drift: float = 1.0
    began_ms: float = 0.0
    skew_ms: float = 0.0
    slowness: float = 1.0
    process: NodeProcess | None = None
    lost: bool = False


class NodeProcess:
    """A node's process: its protocol object and the effects around it."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world = world
        self.machine = machine
        self.name = machine.name
        self.disk = machine.disk
        self.network = world.network
        self.alive = True
        self.frozen = False
        self.begun = False
        self.protocol: NodeProtocol | None = None
        self.told_layout = 0
        self.random = world.kernel.random(f"node {machine.name}")
        self.client = StoreClient(self, world.zookeeper)
        self.orders = Orders(self)
        self.hosting = Hosting(self)
        self.carrying = Carrying(self)
        self.running = 0
        self.cold = False
        self.fuse: int | None = None
        self._queue: deque[tuple[Event, Any]] = deque()
        self._handling = False
        self._stalled: list[tuple[Callable[[Any], None], Any]] = []
        self._wake_ms = float("inf")
        self._asked_ms = 0.0
        self._seen_ms = 0.0

    # --- life -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take the layout's place with what the disk holds, and link to the other nodes."""
        store, world = self.world.zookeeper, self.world
        layout, sync = store.layout, store.sync
        placed = layout.hosted(self.name) if layout.nodes.get(self.name) == self.disk.identity else []
        for replica in [replica for replica in self.disk.replicas if replica not in placed]:
            self.hosting.remove(replica)
        recovered = {replica: held.recover(replica) for replica, held in self.disk.replicas.items()}
        world.noted_interruption(self.disk)
        self.told_layout = layout.version
        self.protocol = NodeProtocol(
            self.name, world.topology, layout, sync, recovered, world.settings, self.disk.identity
        )
        self.begun = True
        self._queue.appendleft((LinkUp(self.name), None))
        self._queue.appendleft((Started(), None))
        world.joined(self)
        self.drain()
        if world.settings.snapshots and self.alive:
            world.snapshots.begin(self)

    def end(self, *, silently: bool) -> None:
        """kill -9, or the power goes (``silently``): only the disk is left."""
        self.alive = False
        self.hosting.end()
        self.network.ended(self.name, silently=silently)
        self.client.touch()

    def freeze(self) -> None:
        self.frozen = True
        self.network.froze(self.name)
        self.client.touch()

    def thaw(self) -> None:
        """Go on: first what has come meanwhile, then what should have been done."""
        self.frozen = False
        self.client.touch()
        self._queue.append((TICK, None))
        self.drain()
        stalled, self._stalled = self._stalled, []
        for action, argument in stalled:
            if self.alive:
                action(argument)
        self.network.thawed(self.name)

    def clock_ms(self) -> float:
        """What the protocol is told the time is: never back, and nobody else's time."""
        now = self.machine.began_ms + self.world.kernel.now_ms * self.machine.drift
        self._seen_ms = max(now, self._seen_ms)
        return self._seen_ms

    def wall_ms(self) -> float:
        return self.world.kernel.now_ms * self.machine.drift + self.machine.skew_ms

    def later(self, delay_ms: float, action: Callable[[Any], None], argument: Any = None) -> None:
        """Do something after a while, unless the process has ended; a frozen one does it when it goes on."""
        self.world.kernel.after(delay_ms, self._due, (action, argument))

    def _due(self, what: tuple[Callable[[Any], None], Any]) -> None:
        if self.frozen:
            self._stalled.append(what)
        elif self.alive:
            what[0](what[1])

    # --- the loop -------------------------------------------------------------------------------------

    def post(self, event: Event, payload: Any = None) -> None:
        self._queue.append((event, payload))
        if not self._handling and not self.frozen and self.begun:
            self.drain()

    def queue(self, event: Event, payload: Any = None) -> None:
        """For an event that follows from the one that is being handled."""
        self._queue.append((event, payload))

    def drain(self) -> None:
        """Handle everything that waits."""
        if self._handling or self.frozen or not self.begun or not self.alive:
            return
        protocol, queue, world, carry = self.protocol, self._queue, self.world, self.carrying.table
        assert protocol is not None
        self._handling = True
        handled = 0
        try:
            while queue:
                event, payload = queue.popleft()
                handled += 1
                world.handled(self.name, event)
                steps = protocol.handle(event, self.clock_ms())
                if self.fuse is not None:
                    steps = self._burn(self.fuse, steps)
                for step in steps:
                    if world.story is not None:
                        world.story.step(world.kernel.now_ms, self.name, step)
                    carry[type(step)](step, payload)
                if self.fuse == 0:
                    self._tear(event)
                    return
                if world.check_every and not world.count % world.check_every:
                    protocol.check()
                if handled >= MOST_AT_ONCE:
                    broken(f"{self.name} goes round in circles: {event}")
        finally:
            self._handling = False
        self._plan_wake(protocol)

    def _burn(self, fuse: int, steps: list[Instruction]) -> list[Instruction]:
        """What is carried out of an event's instructions: all, or those before the place at which the fuse is burnt.

        It is as long as so many places between two instructions of one event, so the process never ends where one event
        is done and the next is not begun: a kill at any moment does that.
        """
        places = len(steps) - 1
        if places < fuse:
            self.fuse = fuse - max(places, 0)
            return steps
        self.fuse = 0
        return steps[:fuse]

    def _tear(self, event: Event) -> None:
        """The process is killed with a part of an event's instructions carried out."""
        self.world.counts["torn"] += 1
        self.world.kernel.note("torn", self.name)
        if self.world.story is not None:
            self.world.story.sentence(self.world.kernel.now_ms, f"{self.name} is killed within {type(event).__name__}")
        self._queue.clear()
        self.end(silently=False)

    def _plan_wake(self, protocol: NodeProtocol) -> None:
        wake = protocol.next_wake_ms()
        if wake is None or (wake == self._asked_ms and self._wake_ms > self.world.kernel.now_ms):
            return
        self._asked_ms = wake
        if wake <= self._seen_ms:
            broken(f"{self.name} wants to wake at {wake}, it is {self._seen_ms}")
        at = (wake - self.machine.began_ms) / self.machine.drift
        now = self.world.kernel.now_ms
        if self._wake_ms <= now or at < self._wake_ms - 1e-9:
            self._wake_ms = max(at, now)
            self.world.kernel.at(self._wake_ms, self._wake, wake)

    def _wake(self, wake: float) -> None:
        if not self.alive or self.world.kernel.now_ms < self._wake_ms - 1e-9:
            return
        self._wake_ms, self._asked_ms = float("inf"), 0.0
        if not self.frozen:
            # The clock is rounded in both directions: what was asked for has come.
            self._seen_ms = max(self._seen_ms, wake)
            self._queue.append((TICK, None))
            self.drain()
