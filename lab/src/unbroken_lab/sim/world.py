"""One simulated run: machines, links, ZooKeeper, sources and sinks on one clock, and the invariants of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from unbroken.errors import broken, require
from unbroken.protocol.events import Event
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.instructions import DropOutbox
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.consistency import Consistency
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Layout, Topology, chained_placement
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.content import Content, memory_of
from unbroken_lab.sim.coordination import depose
from unbroken_lab.sim.disk import Disk, ReplicaDisk
from unbroken_lab.sim.kernel import Kernel
from unbroken_lab.sim.links import LinkModel, Network
from unbroken_lab.sim.machine import Machine, NodeProcess
from unbroken_lab.sim.oracle import Oracle
from unbroken_lab.sim.orders import OrderLog
from unbroken_lab.sim.queries import CostModel, instances_of
from unbroken_lab.sim.sinks import OnceSink, Sink
from unbroken_lab.sim.snapshots import Snapshots
from unbroken_lab.sim.sources import Pulse, SourceModel, source_streams
from unbroken_lab.sim.story import Story
from unbroken_lab.sim.transfers import Transfers
from unbroken_lab.sim.zookeeper import StoreModel, ZooKeeper, first_documents

SETTINGS = ProtocolSettings(
    pulse_min_ms=100, pulse_max_ms=2_000, pulse_start_ms=200, hedge_ms=50, patience_ms=500, grace_ms=100
)
"""Shorter than what real queries need, so that more happens in a simulated second."""


@dataclass(frozen=True)
class Setup:
    """What a run is made of.

    ``check_every`` is after how many events a node checks all its invariants: 0 is never, and leaves out what is
    checked when units are dropped, too. With ``mesh`` every node is linked to every other one, as real ones are;
    without, only to those that it has to do with, for flows of a thousand nodes.
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
    mesh: bool = True
    skewed: bool = True
    place: Callable[[Topology, Mapping[NodeId, str]], Layout] = chained_placement


