"""A simulated cluster: real ``NodeProtocol`` objects, perfect effects, and a schedule that somebody else chooses.

Everything that can happen next is listed by ``Cluster.enabled``; ``Cluster.perform`` makes one of them happen. A
schedule is nothing but a sequence of such choices, so a failing one can be replayed: by hypothesis, or by the
seed of ``run_schedule``. The invariants of the design are asserted where the facts are made: agreement and
determinism when a unit is produced or an entry committed, loss-freedom when a unit is dropped, delivery in
the sink, and that no wake-up time lies in the past after every event.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, permutations
from typing import Any

from protocol.model_parts import Exchange, FakeSpark, Sink, Store, chain, diamond, digest_of, join, mix

from unbroken.protocol.controller import next_layout
from unbroken.protocol.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.ingress import Entry, InSync, ProposeInSync
from unbroken.protocol.layout import INGRESS, Layout, Topology, chained_placement
from unbroken.protocol.messages import (
    AnswerGate,
    CommitEntry,
    Deliver,
    DropInbox,
    DropOutbox,
    Event,
    GateAsked,
    Instruction,
    InSyncChanged,
    LayoutChanged,
    LinkLost,
    LinkUp,
    PersistEntry,
    PollSources,
    Produced,
    PushArrived,
    Received,
    ReplicaStopped,
    Report,
    Send,
    SendUnit,
    SinkDelivered,
    SourcesPolled,
    StopReplica,
    StoreUnit,
    SubscriberGone,
    Tick,
    UnitArrived,
)
from unbroken.protocol.node import NodeProtocol, ProtocolSettings
from unbroken.protocol.units import UnitHeader

Action = tuple[Any, ...]
"""What can happen next: the name of a ``_do_`` method and its arguments."""

SETTINGS = ProtocolSettings(pulse_min_ms=20, pulse_max_ms=200, pulse_start_ms=40, hedge_ms=15)
GATE_WAIT_MS = 30.0


@dataclass
class SimNode:
    """A node: its protocol object and the effects around it."""

    protocol: NodeProtocol
    sparks: dict[ReplicaId, FakeSpark]
    outbox: dict[tuple[StreamId, int], int] = field(default_factory=dict)
    inbox: dict[tuple[StreamId, int], int] = field(default_factory=dict)
    jobs: deque[PollSources | CommitEntry] = field(default_factory=deque)
    pushed: list[bytes] = field(default_factory=list)
    log: dict[int, Entry] = field(default_factory=dict)
    deliveries: dict[StreamId, UnitHeader] = field(default_factory=dict)
    documents: deque[InSync | Layout] = field(default_factory=deque)
    reports: list[str] = field(default_factory=list)


class Cluster:
    """Nodes, links, a sink and a store; nothing happens unless ``perform`` is called."""

    def __init__(self, topology: Topology, nodes: int, pulses: int, settings: ProtocolSettings = SETTINGS) -> None:
        names = tuple(f"n{i}" for i in range(nodes))
        layout = chained_placement(topology, names)
        members = layout.nodes_of(INGRESS)
        sync = InSync(1, next(iter(members)), frozenset(members), 0)
        self.topology = topology
        self.pulses = pulses
        self.now = 0.0
        self.store = Store(sync, layout)
        self.sink = Sink()
        self.nodes: dict[NodeId, SimNode] = {}
        self.present: set[NodeId] = set(names)
        self.stopped: set[ReplicaId] = set()
        self.exchanges: dict[tuple[NodeId, NodeId], Exchange] = {}
        self.stale: list[Exchange] = []
        self.units: dict[tuple[StreamId, int], int] = {}
        self.entries: dict[int, Entry] = {}
        self._serial = count(1)
        for name in names:
            protocol = NodeProtocol(name, topology, layout, sync, settings)
            sparks = {r: FakeSpark(r, _instances(topology, r)) for r in protocol.replicas}
            self.nodes[name] = SimNode(protocol, sparks)
        for name in names:
            self._do_connect(name, name)

    # --- what can happen --------------------------------------------------------------------------------

    def enabled(self) -> list[Action]:
        """Every step that is not a fault, in an order that depends on nothing but the state."""
        return [*self._link_actions(), *self._node_actions(), *self._store_actions()]

    def faults(self) -> list[Action]:
        """Faults that leave at least one replica of every shard and one in-sync ingress member."""
        links = [pair for pair, e in self.exchanges.items() if e.alive and e.client != e.server]
        out: list[Action] = [("cut", *pair, late) for pair in links for late in (False, True)]
        out += [("push", name) for name in self.nodes]
        for name in self.nodes:
            doomed = {r for r, where in self.store.layout.placement.items() if where == name}
            if self._survivable(doomed) and name in self.present:
                out += [("kill", name), ("expire", name)]
        for name, node in self.nodes.items():
            for replica, spark in node.sparks.items():
                if name in self.present and not spark.stopped and self._survivable({replica}):
                    out.append(("fail", name, replica))
        return out

    def perform(self, action: Action) -> None:
        kind, *arguments = action
        getattr(self, f"_do_{kind}")(*arguments)

    def advance(self) -> bool:
        """Let time pass until the next node wants to wake up; False if none does."""
        wakes = [wake for n in self.nodes.values() if (wake := n.protocol.next_wake_ms()) is not None]
        if not wakes:
            return False
        self.now = max(self.now, min(wakes))
        for name, node in list(self.nodes.items()):
            wake = node.protocol.next_wake_ms()
            if wake is not None and wake <= self.now:
                self._handle(name, Tick())
        return True

    def _link_actions(self) -> Iterator[Action]:
        for pair in permutations(self.nodes, 2):
            if pair not in self.exchanges:
                yield ("connect", *pair)
        for exchange in [*self.exchanges.values(), *self.stale]:
            if exchange.messages and exchange.server in self.nodes:
                yield ("message", exchange)
            if exchange.units and exchange.client in self.nodes:
                yield ("unit", exchange)
            if not exchange.alive:
                if not exchange.client_noticed and exchange.client in self.nodes:
                    yield ("lost", exchange)
                if not exchange.server_noticed and exchange.server in self.nodes:
                    yield ("gone", exchange)

    def _node_actions(self) -> Iterator[Action]:
        for name, node in self.nodes.items():
            for replica, spark in node.sparks.items():
                if spark.can_ask or (not spark.stopped and (spark.round_complete or spark.uncommitted)):
                    yield ("spark", name, replica)
            if node.jobs:
                yield ("source", name)
            for stream in node.deliveries:
                yield ("sink", name, stream)

    def _store_actions(self) -> Iterator[Action]:
        if self.store.proposals:
            yield ("decide",)
        for name, node in self.nodes.items():
            if node.documents:
                yield ("document", name)
        if self._next_layout() is not None:
            yield ("control",)

    def _survivable(self, doomed: set[ReplicaId]) -> bool:
        placement = self.store.layout.placement
        gone = doomed | self.stopped | {r for r, node in placement.items() if node not in self.present}
        if any(all(r in gone for r in placement if r.shard == shard) for shard in self.topology.placed_shards):
            return False
        # Only an in-sync member can go on cutting the sources; a link that failed may have left just one.
        dead = {placement[r] for r in doomed if r.shard == INGRESS}
        return bool((self.store.sync.members & self.present) - dead)

    # --- steps: links -----------------------------------------------------------------------------------

    def _do_connect(self, client: NodeId, server: NodeId) -> None:
        self.exchanges[client, server] = Exchange(client, server)
        self._handle(client, LinkUp(server))

    def _do_message(self, exchange: Exchange) -> None:
        message = exchange.messages.popleft()
        self._handle(exchange.server, Received(exchange.client, message))

    def _do_unit(self, exchange: Exchange) -> None:
        header = exchange.units.popleft()
        content = self.nodes[exchange.server].outbox.get((header.stream, header.number))
        if content is not None:  # otherwise trimmed since: everybody who counts has it
            self._handle(exchange.client, UnitArrived(header, exchange.server), content)

    def _do_cut(self, client: NodeId, server: NodeId, late_messages: bool) -> None:
        self.exchanges[client, server].cut(late_messages=late_messages)

    def _do_lost(self, exchange: Exchange) -> None:
        """The client notices the end of its link and may connect again, even before the server notices."""
        exchange.client_noticed = True
        if self.exchanges.get((exchange.client, exchange.server)) is exchange:
            del self.exchanges[exchange.client, exchange.server]
            if not exchange.server_noticed:
                self.stale.append(exchange)
        self._handle(exchange.client, LinkLost(exchange.server))

    def _do_gone(self, exchange: Exchange) -> None:
        """The server notices. A connection that has replaced this one keeps its subscriptions."""
        exchange.server_noticed = True
        exchange.messages.clear()
        if exchange in self.stale:
            self.stale.remove(exchange)
        current = self.exchanges.get((exchange.client, exchange.server))
        if current is None or current is exchange:
            self._handle(exchange.server, SubscriberGone(exchange.client))

    # --- steps: queries, sources, sinks -----------------------------------------------------------------

    def _do_spark(self, name: NodeId, replica: ReplicaId) -> None:
        node = self.nodes[name]
        spark = node.sparks[replica]
        if spark.uncommitted is not None:
            spark.commit()
        elif spark.round_complete:
            number = spark.end_round()
            if number is not None:
                self._process(node, spark, number)
                return
        instance = spark.instances[len(spark.answers)]
        spark.ticket = next(self._serial)
        question = GateAsked(replica, instance, spark.committed, spark.ticket, self.now + GATE_WAIT_MS)
        self._handle(name, question)

    def _process(self, node: SimNode, spark: FakeSpark, number: int) -> None:
        inputs = self.topology.inputs(spark.replica.shard)
        contents = {stream: node.inbox[stream, number] for stream in inputs}
        header = node.protocol.replicas[spark.replica].cut_header(number)
        assert header is not None
        outputs = spark.process(number, contents, self.topology.outputs(spark.replica.shard))
        faithful = spark.corrupt_from is None
        headers = [
            self._write(node, stream, number, content, header.final, faithful)
            for stream, content in outputs.items()
        ]
        self._handle(node.protocol.me, Produced(spark.replica, number, tuple(headers)))

    def _write(
        self, node: SimNode, stream: StreamId, number: int, content: int, final: bool, faithful: bool = True
    ) -> UnitHeader:
        """Agreement, determinism, stability: the same unit has the same content wherever it is produced."""
        if faithful:
            known = self.units.setdefault((stream, number), content)
            assert known == content, f"unit {number} of {stream} differs on {node.protocol.me}"
        node.outbox[stream, number] = content
        return UnitHeader(stream, number, number, number, digest_of(content), final=final)

    def _do_source(self, name: NodeId) -> None:
        node = self.nodes[name]
        job = node.jobs.popleft()
        if isinstance(job, PollSources):
            body = f"pulse {job.pulse} polled as number {next(self._serial)}".encode()
            self._handle(name, SourcesPolled(job.pulse, body, final=job.pulse >= self.pulses))
        elif not job.entry.pulse:
            node.pushed.append(job.entry.body)
        else:
            self._cut_sources(node, job.entry)

    def _cut_sources(self, node: SimNode, entry: Entry) -> None:
        rows, node.pushed = (entry.body, *node.pushed), []
        headers = [
            self._write(node, stream, entry.pulse, mix(rows, str(stream)), entry.final)
            for source in self.topology.sources
            for stream in self.topology.outputs(ShardId(source, 0))
        ]
        me = node.protocol.me
        replica = next(r for r, n in self.store.layout.placement.items() if n == me and r.shard == INGRESS)
        self._handle(me, Produced(replica, entry.pulse, tuple(headers)))

    def _do_sink(self, name: NodeId, stream: StreamId) -> None:
        node = self.nodes[name]
        header = node.deliveries.pop(stream)
        self.sink.write(stream, header.number, node.outbox[stream, header.number])
        self._handle(name, SinkDelivered(stream, header.number))

    def _do_push(self, name: NodeId) -> None:
        self._handle(name, PushArrived(f"rows {next(self._serial)}".encode()))

    # --- steps: store and faults ------------------------------------------------------------------------

    def _do_decide(self) -> None:
        proposer, accepted = self.store.decide()
        for name, node in self.nodes.items():
            if accepted or name == proposer:
                node.documents.append(self.store.sync)

    def _do_document(self, name: NodeId) -> None:
        document = self.nodes[name].documents.popleft()
        self._handle(name, InSyncChanged(document) if isinstance(document, InSync) else LayoutChanged(document))

    def _do_control(self) -> None:
        decision = self._next_layout()
        assert decision is not None
        self.store.layout = decision
        for node in self.nodes.values():
            node.documents.append(decision)

    def _next_layout(self) -> Layout | None:
        decision = next_layout(self.topology, len(self.nodes), self.present, self.store.layout, self.stopped)
        return None if decision is None else decision[0]

    def _do_kill(self, name: NodeId) -> None:
        """The node is gone with everything it had; the others find out one by one."""
        del self.nodes[name]
        self.present.discard(name)
        self.store.proposals = deque(p for p in self.store.proposals if p[0] != name)
        for pair, exchange in list(self.exchanges.items()):
            if name in pair:
                exchange.cut(late_messages=name == exchange.client)
                if name == exchange.client:
                    self.stale.append(self.exchanges.pop(pair))

    def _do_expire(self, name: NodeId) -> None:
        """The node lives on, but its session has ended: the layout will give its replicas up."""
        self.present.discard(name)

    def _do_fail(self, name: NodeId, replica: ReplicaId) -> None:
        """A query fails on a node that is well."""
        self._stop_spark(self.nodes[name], replica)
        self._handle(name, ReplicaStopped(replica, "the query failed"))

    def _stop_spark(self, node: SimNode, replica: ReplicaId) -> None:
        node.sparks[replica].stopped = True
        self.stopped.add(replica)

    # --- carrying out -----------------------------------------------------------------------------------

    def _handle(self, name: NodeId, event: Event, payload: int | None = None) -> None:
        node = self.nodes[name]
        for step in node.protocol.handle(event, self.now):
            self._carry_out(node, step, payload)
        node.protocol.check()
        wake = node.protocol.next_wake_ms()
        assert wake is None or wake > self.now, f"{name} wants to wake at {wake}, it is {self.now}: {event}"

    def _carry_out(self, node: SimNode, step: Instruction, payload: int | None) -> None:
        me = node.protocol.me
        match step:
            case Send(to, message):
                if (link := self.exchanges.get((me, to))) is not None and link.alive:
                    link.messages.append(message)
            case SendUnit(to, header):
                if (link := self.exchanges.get((to, me))) is not None and link.alive:
                    link.units.append(header)
            case StoreUnit(header):
                assert payload is not None
                assert (header.stream, header.number) not in node.inbox, "a unit was accepted twice"
                node.inbox[header.stream, header.number] = payload
            case DropInbox(stream, numbers):
                for number in numbers:
                    del node.inbox[stream, number]
            case DropOutbox(stream, numbers):
                self._drop_outbox(node, stream, numbers)
            case AnswerGate(ticket, offset):
                for spark in node.sparks.values():
                    if spark.ticket == ticket:
                        spark.answer(offset)
            case Deliver(header):
                assert header.stream not in node.deliveries, f"{me}: two deliveries of {header.stream} at once"
                assert (header.stream, header.number) in node.outbox
                node.deliveries[header.stream] = header
            case PollSources():
                assert not any(isinstance(job, PollSources) for job in node.jobs), f"{me} polls twice"
                node.jobs.append(step)
            case PersistEntry(entry):
                node.log[entry.index] = entry
            case CommitEntry(entry):
                assert node.log[entry.index] == entry, f"{me} commits what is not on its disk"
                known = self.entries.setdefault(entry.index, entry)
                assert known == entry, f"{me} commits another entry {entry.index}: {entry}, not {known}"
                node.jobs.append(step)
            case ProposeInSync():
                self.store.proposals.append((me, step))
            case StopReplica(replica):
                self._stop_spark(node, replica)
            case Report(sentence):
                node.reports.append(sentence)

    def _drop_outbox(self, node: SimNode, stream: StreamId, numbers: tuple[int, ...]) -> None:
        """Loss-free: nobody who counts, here or in the store, may still need what is dropped."""
        for number in numbers:
            del node.outbox[stream, number]
        last = max(numbers)
        if self.topology.is_sink(stream.consumer):
            assert len(self.sink.written.get(stream, ())) >= last, f"unit {last} of {stream} dropped undelivered"
            return
        counted = node.protocol.layout.counted(stream.consumer)
        for consumer, spark in self._live_sparks(stream.consumer):
            if consumer in counted:
                assert spark.committed >= last, f"unit {last} of {stream} dropped before {consumer} committed it"

    def _live_sparks(self, shard: ShardId) -> Iterator[tuple[ReplicaId, FakeSpark]]:
        for node in self.nodes.values():
            for replica, spark in node.sparks.items():
                if replica.shard == shard:
                    yield replica, spark

    # --- invariants of the whole --------------------------------------------------------------------------

    def check(self) -> None:
        """Loss-free, globally: whoever counts finds its next unit at some live producer, or it is yet to come."""
        for node in self.nodes.values():
            node.protocol.check()
            for replica in node.protocol.replicas.values():
                if replica.replica in self.store.layout.lost or replica.stopped is not None:
                    continue
                for stream, inbox in replica.inboxes.items():
                    bases = self._bases(stream)
                    assert not bases or min(bases) <= inbox.available, (
                        f"unit {inbox.available + 1} of {stream} is needed by {replica.replica} and dropped everywhere"
                    )

    def _bases(self, stream: StreamId) -> list[int]:
        boxes = [node.protocol.outboxes.get(stream) for node in self.nodes.values()]
        return [box.base for box in boxes if box is not None and not box.muted]

    # --- the end of a schedule --------------------------------------------------------------------------

    def settle(self, bound: int = 3_000) -> None:
        """No more faults: whatever can happen happens, in turn, until the flow is at rest. Then check progress."""
        for _ in range(bound):
            actions = self.enabled()
            for action in actions:
                self._perform_if_possible(action)
            if not actions and (self.done() or not self.advance()):
                break
        else:
            raise AssertionError(f"not at rest after {bound} turns")
        self.check()
        self.check_progress()

    def _perform_if_possible(self, action: Action) -> None:
        """Carry out a step of this turn unless an earlier one of the same turn has made it impossible."""
        match action:
            case ("message", exchange):
                possible = bool(exchange.messages)
            case ("unit", exchange):
                possible = bool(exchange.units)
            case ("spark", name, replica):
                possible = not self.nodes[name].sparks[replica].stopped
            case _:
                possible = True
        if possible:
            self.perform(action)

    def done(self) -> bool:
        delivered = all(len(self.sink.written.get(s, ())) >= self.pulses for s in self._sink_streams())
        return delivered and all(spark.committed >= self.pulses for spark in self._counted_sparks())

    def _counted_sparks(self) -> Iterator[FakeSpark]:
        for shard in self.topology.placed_shards:
            for replica, spark in self._live_sparks(shard):
                if replica not in self.store.layout.lost and not spark.stopped:
                    yield spark

    def check_progress(self) -> None:
        """Every pulse that was agreed has reached the sink, and the flow has come to its end."""
        agreed = max((entry.pulse for entry in self.entries.values()), default=0)
        assert agreed == self.pulses, f"only {agreed} of {self.pulses} pulses were agreed"
        assert sorted(self.entries) == list(range(1, len(self.entries) + 1)), "the ingress log has a hole"
        for stream in self._sink_streams():
            written = self.sink.written.get(stream, [])
            expected = [self.units[stream, number] for number in range(1, agreed + 1) if (stream, number) in self.units]
            assert written == expected, f"{len(written)} of {agreed} units of {stream} are in the sink"
            assert len(written) == agreed, f"{len(written)} of {agreed} units of {stream} are in the sink"
        assert all(spark.committed == agreed for spark in self._counted_sparks()), "a replica was left behind"
        for replica in self.store.layout.placement:
            if replica not in self.store.layout.lost:
                self._check_trimmed(replica)

    def _check_trimmed(self, replica: ReplicaId) -> None:
        """At rest everybody has acknowledged everything, so nothing is kept for anybody."""
        node = self.nodes.get(self.store.layout.placement[replica])
        for stream, outbox in () if node is None else node.protocol.outboxes.items():
            if self.topology.host_shard(stream.producer) == replica.shard and not outbox.muted:
                assert not outbox.headers, f"{replica} still keeps {list(outbox.headers)} of {stream}"

    def _sink_streams(self) -> list[StreamId]:
        return [stream for stream in self.topology.streams if self.topology.is_sink(stream.consumer)]


def _instances(topology: Topology, replica: ReplicaId) -> tuple[str, ...]:
    """A query has one source instance per part it reads."""
    return tuple(dict.fromkeys(stream.producer.part for stream in topology.inputs(replica.shard)))


# --- schedules ------------------------------------------------------------------------------------------

FAULT_CHANCE = 0.02
TIME_CHANCE = 0.1


def pick_cluster(choose: Callable[[int], int]) -> Cluster:
    """A small random topology on 2 to 4 nodes."""
    nodes = 2 + choose(3)
    replicas = 2 + choose(nodes - 1)
    kind = choose(4)
    if kind == 0:
        topology = join(1 + choose(2), replicas)
    elif kind == 1:
        topology = diamond(1 + choose(2), replicas)
    else:
        topology = chain(tuple(1 + choose(3) for _ in range(1 + choose(3))), replicas)
    return Cluster(topology, nodes, pulses=3 + choose(6))


def run_schedule(seed: int, steps: int = 400, fault_chance: float = FAULT_CHANCE) -> Cluster:
    """A random schedule with faults, then a quiet end. The same seed gives the same schedule."""
    rng = random.Random(seed)
    cluster = pick_cluster(rng.randrange)
    try:
        for step in range(steps):
            actions = cluster.enabled()
            if rng.random() < fault_chance:
                cluster.perform(rng.choice(cluster.faults()))
                cluster.check()
            elif not actions or rng.random() < TIME_CHANCE:
                cluster.advance()
            else:
                cluster.perform(rng.choice(actions))
            if step % 20 == 0:
                cluster.check()
        cluster.settle()
    except Exception as error:
        raise AssertionError(f"run_schedule(seed={seed}, steps={steps}): {error}") from error
    return cluster
