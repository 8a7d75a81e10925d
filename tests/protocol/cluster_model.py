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
from itertools import permutations
from typing import Any

from protocol.cluster_effects import ClusterEffects, SimNode
from protocol.model_parts import Exchange, FakeSpark, chain, diamond, join, mix
from unbroken.protocol.controller import next_layout
from unbroken.protocol.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.ingress import Entry, InSync
from unbroken.protocol.layout import INGRESS, Layout
from unbroken.protocol.messages import (
    GateAsked,
    InSyncChanged,
    LayoutChanged,
    LinkLost,
    PollSources,
    Produced,
    PushArrived,
    Received,
    ReplicaStopped,
    SinkDelivered,
    SourcesPolled,
    SubscriberGone,
    Tick,
    UnitArrived,
)

Action = tuple[Any, ...]
"""What can happen next: the name of a ``_do_`` method and its arguments."""

GATE_WAIT_MS = 30.0


class Cluster(ClusterEffects):
    """A cluster in which nothing happens unless ``perform`` is called."""

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
        self._connect(client, server)

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
            self._write(node, stream, number, content, header.final, faithful) for stream, content in outputs.items()
        ]
        self._handle(node.protocol.me, Produced(spark.replica, number, tuple(headers)))

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

    # --- the end of a schedule --------------------------------------------------------------------------

    def settle(self, bound: int = 3_000) -> None:
        """No more faults: whatever can happen happens, in turn, until the flow is at rest. Then check progress."""
        for _ in range(bound):
            if not self._turn() and (self.done() or not self.advance()):
                break
        else:
            raise AssertionError(f"not at rest after {bound} turns")
        self.check()
        self.check_progress()

    def run_turns(self, turns: int) -> None:
        """Let everything happen in turn; time passes when nothing else can."""
        for _ in range(turns):
            if not self._turn():
                self.advance()

    def _turn(self) -> bool:
        actions = self.enabled()
        for action in actions:
            self.perform_if_possible(action)
        return bool(actions)

    def perform_if_possible(self, action: Action) -> None:
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
                cluster.perform(_pick_fault(cluster, rng))
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


def _pick_fault(cluster: Cluster, rng: random.Random) -> Action:
    """A kind of fault first: there are many links to cut and few nodes to kill."""
    faults = cluster.faults()
    kind = rng.choice(sorted({fault[0] for fault in faults}))
    return rng.choice([fault for fault in faults if fault[0] == kind])
