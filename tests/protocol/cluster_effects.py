"""The effects of the simulated cluster: what instructions do, and the invariants that are asserted as they are done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from protocol.model_parts import Exchange, FakeSpark, Sink, Store, digest_of
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
    Instruction,
    LinkUp,
    PersistEntry,
    PollSources,
    Report,
    Send,
    SendUnit,
    StopReplica,
    StoreUnit,
)
from unbroken.protocol.node import NodeProtocol, ProtocolSettings
from unbroken.protocol.units import UnitHeader

SETTINGS = ProtocolSettings(pulse_min_ms=20, pulse_max_ms=200, pulse_start_ms=40, hedge_ms=15)


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


class ClusterEffects:
    """Nodes, links, a sink and a store. Events go into a node and its instructions are carried out at once."""

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
            self._connect(name, name)

    def _connect(self, client: NodeId, server: NodeId) -> None:
        self.exchanges[client, server] = Exchange(client, server)
        self._handle(client, LinkUp(server))

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

    def _write(
        self, node: SimNode, stream: StreamId, number: int, content: int, final: bool, faithful: bool = True
    ) -> UnitHeader:
        """Agreement, determinism, stability: the same unit has the same content wherever it is produced."""
        if faithful:
            known = self.units.setdefault((stream, number), content)
            assert known == content, f"unit {number} of {stream} differs on {node.protocol.me}"
        node.outbox[stream, number] = content
        return UnitHeader(stream, number, number, number, digest_of(content), final=final)

    def _stop_spark(self, node: SimNode, replica: ReplicaId) -> None:
        node.sparks[replica].stopped = True
        self.stopped.add(replica)

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


def _instances(topology: Topology, replica: ReplicaId) -> tuple[str, ...]:
    """A query has one source instance per part it reads."""
    return tuple(dict.fromkeys(stream.producer.part for stream in topology.inputs(replica.shard)))
