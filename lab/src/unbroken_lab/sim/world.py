"""One simulated run: machines, links, ZooKeeper, sources and sinks on one clock, and the invariants of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from unbroken.errors import broken, require
from unbroken.protocol.events import Event
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.instructions import DropOutbox
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Layout, Topology
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.strategy import Strategy
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim import rest
from unbroken_lab.sim.content import Content, memory_of
from unbroken_lab.sim.coordination import depose
from unbroken_lab.sim.disk import Disk, ReplicaDisk
from unbroken_lab.sim.files import SimulatedFiles
from unbroken_lab.sim.kernel import Kernel
from unbroken_lab.sim.links import LinkModel, Network
from unbroken_lab.sim.machine import Machine, NodeProcess
from unbroken_lab.sim.oracle import Oracle
from unbroken_lab.sim.programs import ProgramModels, lane_of
from unbroken_lab.sim.queries import CostModel, instances_of
from unbroken_lab.sim.sinks import OnceSink, Sink
from unbroken_lab.sim.snapshots import Snapshots
from unbroken_lab.sim.sources import Pulse, SourceModel
from unbroken_lab.sim.story import Story, Unrest
from unbroken_lab.sim.transfers import Copying
from unbroken_lab.sim.upgrades import Upgrades
from unbroken_lab.sim.zookeeper import StoreModel, ZooKeeper, first_documents

SETTINGS = ProtocolSettings(
    pulse_min_ms=100, pulse_max_ms=2_000, pulse_start_ms=200, hedge_ms=50, patience_ms=500, grace_ms=100
)
"""Shorter than what real queries need, so that more happens in a simulated second."""


@dataclass(frozen=True)
class Setup:
    """What a run is made of.

    ``check_every`` is after how many events a node checks all its invariants: 0 is never, and leaves out what is
    checked when units are dropped, too. ``look_every`` is the same for looking whether parts that were not due had
    something to do, which costs more and is never done unless asked for. With ``mesh`` every node is linked to every
    other one, as real ones are; without, only to those that it has to do with, for flows of a thousand nodes.
    """

    topology: Topology
    nodes: int
    standbys: int = 0
    settings: ProtocolSettings = SETTINGS
    links: LinkModel = field(default_factory=LinkModel)
    store: StoreModel = field(default_factory=StoreModel)
    costs: CostModel = field(default_factory=CostModel)
    rows_per_s: float = 2_000.0
    check_every: int = 1
    look_every: int = 0
    mesh: bool = True
    skewed: bool = True
    place: Callable[[Topology, Mapping[NodeId, str]], Layout] = chained_placement


class World:
    """Everything that one run consists of.

    The invariants of the design are asserted where the facts are made: agreement and determinism when a unit is
    produced or an entry committed, loss-freedom when a unit is dropped, delivery in the sink, and that no wake-up time
    lies in the past after every event. ``check`` looks at the whole.
    """

    def __init__(self, setup: Setup, seed: int, story: Story | None = None, kernel: Kernel | None = None) -> None:
        self.setup = setup
        self.topology = setup.topology
        self.settings = setup.settings
        self.costs = setup.costs
        self.check_every = setup.check_every
        self.kernel = kernel or Kernel(seed)
        self.story = story
        self.network = Network(self.kernel, setup.links)
        self.sources = SourceModel(setup.rows_per_s)
        self.programs = ProgramModels.of(setup.topology)
        self.memory: dict[str, Strategy] = {}
        self.instances: dict[ShardId, tuple[str, ...]] = {}
        self.units: dict[StreamId, dict[int, tuple[int, int, int]]] = {}
        self.note_parts(setup.topology)
        self.sink: Sink = OnceSink() if setup.topology.at_most_once else Sink()
        self.sinks_up = True
        self.nonsense = False
        self.machines: dict[NodeId, Machine] = {}
        self.where: dict[ReplicaId, ReplicaDisk] = {}
        self.entries: dict[int, Entry] = {}
        self.makers: dict[StreamId, list[str]] = {lane: [] for lane in self.programs.lanes()}
        self.finals: dict[ShardId, int] = {}
        self.refused: set[tuple[StreamId, int]] = set()
        self.interrupted: dict[ShardId, int] = {}
        self.changed_at = 0
        self.counts: Counter[str] = Counter()
        self.count = 0
        self._serial = 0
        self._copies: dict[tuple[StreamId, int], dict[int, tuple[int, int, int]]] = {}
        self.copying = Copying(self)
        self.snapshots = Snapshots(self)
        self.upgrades = Upgrades(self)
        self._make_machines()
        names = [name for name in self.machines if not name.startswith("standby")]
        layout = setup.place(setup.topology, {name: self.machines[name].disk.identity for name in names})
        first, sync = first_documents(layout, list(layout.nodes_of(INGRESS)))
        self.zookeeper = ZooKeeper(
            self.kernel, self.network, setup.store, self.programs, first, sync, self._store_changed
        )
        self.zookeeper.restorable = setup.settings.snapshots
        self._layout = first
        for machine in self.machines.values():
            self.boot(machine.name, at_once=True)

    def _make_machines(self) -> None:
        random, setup = self.kernel.random("machines"), self.setup
        names = [f"node-{number}" for number in range(1, setup.nodes + 1)]
        names += [f"standby-{number}" for number in range(1, setup.standbys + 1)]
        for name in names:
            machine = self.machines[name] = Machine(name, self._disk(name, f"{name}-disk"))
            if setup.skewed:
                machine.drift = 1.0 + (random.random() - 0.5) * 4e-4
                machine.began_ms = random.random() * 1e7
                machine.skew_ms = random.random() * 400.0

    def note_parts(self, topology: Topology) -> None:
        """Be ready for what the parts of a flow keep and produce."""
        self.memory |= {part: memory_of(topology, part) for part in topology.segments}
        for shard in [shard for shard in topology.placed_shards if shard != INGRESS]:
            self.instances[shard] = instances_of(topology, shard)
        for stream in topology.streams:
            self.units.setdefault(stream, {})

    def _disk(self, name: NodeId, identity: str) -> Disk:
        return Disk(identity, SimulatedFiles(self.kernel.random(f"disk {name}")))

    # --- machines -------------------------------------------------------------------------------------

    def boot(self, name: NodeId, *, at_once: bool = False) -> None:
        """Start the process of a node: it needs its time, and its name, before it begins."""
        machine = self.machines[name]
        if machine.lost or (machine.process is not None and machine.process.alive):
            return
        process = machine.process = NodeProcess(self, machine)

        def join(_: object = None) -> None:
            process.client.join(process.begin)

        if at_once:
            join()
        else:
            process.later(self.costs.boot_ms * machine.slowness, join)

    def kill(self, name: NodeId, *, silently: bool = False) -> None:
        process = self.process(name)
        if process is not None:
            process.end(silently=silently)
            if silently:
                process.disk.files.power_failure()

    def wipe(self, name: NodeId) -> None:
        """A node is lost with its disk; it comes back under its name with an empty one."""
        self.kill(name, silently=True)
        machine = self.machines[name]
        for replica, held in machine.disk.replicas.items():
            if self.where.get(replica) is held:
                del self.where[replica]
        machine.disk = self._disk(name, f"{name}-disk-{self.next_serial()}")

    def process(self, name: NodeId) -> NodeProcess | None:
        """The process of a node, if it lives."""
        machine = self.machines.get(name)
        found = None if machine is None else machine.process
        return found if found is not None and found.alive else None

    def processes(self) -> list[NodeProcess]:
        return [m.process for m in self.machines.values() if m.process is not None and m.process.alive]

    def joined(self, process: NodeProcess) -> None:
        """A node has begun: links are made to it and from it."""
        if self.setup.mesh:
            self.network.join(process, list(self.machines))
        else:
            self.network.join(process, [])
            self.related(process.name, self.zookeeper.layout)

    def related(self, name: NodeId, layout: Layout) -> None:
        """Where nodes are not linked to all others: those that a node has to do with by a layout."""
        if self.setup.mesh:
            return
        shards: dict[ShardId, None] = {INGRESS: None}
        for replica in layout.hosted(name):
            shards[replica.shard] = None
            for stream in self.topology.inputs(replica.shard):
                shards[self.topology.host_shard(stream.producer)] = None
            for stream in self.topology.outputs(replica.shard):
                if not self.topology.is_sink(stream.consumer):
                    shards[stream.consumer] = None
        for peer in dict.fromkeys(node for shard in shards for node in layout.nodes_of(shard)):
            if peer != name:
                self.network.want(name, peer)
                self.network.want(peer, name)

    def touch_all(self) -> None:
        """Who reaches ZooKeeper may have changed."""
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.client.touch()

    def _store_changed(self, what: str) -> None:
        if what == "layout":
            before, self._layout = self._layout, self.zookeeper.layout
            self.upgrades.published(before, self._layout)
            self.topology = self.programs.topology(self._layout.generations)
            self.changed_at = max((max(numbers) for numbers in self.units.values() if numbers), default=0)
        if what in ("layout", "sync"):
            for process in self.processes():
                if process.begun:
                    process.client.look(what)
        elif what.startswith("orders "):
            shard = ShardId.parse(what.removeprefix("orders "))
            for policy in [policy for process in self.processes() for policy in process.policies]:
                policy.ordered(shard)
        elif what == "suspicions":
            clients = {process.name: process.client for process in self.processes()}
            self.kernel.after(2 * self.setup.store.latency_ms, lambda _: depose(self.zookeeper, clients))
        for session in self.zookeeper.line[:1]:
            head = self.process(session.node)
            if head is not None:
                head.client.controller.wake()

    # --- facts ----------------------------------------------------------------------------------------

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def handled(self, name: NodeId, event: Event) -> None:
        self.count += 1
        self.kernel.note(name, type(event).__name__)
        if self.story is not None:
            self.story.event(self.kernel.now_ms, name, event)

    def tell(self, name: NodeId, notice: Notice) -> None:
        self.zookeeper.report(notice, name)

    def agreed(self, name: NodeId, entry: Entry) -> None:
        """A member of the ingress takes an entry for agreed: everybody else's must be the same."""
        new = entry.index not in self.entries
        known = self.entries.setdefault(entry.index, entry)
        if known != entry:
            broken(f"{name} commits another entry {entry.index}: {entry}, not {known}")
        if new and entry.pulse and len(self.programs.known) > 1:
            earlier = [e for e in self.entries.values() if e.pulse and e.index < entry.index]
            asked = Pulse.of(max(earlier, key=lambda e: e.index)).generation if earlier else 1
            require(asked <= Pulse.of(entry).generation, f"{entry} goes back to an earlier generation than {asked}")

    def write_unit(self, disk: ReplicaDisk, header: UnitHeader, content: Content, faithful: bool) -> UnitHeader:
        """Agreement, determinism, stability: the same unit has the same content wherever it is produced, except by code
        that has begun anew with another copy of its predecessor's state."""
        stream, number = header.stream, header.number
        if faithful:
            made = (content.mark, header.cut_ms, header.fold)
            copy = disk.origin.copy
            units = self.units[stream] if not copy else self._copies.setdefault((stream, copy), {})
            known = units.setdefault(number, made)
            if known != made:
                broken(f"unit {number} of {stream} is produced with another content", stream, unit=number)
        elif (stream, number) in disk.outbox:
            return disk.outbox[stream, number][0]  # what is there is right
        if header.final:
            self.finals[stream.producer] = number
        disk.write(header, content)
        return header

    def delivered(self, header: UnitHeader, content: Content) -> None:
        stream = header.stream
        counts = self.programs.counts(stream.home, header.generation)
        require(counts, f"unit {header.number} of {stream} is delivered and does not count")
        lane = lane_of(stream.home)
        if stream.home != stream:
            self.sink.write_tentative(lane, header, content)
            self.counts["tentative"] += 1
        elif self.sink.write(lane, header.number, content, self.kernel.now_ms):
            self.kernel.note(f"{stream} {header.number} {content.mark}")
            self.makers[lane].append(stream.producer.part)
            self.counts["delivered"] += 1

    def noted_interruption(self, disk: Disk) -> None:
        """What a process may have handed to a sink before it ended is known by what it has left."""
        for replica, held in disk.replicas.items():
            self.interrupted[replica.shard] = max(held.newest(), self.interrupted.get(replica.shard, 0))

    # --- invariants -----------------------------------------------------------------------------------

    def check_dropped(self, process: NodeProcess, step: DropOutbox) -> None:
        """Loss-free: nobody who counts may still need what is dropped. What is written and dropped a second time, as
        another stream still needs that pulse, was not promised to those who have come to count since."""
        owner, stream, last = step.replica, step.stream, max(step.numbers, default=0)
        again = last <= process.effects.dropped.get((owner, stream), 0)
        process.effects.dropped[owner, stream] = max(last, process.effects.dropped.get((owner, stream), 0))
        assert process.protocol is not None
        for consumer in () if again else process.protocol.layout.counted(stream.consumer):
            held = self.where.get(consumer)
            if held is None or (last <= held.valid and (stream, last) in held.inbox):
                continue
            if held.taken(stream) < last:
                broken(
                    f"unit {last} of {stream} is dropped before {consumer} committed it", stream, consumer, unit=last
                )

    def check(self) -> None:
        """Loss-free, globally: whoever counts finds its next unit on some producer's disk, or it is yet to come."""
        layout = self.zookeeper.layout
        for process in self.processes():
            if process.protocol is None:
                continue
            process.protocol.check()
            refused = process.protocol.validation.reported
            if refused and not self.nonsense:
                broken(f"{process.name} refuses what nodes tell each other: {refused}")
            for name, replica in process.protocol.replicas.items():
                if name not in layout.full(name.shard) or replica.stopped is not None:
                    continue
                for stream, inbox in replica.inboxes.items():
                    bases = self._bases(stream)
                    if bases and min(bases) > inbox.available:
                        broken(
                            f"unit {inbox.available + 1} of {stream} is needed by {name} and dropped everywhere",
                            stream,
                            name,
                            unit=inbox.available + 1,
                        )

    def _bases(self, stream: StreamId) -> list[int]:
        out: list[int] = []
        shard = self.topology.host_shard(stream.producer)
        for replica in self.zookeeper.layout.full(shard):
            process = self.process(self.zookeeper.layout.placement[replica])
            protocol = None if process is None else process.protocol
            box = None if protocol is None else protocol.outboxes.boxes.get(stream)
            held = self.where.get(replica)
            if box is not None:
                out += [] if box.muted else [box.base]
            elif held is not None:
                out.append(held.stored_base(stream))
        return out

    # --- the end --------------------------------------------------------------------------------------

    def ended(self) -> int | None:
        """The last pulse, once it is agreed."""
        last = self.entries.get(len(self.entries))
        if last is not None and last.final:
            return last.pulse
        return next((entry.pulse for entry in self.entries.values() if entry.final), None)

    def at_rest(self) -> Unrest | None:
        """What is still to come before everything is delivered and redundant again; None if nothing is."""
        return rest.unfinished(self) or rest.shortage(self) or rest.unsettled(self)

    def shortage(self) -> Unrest | None:
        """What is missing of the redundancy that the nodes can give."""
        return rest.shortage(self)

    def stuck(self) -> Unrest | None:
        """The first shard on the way through the flow that has not taken all its input; what follows waits for it."""
        return rest.stuck(self)

    def check_result(self) -> None:
        """The sinks hold what they would hold without any fault, and the flow has come to its end."""
        pulses = max((entry.pulse for entry in self.entries.values()), default=0)
        require(pulses == self.ended(), f"{pulses} pulses are agreed, and {self.ended()} is the last")
        require(sorted(self.entries) == list(range(1, len(self.entries) + 1)), "the ingress log has a hole")
        orders = {shard: [order.cut for order in log.orders] for shard, log in self.zookeeper.logs.items()}
        oracle = Oracle(self.programs, self.entries, orders, self.costs.keep, self.sources.rows_per_s)
        self.sink.check(oracle.sinks(), self._excused)

    def _excused(self, stream: StreamId, number: int) -> bool:
        """Whether a unit may be missing where units are delivered at most once: its sink failed with it, its replica
        was interrupted when it may have been under way, or another had the turn after it was cut."""
        shard = stream.producer
        cut = next(entry for entry in self.entries.values() if entry.pulse == number)
        interrupted = number <= self.interrupted.get(shard, 0)
        turned = Pulse.of(cut).layout < self.zookeeper.turned.get(shard, 0)
        return (stream, number) in self.refused or interrupted or turned
