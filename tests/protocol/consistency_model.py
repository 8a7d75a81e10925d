"""The simulated cluster with segments that go on without missing input: forks, partitions, sources that are away.

Asserted as it happens: nothing tentative gets into a stable state or takes the place of a stable unit, receivers take
tentative units of rising pulses only, what policies forbid is not given out, and a fork begins with the state that its
replica has. At rest nothing tentative is left anywhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations

from protocol.cluster_effects import SETTINGS, SimNode, instances_of
from protocol.cluster_model import Action, Cluster
from protocol.model_parts import FakeSpark
from protocol.sim_buckets import bucket_body, bucketed_reference, buckets_of
from protocol.sim_disk import ReplicaDisk
from protocol.sim_programs import Lane, lane_of
from protocol.sim_tentative import TentativeSink, home_shard, is_fork, is_tentative, run_fork
from unbroken.protocol.events import Event, Produced, QueryFailed, SinkDelivered, UnitArrived
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.instructions import (
    Deliver,
    DropOutbox,
    DropReplica,
    FeedFork,
    ForkReplica,
    Instruction,
    PauseReplica,
    PollSources,
    Report,
    SendUnit,
    StartReplica,
    StoreUnit,
    UndoReplica,
)
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.tentative.missing_input import Watch
from unbroken.protocol.values.consistency import Consistency, Policy
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.units import UnitHeader

DIRECTIONS = ("messages", "units", "both")


class AvailableCluster(Cluster):
    """A cluster whose links can be parted for a while, in one direction or both, and whose sources can be away.

    A micro-batch takes ``cost_ms``, and the copy of a state and the start of a query on it ``fork_ms``. ``counts`` says
    how much of what is to be tested has really happened; of replicas that have rested, "undos" are those whose state
    was built again and "redos" those that went on from the one they had.
    """

    check_every = 4

    def __init__(
        self,
        topology: Topology,
        nodes: int,
        pulses: int,
        settings: ProtocolSettings = SETTINGS,
        standbys: int = 0,
        transfers: int = 2,
        placement: Mapping[ReplicaId, NodeId] | None = None,
        cost_ms: float = 0.0,
        fork_ms: float = 0.0,
    ) -> None:
        self.cost_ms, self.fork_ms = cost_ms, fork_ms
        self.counts: Counter[str] = Counter()
        self.away: set[str] = set()
        self.parted: set[frozenset[NodeId]] = set()
        self.beginning: dict[tuple[NodeId, ReplicaId], float] = {}
        self.busy: dict[tuple[NodeId, ReplicaId], float] = {}
        self.arrivals: dict[tuple[NodeId, ShardId], dict[int, float]] = {}
        self.heard: dict[tuple[NodeId, ReplicaId, StreamId], int] = {}
        self.cut_ms: dict[int, float] = {}
        self.resting: set[tuple[NodeId, ReplicaId]] = set()
        self.stabilizing: set[tuple[NodeId, str]] = set()
        super().__init__(topology, nodes, pulses, settings, standbys, transfers, placement)
        self.sink: TentativeSink = TentativeSink()

    # --- what instructions do -------------------------------------------------------------------------

    def handle(self, name: NodeId, event: Event, payload: int | None = None) -> None:
        if isinstance(event, UnitArrived):
            came = self.arrivals.setdefault((name, event.header.stream.consumer), {})
            since = event.header.pulse - 1 if event.header.stable else event.header.since
            for pulse in range(since + 1, event.header.pulse + 1):
                came.setdefault(pulse, self.now)
        super().handle(name, event, payload)

    def _carry_out(self, node: SimNode, step: Instruction, payload: int | None) -> None:
        match step:
            case ForkReplica(replica, fork, version):
                self._fork(node, replica, fork, version)
            case FeedFork(replica, stream, number, fork, as_number):
                unit = node.disk.replicas[replica].inbox[stream, number]
                inbox = node.disk.replicas[fork].inbox
                assert (stream.home, as_number) not in inbox, f"{fork} is fed unit {as_number} of {stream} twice"
                inbox[stream.home, as_number] = unit
                self.counts["fed tentative"] += is_tentative(unit[1])
            case PauseReplica(replica):
                spark = node.sparks.pop(replica)
                assert spark.uncommitted is None, f"{replica} is paused in the middle of a micro-batch"
                self.counts["pauses"] += 1
                self.resting.add((node.me, replica))
            case UndoReplica(replica, base, valid):
                self._undo(node, replica, base, valid)
                self.resting.discard((node.me, replica))
            case DropReplica(replica) if is_fork(replica):
                # A unit that a sink is being handed is in memory; its delivery ends in any case.
                del node.disk.replicas[replica]
                node.sparks.pop(replica, None)
                self.beginning.pop((node.me, replica), None)
                self.busy.pop((node.me, replica), None)
            case DropOutbox(replica, stream, numbers) if is_fork(replica):
                for number in numbers:
                    del node.disk.replicas[replica].outbox[stream, number]
            case _:
                self._check_step(node, step, payload)
                super()._carry_out(node, step, payload)

    def _fork(self, node: SimNode, replica: ReplicaId, fork: ReplicaId, version: int) -> None:
        disk = node.disk.replicas[replica]
        assert fork not in node.disk.replicas, f"{fork} is there already"
        assert disk.committed == version, f"{replica} is at {disk.committed} and forked at {version}"
        node.disk.replicas[fork] = ReplicaDisk(committed=version, states={version: disk.states[version]})
        self.beginning[node.me, fork] = self.now + self.fork_ms
        self.counts["forks"] += 1

    def _undo(self, node: SimNode, replica: ReplicaId, base: int, valid: int) -> None:
        disk = node.disk.replicas[replica]
        assert replica not in node.sparks, f"{replica} is set back while its query runs"
        assert disk.committed == valid, f"{replica} is at {disk.committed}, not {valid}"
        for stream in self.topology.inputs(replica.shard):
            missing = [n for n in range(base + 1, valid + 1) if (stream, n) not in disk.inbox]
            assert not missing, f"{replica} is set back to {base} without units {missing} of {stream}"
        disk.committed, disk.states, disk.cuts, disk.valid = base, {base: 0}, {}, max(valid, disk.valid)
        self.counts["undos"] += 1

    def _check_step(self, node: SimNode, step: Instruction, payload: int | None) -> None:
        match step:
            case StoreUnit(replica, header, number):
                assert payload is not None and is_tentative(payload) == (not header.stable)
                if not header.stable:
                    assert number is not None
                    key = (node.me, replica, header.stream.home)
                    assert header.pulse > self.heard.get(key, 0), f"{replica} takes pulse {header.pulse} again"
                    self.heard[key] = header.pulse
                    self.counts["taken by replicas"] += 1
            case SendUnit(_, replica, header) | Deliver(replica, header):
                assert header.stable != is_fork(replica)
                if not header.stable:
                    self.counts["given"] += 1
                    self._check_given(node, header)
            case StartReplica(replica):
                self.counts["redos"] += (node.me, replica) in self.resting
                self.resting.discard((node.me, replica))
            case Report(sentence):
                self._count(node.me, sentence)

    def _count(self, name: NodeId, sentence: str) -> None:
        """What a sentence of a node says about one of its replicas, with whose name it begins."""
        replica = (name, sentence.partition(" ")[0])
        if "lacks input of" in sentence:
            self.counts["failures"] += 1
            self.counts["failures while stabilizing"] += replica in self.stabilizing
            self.stabilizing.discard(replica)
        elif "puts results after" in sentence:
            self.counts["stabilizations"] += 1
            self.stabilizing.add(replica)
        elif "has all its input again" in sentence:
            self.stabilizing.discard(replica)

    def _check_given(self, node: SimNode, header: UnitHeader) -> None:
        """What is given out is allowed by the policies, and not given too early."""
        stream = header.stream.home
        watch = self.watch_of(node, stream.producer)
        stabilizing = watch.state is Consistency.STABILIZATION
        policy = watch.how.during_stabilization if stabilizing else watch.how.during_failure
        assert policy is not Policy.SUSPEND, f"{header} is given out while {watch.state}"
        assert watch.state is not Consistency.STABLE, f"{header} is given out by a stable replica"
        if policy is Policy.DELAY and not self.mixed(watch):
            came = self.arrivals[node.me, stream.producer]
            first = min(came[pulse] for pulse in range(header.since + 1, header.pulse + 1) if pulse in came)
            assert self.now >= first + watch.how.patience_ms, f"{header} is given out after {self.now - first} ms"

    def mixed(self, watch: Watch) -> bool:
        """Whether what is held in one state may have been given out in another one."""
        return watch.how.during_failure is not watch.how.during_stabilization

    def watch_of(self, node: SimNode, shard: ShardId) -> Watch:
        return next(w for w in node.protocol.forking.watches.values() if w.replica.replica.shard == shard)

    def watches(self) -> Iterator[tuple[SimNode, Watch]]:
        for node in self.nodes.values():
            for watch in node.protocol.forking.watches.values():
                yield node, watch

    # --- what happens by itself -----------------------------------------------------------------------

    def _node_actions(self) -> Iterator[Action]:
        for action in super()._node_actions():
            if action[0] != "spark" or self.busy.get(action[1:], 0.0) <= self.now:
                yield action
        for (name, fork), ready in self.beginning.items():
            if ready <= self.now and self.runs(name):
                yield ("begin", name, fork)

    def other_wakes(self) -> list[float]:
        return [time for time in [*self.beginning.values(), *self.busy.values()] if time > self.now]

    def do_begin(self, name: NodeId, fork: ReplicaId) -> None:
        """A fork has its copy of the state, and its query starts."""
        if self.beginning.pop((name, fork), None) is not None:
            node = self.nodes[name]
            instances = instances_of(node.protocol.topology, home_shard(fork))
            node.sparks[fork] = FakeSpark(fork, instances, node.disk.replicas[fork])

    def do_spark(self, name: NodeId, replica: ReplicaId) -> None:
        if self.busy.get((name, replica), 0.0) > self.now:
            return
        super().do_spark(name, replica)
        spark = self.nodes[name].sparks.get(replica)
        if spark is not None and spark.uncommitted is not None and self.cost_ms:
            self.busy[name, replica] = self.now + self.cost_ms

    def _process(self, node: SimNode, spark: FakeSpark, number: int) -> None:
        fork = node.protocol.forking.find(spark.replica)
        if fork is None:
            inputs = node.protocol.replicas[spark.replica].inputs
            taken = [spark.disk.inbox[s, n][1] for s in inputs for n in range(spark.committed + 1, number + 1)]
            assert not any(is_tentative(content) for content in taken), f"{spark.replica} takes tentative input"
            super()._process(node, spark, number)
            return
        contents = self._cut_contents(spark, fork.inputs)
        headers = run_fork(spark, fork, number, contents, self.programs.topology(spark.consumers))
        self.handle(node.me, Produced(spark.replica, number, headers))

    def do_sink(self, name: NodeId, stream: StreamId) -> None:
        self.sink.now_ms = self.now
        if stream.home == stream:
            super().do_sink(name, stream)
        elif stream in self.nodes[name].deliveries:
            self.do_linger(name, stream)
            _, header = self.nodes[name].deliveries.pop(stream)
            self.nodes[name].lingering.discard(stream)
            self.handle(name, SinkDelivered(stream, header.number))

    def do_linger(self, name: NodeId, stream: StreamId) -> None:
        self.sink.now_ms = self.now
        node = self.nodes[name]
        if stream.home == stream:
            super().do_linger(name, stream)
        elif stream in node.deliveries and stream not in node.lingering and self.runs(name):
            fork, header = node.deliveries[stream]
            disk = node.disk.replicas.get(fork)
            found = None if disk is None else disk.outbox.get((stream, header.number))
            if found is not None:
                assert self.programs.counts(stream.home, header.generation), f"{header} does not count"
                self.counts["taken by sinks"] += self.sink.write_tentative(lane_of(stream.home), header, found[1])
            node.lingering.add(stream)

    # --- time -----------------------------------------------------------------------------------------

    def run_to(self, until_ms: float) -> None:
        """Let everything happen as soon as it can, until a moment: nothing takes time but what is said to take it."""
        while True:
            for _ in range(10_000):
                if not self._turn():
                    break
            else:
                raise AssertionError("so much cannot happen in a moment")
            if not self.advance_to(until_ms):
                return

    def advance_to(self, until_ms: float) -> bool:
        """Let time pass until something happens, but not beyond a moment; False if that is reached."""
        awake = [node for node in self.nodes.values() if not node.frozen]
        wakes = [wake for node in awake if (wake := node.protocol.next_wake_ms()) is not None] + self.other_wakes()
        if min(wakes, default=until_ms) >= until_ms:
            self.now = until_ms
            return False
        return self.advance()

    # --- sources --------------------------------------------------------------------------------------

    def entry_body(self, job: PollSources, generation: int) -> bytes:
        self.cut_ms[job.pulse] = self.now
        body = super().entry_body(job, generation)
        return json.dumps(json.loads(body) | {"away": sorted(self.away)}).encode()

    def source_units(self, source: str, entry: Entry, rows: tuple[bytes, ...]) -> dict[int, tuple[bytes, ...]]:
        if not self.topology.bucketed:
            return super().source_units(source, entry, rows)
        return {number: (bucket_body(number),) for number in buckets_of(source, entry, self.entries)}

    def reference(self) -> dict[Lane, list[tuple[str, int]]]:
        return bucketed_reference(self.topology, self.entries) if self.topology.bucketed else super().reference()

    def may_end(self) -> bool:
        return super().may_end() and not self.away

    # --- faults ---------------------------------------------------------------------------------------

    def faults(self) -> list[Action]:
        out = super().faults()
        if self.topology.bucketed:
            out = [fault for fault in out if fault[0] != "push"]
            out += [("back" if source in self.away else "leave", source) for source in self.topology.sources]
        for pair in combinations(sorted(self.nodes), 2):
            out.append(("heal" if frozenset(pair) in self.parted else "part", *pair))
        for pair, exchange in self.exchanges.items():
            if exchange.alive and exchange.client != exchange.server:
                ways: tuple[str, ...] = ("",) if exchange.stalled else DIRECTIONS
                out += [("flow" if exchange.stalled else "stall", *pair, way) for way in ways]
        for name, node in self.nodes.items():
            out += [("spoil", name, fork) for fork in node.disk.replicas if is_fork(fork)]
        return out

    def wishes(self) -> list[Action]:
        """The code of a flow whose sources go their own ways cannot be replaced."""
        return [] if self.topology.bucketed else super().wishes()

    def do_leave(self, source: str) -> None:
        """A source cannot be asked any more; what it has meanwhile comes when it is back."""
        self.away.add(source)

    def do_back(self, source: str) -> None:
        self.away.discard(source)

    def do_part(self, one: NodeId, other: NodeId) -> None:
        """Two nodes do not reach each other."""
        self.parted.add(frozenset({one, other}))
        for pair in ((one, other), (other, one)):
            if pair in self.exchanges:
                self.exchanges[pair].cut(late_messages=False)

    def do_heal(self, one: NodeId, other: NodeId) -> None:
        self.parted.discard(frozenset({one, other}))

    def may_connect(self, client: NodeId, server: NodeId) -> bool:
        return frozenset({client, server}) not in self.parted

    def do_stall(self, client: NodeId, server: NodeId, way: str) -> None:
        """What is sent over a connection, in one direction or both, does not arrive for a while."""
        self.exchanges[client, server].stalled = way

    def do_flow(self, client: NodeId, server: NodeId, _way: str = "") -> None:
        self.exchanges[client, server].stalled = ""

    def do_spoil(self, name: NodeId, fork: ReplicaId) -> None:
        """The query of a fork fails, or does not even start."""
        if self.runs(name) and fork in self.nodes[name].disk.replicas:
            self.beginning.pop((name, fork), None)
            self.nodes[name].sparks.pop(fork, None)
            self.counts["failed forks"] += 1
            self.handle(name, QueryFailed(fork, "out of memory"))

    def do_kill(self, name: NodeId) -> None:
        self.counts["killed with a fork"] += any(is_fork(replica) for replica in self.nodes[name].disk.replicas)
        super().do_kill(name)
        for times in (self.beginning, self.busy):
            for key in [key for key in times if key[0] == name]:
                del times[key]
        self.heard = {key: pulse for key, pulse in self.heard.items() if key[0] != name}
        self.resting = {key for key in self.resting if key[0] != name}
        self.stabilizing = {key for key in self.stabilizing if key[0] != name}

    def recover_all(self) -> None:
        self.away.clear()
        self.parted.clear()
        for exchange in self.exchanges.values():
            exchange.stalled = ""
        super().recover_all()

    # --- the end --------------------------------------------------------------------------------------

    def at_rest(self) -> str | None:
        return super().at_rest() or self.unsettled()

    def directories(self, node: SimNode) -> list[ReplicaId]:
        watches = node.protocol.forking.watches.values()
        ready = {watch.fork.replica for watch in watches if watch.fork is not None and stands_ready(watch)}
        return [replica for replica in super().directories(node) if replica not in ready]

    def unsettled(self) -> str | None:
        """What is still tentative, or was and is not tidied up."""
        for node, watch in self.watches():
            name, stands = watch.replica.replica, watch.state.value
            if watch.state is not Consistency.STABLE or watch.paused or (watch.fork and not stands_ready(watch)):
                return f"{name} on {node.me} is {stands}, paused: {watch.paused}, with the fork {watch.fork}"
            if name not in node.sparks or node.sparks[name].stopped:
                return f"the query of {name} on {node.me} does not run"
            if watch.uncertain or watch.outbox.waiting or watch.outbox.given:
                return f"{name} on {node.me} keeps {watch.inputs} and {watch.outbox}"
        for node in self.nodes.values():
            showing = node.protocol.forking.showing
            if any(showing.queues.values()) or showing.under_way:
                return f"{node.me} has yet to show {showing.queues} {showing.under_way}"
            for replica, disk in node.disk.replicas.items():
                kept = [key for key in disk.inbox if key[0].home != key[0]]
                if kept:
                    return f"{node.me} still has {kept} in the inbox of {replica}"
        left = {lane: found for lane, found in self.sink.tentative.items() if found}
        return f"the sink still has {left}" if left else None


def stands_ready(watch: Watch) -> bool:
    """Whether a replica has a fork although nothing is missing, for the case that something will be."""
    return watch.standing and watch.fork is not None and watch.fork.clean
