"""A simulated flow in which steps are chosen one by one, and how it is driven: in turn, until something, to its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from unbroken.errors import broken
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.notices import Notice
from unbroken_lab.sim.links import LinkModel
from unbroken_lab.sim.machine import NodeProcess
from unbroken_lab.sim.queries import CostModel
from unbroken_lab.sim.rest import leftovers
from unbroken_lab.sim.sparing import forgettable
from unbroken_lab.sim.steps.kernel import NEVER_MS, Step, StepKernel
from unbroken_lab.sim.steps.observer import Observer
from unbroken_lab.sim.story import Unrest
from unbroken_lab.sim.world import Setup, World
from unbroken_lab.sim.zookeeper import StoreModel

SETTINGS = ProtocolSettings(
    pulse_min_ms=500,
    pulse_max_ms=5_000,
    pulse_start_ms=1_000,
    hedge_ms=400,
    patience_ms=1_500,
    grace_ms=1_250,
    ring_period_ms=0,
    warm_units=0,
    standing_ms=0,
)
"""The ring is off: no decision here depends on it, and its pings would make most of the steps of a schedule. Pulses are
as far apart as the time after which the controller stops counting a node."""

LINKS = LinkModel(
    latency_ms=0.0,
    jitter_ms=0.0,
    bytes_per_ms=float("inf"),
    timeout_ms=2 * NEVER_MS,
    heartbeat_ms=1.0,
    reconnect_ms=0.0,
)
"""Links on which everything arrives whenever it is chosen, and silence is not noticed: faults break them."""

STORE = StoreModel(latency_ms=0.0, watch_ms=0.0, session_ms=0.0, retry_ms=1_000.0, control_ms=1_000.0, patient=False)
COSTS = CostModel(
    boot_ms=0.0,
    query_ms=0.0,
    stop_ms=0.0,
    look_ms=0.0,
    batch_ms=0.0,
    row_us=0.0,
    commit_ms=0.0,
    spread=0.0,
    round_ms=0.0,
    gate_wait_ms=750.0,
    sink_ms=0.0,
    poll_ms=0.0,
    force_ms=0.0,
    fork_ms=0.0,
    copy_bytes_per_ms=float("inf"),
    copy_trips=0.0,
    open_ms=0.0,
)
"""Nothing takes time but what waits for somebody."""

LOOK_EVERY = 3
"""Events after which it is looked whether a part that was not due had something to do."""

Held = Callable[[Step], bool]
"""Which steps are held back."""

TURNS = 16_000
"""Turns in which a flow has to come to rest: of what is under way on a link, each takes one."""


class Cluster:
    """A world in which nothing happens unless ``take`` is called, with the steps that can be taken next.

    Nodes are node-1, node-2, ... and standby-1, ...; sources end with pulse ``pulses``. The session of a killed node
    ends as a step of its own, if the cluster ``forgets`` and the flow can stand it. Nodes check all their invariants
    after every ``check_every`` events.
    """

    forgets = True
    check_every = 1

    def __init__(
        self,
        topology: Topology,
        nodes: int,
        pulses: int,
        settings: ProtocolSettings = SETTINGS,
        standbys: int = 0,
        transfers: int = 2,
        placement: Mapping[ReplicaId, NodeId] | None = None,
        costs: CostModel = COSTS,
        seed: int = 0,
    ) -> None:
        def place(shape: Topology, disks: Mapping[NodeId, str]) -> Layout:
            layout = chained_placement(shape, disks)
            return layout if placement is None else replace(layout, placement=dict(placement))

        setup = Setup(
            topology,
            nodes,
            standbys,
            settings,
            LINKS,
            replace(STORE, transfers=transfers),
            costs,
            check_every=self.check_every,
            look_every=LOOK_EVERY,
            skewed=False,
            place=place,
        )
        self.kernel = StepKernel(seed)
        self.observer = self.observe()
        self.world = World(setup, seed, self.observer, self.kernel)
        self.world.sources.last_pulse = pulses
        self.observer.begin(self.world)
        self.start()

    def start(self) -> None:
        """For what is to be looked at from the beginning."""

    def observe(self) -> Observer:
        """Who looks at every event and instruction."""
        return Observer()

    # --- what there is --------------------------------------------------------------------------------

    @property
    def now_ms(self) -> float:
        return self.kernel.now_ms

    @property
    def layout(self) -> Layout:
        return self.world.zookeeper.layout

    @property
    def topology(self) -> Topology:
        return self.world.topology

    def running(self) -> list[NodeId]:
        """The nodes whose processes live, frozen or not."""
        return [process.name for process in self.world.processes()]

    def process(self, name: NodeId) -> NodeProcess:
        found = self.world.process(name)
        if found is None:
            broken(f"{name} does not run")
        return found

    def protocol(self, name: NodeId) -> NodeProtocol:
        found = self.process(name).protocol
        if found is None:
            broken(f"{name} has not begun")
        return found

    def protocols(self) -> dict[NodeId, NodeProtocol]:
        return {process.name: process.protocol for process in self.world.processes() if process.protocol is not None}

    def reports(self, by: NodeId | None = None) -> list[Notice]:
        """What a node has reported, or everybody."""
        return [one.notice for one in self.world.zookeeper.history if by is None or one.node == by]

    def delivered(self) -> int:
        """How many units all sinks have of all their streams."""
        return min(self.world.sink.through(lane) for lane in self.world.programs.lanes())

    def pulses(self) -> int:
        """The newest pulse that is agreed."""
        return max((entry.pulse for entry in self.world.entries.values()), default=0)

    # --- steps ----------------------------------------------------------------------------------------

    def steps(self) -> list[Step]:
        """Everything that can happen next, except faults, in an order that depends on nothing but what was done."""
        return [step for step in self.kernel.steps() if self._possible(step)]

    def _possible(self, step: Step) -> bool:
        if step.kind != "forget":
            return True
        node = step.argument[0].node
        return self.world.process(node) is None and self.forgets and forgettable(self.world, node)

    def take(self, step: Step) -> None:
        """Take a step; nothing happens if it was possible a moment ago and is not any more."""
        self.kernel.take(step)

    def advance(self) -> bool:
        """Let time pass until something happens by itself."""
        return self.kernel.advance()

    def turn(self, held: Held | None = None) -> bool:
        """Take every step that is possible at this moment, except for those that are held; whether there was one."""
        steps = [step for step in self.steps() if held is None or not held(step)]
        for step in steps:
            self.take(step)
        return bool(steps)

    def run_turns(self, turns: int, without: Collection[str] = (), unless: Held | None = None) -> None:
        """Let everything happen in turn, except for some kinds and some steps; time passes when nothing else can."""
        held = _held(without, unless)
        for _ in range(turns):
            if not self.turn(held):
                self.kernel.advance(held=held)

    def run_until(
        self,
        reached: Callable[[], bool],
        without: Collection[str] = (),
        unless: Held | None = None,
        bound: int = 4_000,
    ) -> None:
        """Let things happen one by one, except for some kinds and some steps, until something is reached."""
        held = _held(without, unless)
        for _ in range(bound):
            steps = [step for step in self.steps() if held is None or not held(step)]
            for step in steps:
                if reached():
                    return
                self.take(step)
            if reached():
                return
            if not steps:
                self.kernel.advance(held=held)
        raise AssertionError(f"not reached after {bound} turns: {self.at_rest()}")

    def run_to(self, until_ms: float) -> None:
        """Let everything happen as soon as it can, until a moment: nothing takes time but what is said to take it."""
        while True:
            for _ in range(10_000):
                if not self.turn():
                    break
            else:
                raise AssertionError("so much cannot happen in a moment")
            if not self.kernel.advance(until_ms):
                return

    # --- the end --------------------------------------------------------------------------------------

    def check(self) -> None:
        """The invariants of the whole."""
        self.world.check()
        self.observer.check()

    def at_rest(self) -> Unrest | str | None:
        """What is still to come before everything is delivered and redundant again; None if nothing is."""
        return self.world.at_rest() or leftovers(self.world)

    def come_to_rest(self) -> None:
        for _ in range(TURNS):
            if not self.turn():
                if self.at_rest() is None:
                    return
                self.advance()
        raise AssertionError(f"not at rest after {TURNS} turns: {self.at_rest()}; first {self.world.stuck()}")

    def settle(self) -> None:
        """No more faults: whatever can happen happens, in turn, until the flow is at rest. Then check it."""
        self.recover_all()
        self.come_to_rest()
        self.check()
        last = self.world.sources.last_pulse
        if self.pulses() < last:
            raise AssertionError(f"only {self.pulses()} of {last} pulses were agreed")
        self.world.check_result()

    def recover_all(self) -> None:
        """Everything that was away comes back, except disks that are lost."""
        world = self.world
        for process in world.processes():
            if process.frozen:
                process.thaw()
        for way in world.network.blocked_ways():
            world.network.unblock(*way)
        world.touch_all()
        world.sources.away.clear()
        world.zookeeper.doubted.clear()
        for name in world.machines:
            self.boot(name)
        if len(world.processes()) - len(world.zookeeper.draining) < max(world.topology.replicas.values()):
            world.zookeeper.draining.clear()
        world.zookeeper.notify("wishes")

    def boot(self, name: NodeId) -> None:
        """Start a node on its disk. Its earlier session makes room at once, so that nobody takes it for gone."""
        world = self.world
        if world.process(name) is not None or world.machines[name].lost:
            return
        member = world.zookeeper.members.get(name)
        if member is not None:
            world.zookeeper.expire(member.session)
        world.boot(name, at_once=True)


def _held(without: Collection[str], unless: Held | None) -> Held | None:
    """What is held back: some kinds of steps, and some steps."""
    if not without and unless is None:
        return None
    return lambda step: step.kind in without or (unless is not None and unless(step))