class World:
    """Everything that one run consists of.

    The invariants of the design are asserted where the facts are made: agreement and determinism when a unit is
    produced or an entry committed, loss-freedom when a unit is dropped, delivery in the sink, and that no wake-up time
    lies in the past after every event. ``check`` looks at the whole.
    """

    def __init__(self, setup: Setup, seed: int, story: Story | None = None) -> None:
        self.setup = setup
        self.topology = setup.topology
        self.settings = setup.settings
        self.costs = setup.costs
        self.check_every = setup.check_every
        self.kernel = Kernel(seed)
        self.story = story
        self.network = Network(self.kernel, setup.links)
        self.sources = SourceModel(setup.rows_per_s)
        self.source_streams = source_streams(setup.topology)
        placed = setup.topology.placed_shards
        self.memory = {part: memory_of(setup.topology, part) for part in setup.topology.segments}
        self.outputs = {shard: setup.topology.outputs(shard) for shard in placed if shard != INGRESS}
        self.instances = {shard: instances_of(setup.topology, shard) for shard in placed if shard != INGRESS}
        self.sink: Sink = OnceSink() if setup.topology.at_most_once else Sink()
        self.sinks_up = True
        self.machines: dict[NodeId, Machine] = {}
        self.where: dict[ReplicaId, ReplicaDisk] = {}
        self.entries: dict[int, Entry] = {}
        self.units: dict[StreamId, dict[int, int]] = {stream: {} for stream in setup.topology.streams}
        self.finals: dict[ShardId, int] = {}
        self.refused: set[tuple[StreamId, int]] = set()
        self.interrupted: dict[ShardId, int] = {}
        self.changed_at = 0
        self.counts: Counter[str] = Counter()
        self.count = 0
        self._serial = 0
        self.transfers = Transfers(self)
        self.snapshots = Snapshots(self)
        self._make_machines()
        names = [name for name in self.machines if not name.startswith("standby")]
        layout = setup.place(setup.topology, {name: self.machines[name].disk.identity for name in names})
        first, sync = first_documents(layout, list(layout.nodes_of(INGRESS)))
        logs = {shard: OrderLog(shard) for part in setup.topology.led for shard in setup.topology.shards(part)}
        self.zookeeper = ZooKeeper(
            self.kernel, self.network, setup.store, setup.topology, first, sync, self._store_changed, logs=logs
        )
        self.zookeeper.restorable = setup.settings.snapshots
        for replica, node in layout.placement.items():
            held = self.machines[node].disk.replicas[replica] = ReplicaDisk()
            self.where[replica] = held
        for machine in self.machines.values():
            self.boot(machine.name, at_once=True)

    def _make_machines(self) -> None:
        random, setup = self.kernel.random("machines"), self.setup
        names = [f"node-{number}" for number in range(1, setup.nodes + 1)]
        names += [f"standby-{number}" for number in range(1, setup.standbys + 1)]
        for name in names:
            machine = self.machines[name] = Machine(name, Disk(f"{name}-disk"))
            if setup.skewed:
                machine.drift = 1.0 + (random.random() - 0.5) * 4e-4
                machine.began_ms = random.random() * 1e7
                machine.skew_ms = random.random() * 400.0

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

    def wipe(self, name: NodeId) -> None:
        """A node is lost with its disk; it comes back under its name with an empty one."""
        self.kill(name, silently=True)
        machine = self.machines[name]
        for replica, held in machine.disk.replicas.items():
            if self.where.get(replica) is held:
                del self.where[replica]
        machine.disk = Disk(f"{name}-disk-{self.next_serial()}")

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
            for stream in self.outputs.get(replica.shard, ()):
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
            self.changed_at = max((max(numbers) for numbers in self.units.values() if numbers), default=0)
        if what in ("layout", "sync"):
            for process in self.processes():
                if process.begun:
                    process.client.look(what)
        elif what.startswith("orders "):
            shard = ShardId.parse(what.removeprefix("orders "))
            for process in self.processes():
                process.orders.look(shard)
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

    def tell(self, name: NodeId, sentence: str) -> None:
        self.zookeeper.report(f"{name}: {sentence}")

    def agreed(self, name: NodeId, entry: Entry) -> None:
        """A member of the ingress takes an entry for agreed: everybody else's must be the same."""
        known = self.entries.setdefault(entry.index, entry)
        if known != entry:
            broken(f"{name} commits another entry {entry.index}: {entry}, not {known}")

    def write_unit(self, disk: ReplicaDisk, header: UnitHeader, content: Content, faithful: bool) -> UnitHeader:
        """Agreement, determinism, stability: the same unit has the same content wherever it is produced."""
        stream, number = header.stream, header.number
        if faithful:
            known = self.units[stream].setdefault(number, content.mark)
            if known != content.mark:
                broken(f"unit {number} of {stream} is produced with another content")
        elif (stream, number) in disk.outbox:
            return disk.outbox[stream, number][0]  # what is there is right
        if header.final:
            self.finals[stream.producer] = number
        disk.outbox[stream, number] = (header, content)
        return header

    def delivered(self, header: UnitHeader, content: Content) -> None:
        stream = header.stream
        if stream.home != stream:
            self.sink.write_tentative(stream.home, header, content)
            self.counts["tentative"] += 1
        elif self.sink.write(stream, header.number, content, self.kernel.now_ms):
            self.kernel.note(f"{stream} {header.number} {content.mark}")
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
        again = last <= process.carrying.dropped.get((owner, stream), 0)
        process.carrying.dropped[owner, stream] = max(last, process.carrying.dropped.get((owner, stream), 0))
        assert process.protocol is not None
        for consumer in () if again else process.protocol.layout.counted(stream.consumer):
            held = self.where.get(consumer)
            if held is None or (last <= held.valid and (stream, last) in held.inbox):
                continue
            if held.taken(stream) < last:
                broken(f"unit {last} of {stream} is dropped before {consumer} committed it")

    def check(self) -> None:
        """Loss-free, globally: whoever counts finds its next unit on some producer's disk, or it is yet to come."""
        layout = self.zookeeper.layout
        for process in self.processes():
            if process.protocol is None:
                continue
            process.protocol.check()
            refused = process.protocol.validation.reported
            require(not refused, f"{process.name} refuses what nodes tell each other: {refused}")
            for name, replica in process.protocol.replicas.items():
                if name not in layout.full(name.shard) or replica.stopped is not None:
                    continue
                for stream, inbox in replica.inboxes.items():
                    bases = self._bases(stream)
                    if bases and min(bases) > inbox.available:
                        broken(f"unit {inbox.available + 1} of {stream} is needed by {name} and dropped everywhere")

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

    def at_rest(self) -> str | None:
        """What is still to come before everything is delivered and redundant again; None if nothing is."""
        ended = self.ended()
        if ended is None:
            return f"only {len(self.entries)} entries are agreed, and no last one"
        for stream in self.topology.streams:
            if self.topology.is_sink(stream.consumer):
                last = self._last_of(stream.producer, ended)
                if self.sink.through(stream) < last:
                    return f"only {self.sink.through(stream)} units of {stream} are delivered, not {last}"
        for process in self.processes():
            for replica, query in process.hosting.queries.items():
                if replica in self.zookeeper.layout.placement and not query.stopped:
                    last = self._last_of(replica.shard, ended)
                    if query.disk.committed < last:
                        return f"{replica} has only committed {query.disk.committed}, not {last}"
        return self.shortage() or self._unsettled()

    def stuck(self) -> str | None:
        """The first shard on the way through the flow that has not taken all its input; what follows waits for it."""
        for shard in [shard for part in self.topology.segments for shard in self.topology.shards(part)]:
            there = {r: self.where[r] for r in sorted(self.zookeeper.layout.full(shard)) if r in self.where}
            for stream in self.topology.inputs(shard):
                taken = {replica: held.taken(stream) for replica, held in there.items()}
                done = max(taken.values(), default=0)
                if done < max(self.units[stream], default=0):
                    who = ", ".join(str(replica) for replica, number in taken.items() if number == done) or str(shard)
                    return f"{who} without unit {done + 1} of {stream}"
        return None

    def _unsettled(self) -> str | None:
        """What is still tentative."""
        for process in self.processes():
            watches = {} if process.protocol is None else process.protocol.forking.watches
            for replica, watch in watches.items():
                fork = None if watch.fork is None else str(watch.fork.replica)
                kept_ready = watch.standing and watch.fork is not None and watch.fork.clean
                if watch.state is not Consistency.STABLE or watch.paused or (fork is not None and not kept_ready):
                    return f"{replica} on {process.name} is {watch.state.value}, with the fork {fork}"
        left = {str(stream): sorted(kept) for stream, kept in self.sink.tentative.items() if kept}
        return f"the sinks still have tentative results of {left}" if left else None

    def _last_of(self, shard: ShardId, ended: int) -> float:
        """The last unit that a shard produces; where units are not numbered by pulses, only the unit itself tells."""
        numbered = not self.topology.led and not self.topology.bucketed
        return ended if numbered else self.finals.get(shard, float("inf"))

    def shortage(self) -> str | None:
        """What is missing of the redundancy that the nodes can give."""
        layout, store = self.zookeeper.layout, self.zookeeper
        fit = {name for name in store.members if name not in store.draining and self.process(name) is not None}
        for shard in self.topology.placed_shards:
            full = {r for r in layout.full(shard) if layout.placement[r] in fit}
            healthy = {r for r in full if self.hosts(layout.placement[r], r)}
            if len(healthy) < min(len(fit), self.topology.replicas[shard.part]):
                return f"{shard} has only {sorted(str(r) for r in healthy)}"
            copies = {r for r in layout.holding(shard) - layout.joining if layout.placement[r] in fit}
            if len(copies) < min(len(fit) - 1, self.topology.strategy(shard.part).holding):
                return f"{shard} has only the copies {sorted(str(r) for r in copies)}"
        away = [shard for shard, home in layout.homes.items() if home in fit]
        if away:
            return f"{away[0]} is not back on {layout.homes[away[0]]}"
        if layout.joining:
            return f"{sorted(str(r) for r in layout.joining)} are still joining"
        for node in layout.placement.values() if self.topology.whole else ():
            if {replica.shard for replica in layout.hosted(node)} != set(self.topology.placed_shards):
                return f"{node} has no whole copy: {[str(replica) for replica in layout.hosted(node)]}"
        members = set(layout.full_nodes_of(INGRESS))
        return None if store.sync.members == members else f"{store.sync} are in sync instead of {sorted(members)}"

    def hosts(self, name: NodeId, replica: ReplicaId) -> bool:
        process = self.process(name)
        return process is not None and process.protocol is not None and replica in process.protocol.hosted()

    def check_result(self) -> None:
        """The sinks hold what they would hold without any fault, and the flow has come to its end."""
        pulses = max((entry.pulse for entry in self.entries.values()), default=0)
        require(pulses == self.ended(), f"{pulses} pulses are agreed, and {self.ended()} is the last")
        require(sorted(self.entries) == list(range(1, len(self.entries) + 1)), "the ingress log has a hole")
        orders = {shard: log.orders for shard, log in self.zookeeper.logs.items()}
        oracle = Oracle(self.topology, self.entries, orders, self.costs.keep, self.sources.rows_per_s)
        self.sink.check(oracle.sinks(), self._excused)

    def _excused(self, stream: StreamId, number: int) -> bool:
        """Whether a unit may be missing where units are delivered at most once: its sink failed with it, its replica
        was interrupted when it may have been under way, or another had the turn after it was cut."""
        shard = stream.producer
        cut = next(entry for entry in self.entries.values() if entry.pulse == number)
        interrupted = number <= self.interrupted.get(shard, 0)
        turned = Pulse.of(cut).layout < self.zookeeper.turned.get(shard, 0)
        return (stream, number) in self.refused or interrupted or turned
