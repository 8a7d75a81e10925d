"""A simulated machine: a disk that survives, a clock that is wrong, and the process of a node with its protocol object.

The process is the shell around :class:`NodeProtocol`, like ``node/node.py`` around the real one: one queue of
events, one handler after the other, every instruction carried out in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unbroken.errors import broken
from unbroken.node.loop import Loop
from unbroken.node.replicas.hosting import ReplicaHost
from unbroken.node.replicas.queries import Queries
from unbroken.node.replicas.transfers import Transfers
from unbroken.protocol.effects import carry_out
from unbroken.protocol.events import Event, LinkUp, Started, Tick
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.notices.ingress import IngressDiskFailed
from unbroken_lab.sim import policies
from unbroken_lab.sim.content import Content
from unbroken_lab.sim.coordination import StoreClient
from unbroken_lab.sim.directories import SimulatedDirectories
from unbroken_lab.sim.disk import Disk
from unbroken_lab.sim.effects import SimulatedEffects
from unbroken_lab.sim.engine import SimulatedEngine
from unbroken_lab.sim.files import Interrupted
from unbroken_lab.sim.hosting import SimulatedHost
from unbroken_lab.sim.sources import source_streams
from unbroken_lab.sim.transfers import SimulatedCopier, SimulatedPinner
from unbroken_lab.sim.workers import VirtualWorker

if TYPE_CHECKING:
    from unbroken_lab.sim.world import World

MOST_AT_ONCE = 100_000
"""Events that one node may handle without time passing: more means that it goes round in circles."""

SUPERVISED_MS = 1_000.0
"""After which time a supervisor starts a node that has ended by itself."""

TICK = Tick()


@dataclass
class Machine:
    """What outlives the process of a node. Its clocks run ``drift`` times as fast as they should and began anywhere;
    ``slowness`` is how many times longer its queries take, ``disk_slowness`` what is forced to its disk."""

    name: NodeId
    disk: Disk
    drift: float = 1.0
    began_ms: float = 0.0
    skew_ms: float = 0.0
    slowness: float = 1.0
    disk_slowness: float = 1.0
    process: NodeProcess | None = None
    lost: bool = False


class SimulatedLoop(Loop[Content | None]):
    """The loop of a node on virtual time; a story has every step of it."""

    def __init__(self, process: NodeProcess, protocol: NodeProtocol) -> None:
        super().__init__(protocol, process.effects, process.clock_ms)
        self._name = process.name
        self._world = process.world

    def carry_out(self, steps: Sequence[Instruction], rows: Content | None) -> None:
        story, kernel = self._world.story, self._world.kernel
        for step in steps:
            if story is not None:
                story.step(kernel.now_ms, self._name, step)
            carry_out(self.effects, step, rows)


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
        self.use(world.zookeeper.layout)
        self.random = world.kernel.random(f"node {machine.name}")
        self.client = StoreClient(self, world.zookeeper)
        self.dirs = SimulatedDirectories(self)
        self.engine = SimulatedEngine(self)
        self.hosting = ReplicaHost(SimulatedHost(self))
        self.hosting.queries = Queries(self.engine, self.post, lambda: world.kernel.now_ms / 1000)
        self.notes = VirtualWorker(self, lambda: world.costs.force_ms * machine.disk_slowness)
        self.transfers = Transfers(SimulatedPinner(self), SimulatedCopier(self), self.notes, self.post, self.post)
        self.policies = policies.build(self)
        self.effects = SimulatedEffects(self)
        self.loop: SimulatedLoop | None = None
        self.running = 0
        self.cold = False
        self.fuse: int | None = None
        self._queue: deque[tuple[Event, Content | None]] = deque()
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
        try:
            recovered = self.hosting.recover(layout, self.disk.identity)
        except OSError as error:
            self.cannot_keep(error)
            return
        except Interrupted:
            self.lose_power()
            return
        world.noted_interruption(self.disk)
        self.told_layout = layout.version
        self.notes.start()
        self.protocol = NodeProtocol(
            self.name, self.topology, layout, sync, recovered, world.settings, self.disk.identity
        )
        self.loop = SimulatedLoop(self, self.protocol)
        self.begun = True
        self._queue.appendleft((LinkUp(self.name), None))
        self._queue.appendleft((Started(), None))
        world.joined(self)
        self.drain()
        if world.settings.snapshots and self.alive:
            world.snapshots.begin(self)

    def use(self, layout: Layout) -> Topology:
        """Run the generations of code that a layout names: queries and sources write units for these."""
        self.generations = layout.generations
        self.topology = self.world.programs.topology(layout.generations)
        self.source_streams = source_streams(self.topology)
        return self.topology

    def end(self, *, silently: bool) -> None:
        """kill -9, or the power goes (``silently``): only the disk is left."""
        self.alive = False
        self.engine.close()
        if self.hosting.ingress is not None:
            self.hosting.ingress.interrupt()
        self.notes.interrupt()
        self.network.ended(self.name, silently=silently)
        self.client.touch()

    def cannot_keep(self, error: OSError) -> None:
        """The disk does not take what the ingress has to keep: the node ends, and its supervisor starts it again."""
        if self.alive:
            self.world.tell(self.name, IngressDiskFailed(self.name, str(error)))
            self.fail()

    def lose_power(self) -> None:
        """The machine loses its power within a write."""
        self.world.counts["torn writes"] += 1
        self._queue.clear()
        self.world.kill(self.name, silently=True)
        self.world.kernel.after(SUPERVISED_MS, lambda _: self.world.boot(self.name))

    def fail(self) -> None:
        self.world.counts["failed nodes"] += 1
        self.end(silently=False)
        self.world.kernel.after(SUPERVISED_MS, lambda _: self.world.boot(self.name))

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

    def post(self, event: Event, rows: Content | None = None) -> None:
        self._queue.append((event, rows))
        if not self._handling and not self.frozen and self.begun:
            self.drain()

    def queue(self, event: Event, rows: Content | None = None) -> None:
        """For an event that follows from the one that is being handled."""
        self._queue.append((event, rows))

    def drain(self) -> None:
        """Handle everything that waits."""
        if self._handling or self.frozen or not self.begun or not self.alive:
            return
        protocol, loop, queue, world = self.protocol, self.loop, self._queue, self.world
        assert protocol is not None and loop is not None
        self._handling = True
        handled = 0
        try:
            while queue:
                event, rows = queue.popleft()
                handled += 1
                world.handled(self.name, event)
                steps = loop.decide(event)
                if self.fuse is not None:
                    steps = self._burn(self.fuse, steps)
                loop.carry_out(steps, rows)
                if not self.alive:
                    queue.clear()
                    return
                if self.fuse == 0:
                    self._tear(event)
                    return
                if world.check_every and not world.count % world.check_every:
                    protocol.check()
                if world.setup.look_every and not world.count % world.setup.look_every:
                    left = protocol.agenda.overlooked(world.kernel.now_ms)
                    if left:
                        broken(f"{self.name} has left undone after {event}: {left}")
                if handled >= MOST_AT_ONCE:
                    broken(f"{self.name} goes round in circles: {event}")
        except Interrupted:
            self.lose_power()
            return
        finally:
            self._handling = False
        self._plan_wake(protocol)

    def _burn(self, fuse: int, steps: Sequence[Instruction]) -> Sequence[Instruction]:
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
