"""What can happen in the simulated cluster by itself: everything that is neither a fault nor a user's wish.

``enabled`` lists every step that can be taken next, ``perform`` takes one of them. A schedule is nothing but a sequence
of such choices, so a failing one can be replayed: by hypothesis, or by the seed of ``schedules.run_schedule``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import permutations
from typing import Any

from protocol.cluster_effects import ClusterEffects, SimNode, Transfer
from protocol.model_parts import Exchange, FakeSpark, Window, memory_of, no_rows, source_unit
from protocol.sim_programs import Origin, generation_asked, lane_of, layout_asked, pulse_body
from unbroken.protocol.events import (
    EntriesPersisted,
    FetchFailed,
    GateAsked,
    InSyncChanged,
    LayoutChanged,
    LinkLost,
    PinAsked,
    Produced,
    Received,
    SinkDelivered,
    SnapshotTaken,
    SourcesPolled,
    StateArrived,
    SubscriberGone,
    Tick,
    UnitArrived,
)
from unbroken.protocol.ingress.log import Entry, InSync, ProposeInSync
from unbroken.protocol.instructions import Lead, PollSources, Publish
from unbroken.protocol.leader.orders import OrderRefused
from unbroken.protocol.placement.upgrade import coming_shards
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Layout

Action = tuple[Any, ...]
"""What can happen next: the name of a ``do_`` method and its arguments."""


class ClusterSteps(ClusterEffects):
    """A cluster in which nothing happens unless ``perform`` is called. Questions to gates wait ``gate_wait_ms``."""

    gate_wait_ms = 30.0

    def enabled(self) -> list[Action]:
        """Every step that is not a fault, in an order that depends on nothing but the state."""
        return [*self._link_actions(), *self._node_actions(), *self._store_actions()]

    def perform(self, action: Action) -> None:
        """Take a step; nothing happens if it was possible a moment ago and is not any more."""
        kind, *arguments = action
        getattr(self, f"do_{kind}")(*arguments)

    def advance(self) -> bool:
        """Let time pass until the next node wants to wake up; False if none does."""
        awake = [node for node in self.nodes.values() if not node.frozen]
        wakes = [wake for node in awake if (wake := node.protocol.next_wake_ms()) is not None]
        wakes += self.other_wakes()
        if not wakes:
            return False
        self.now = max(self.now, min(wakes))
        for node in awake:
            wake = node.protocol.next_wake_ms()
            if wake is not None and wake <= self.now:
                self.handle(node.me, Tick())
        return True

    def other_wakes(self) -> list[float]:
        """When something happens by itself for another reason."""
        return []

    def runs(self, name: NodeId) -> bool:
        return name in self.nodes and not self.nodes[name].frozen

    def _link_actions(self) -> Iterator[Action]:
        awake = [name for name in self.nodes if self.runs(name)]
        for pair in permutations(awake, 2):
            if pair not in self.exchanges and self.may_connect(*pair):
                yield ("connect", *pair)
        for exchange in [*self.exchanges.values(), *self.stale]:
            if exchange.carries("messages") and self.runs(exchange.server):
                yield ("message", exchange)
            if exchange.carries("units") and self.runs(exchange.client):
                yield ("unit", exchange)
            if not exchange.alive:
                if not exchange.client_noticed and self.runs(exchange.client):
                    yield ("lost", exchange)
                if not exchange.server_noticed and self.runs(exchange.server):
                    yield ("gone", exchange)

    def _node_actions(self) -> Iterator[Action]:
        for name, node in self.nodes.items():
            if node.frozen:
                continue
            for replica, spark in node.sparks.items():
                if spark.can_step:
                    yield ("spark", name, replica)
            if node.jobs:
                yield ("source", name)
            if node.writing:
                yield ("force", name)
            if node.requests:
                yield ("request", name)
            for shard, follower in node.following.items():
                if not node.blind and follower.lags(self.logs[shard]):
                    yield ("read", name, shard)
            for stream in node.deliveries:
                yield ("sink", name, stream)
            for transfer in node.transfers:
                if self._can_move(transfer):
                    yield ("transfer", name, transfer)

    def _can_move(self, transfer: Transfer) -> bool:
        """A frozen donor lets its newcomer wait; one that is gone fails it."""
        if transfer.stage in ("copied", "failed") or transfer.donor is None:
            return True
        if transfer.stage == "waiting":
            return self.nodes.get(transfer.donor) is not transfer.process
        return transfer.donor not in self.nodes or self.runs(transfer.donor)

    def _store_actions(self) -> Iterator[Action]:
        if self.orphans:
            yield ("orphan",)
        if self.late:
            yield ("late",)
        for name, node in self.nodes.items():
            if node.blind:
                continue
            if name in self.store.present and not node.frozen:
                if node.writes:
                    yield ("write", name)
                if node.documents:
                    yield ("document", name, False)
                if len(node.documents) > 1:
                    yield ("document", name, True)
            elif not node.frozen:
                yield ("return", name)
        for name in self.store.present:
            if name not in self.nodes and self.may_forget(name):
                yield ("forget", name)
        if self.store.decision(self.now) is not None:
            yield ("control",)

    # --- links ----------------------------------------------------------------------------------------

    def may_connect(self, _client: NodeId, _server: NodeId) -> bool:
        return True

    def do_connect(self, client: NodeId, server: NodeId) -> None:
        if (client, server) not in self.exchanges and self.may_connect(client, server):
            self.connect(client, server)

    def do_message(self, exchange: Exchange) -> None:
        if exchange.carries("messages"):
            self.handle(exchange.server, Received(exchange.client, exchange.messages.popleft()))

    def do_unit(self, exchange: Exchange) -> None:
        if not exchange.carries("units"):
            return
        owner, header = exchange.units.popleft()
        held = self.nodes[exchange.server].disk.replicas.get(owner)
        found = None if held is None else held.outbox.get((header.stream, header.number))
        if found is not None:  # otherwise trimmed since: everybody who counts has it
            self.handle(exchange.client, UnitArrived(header, exchange.server, header.size), found[1])

    def do_lost(self, exchange: Exchange) -> None:
        """The client notices the end of its link and may connect again, even before the server notices."""
        exchange.client_noticed = True
        if self.exchanges.get((exchange.client, exchange.server)) is exchange:
            del self.exchanges[exchange.client, exchange.server]
            if not exchange.server_noticed:
                self.stale.append(exchange)
        self.handle(exchange.client, LinkLost(exchange.server))

    def do_gone(self, exchange: Exchange) -> None:
        """The server notices. A connection that has replaced this one keeps its subscriptions."""
        exchange.server_noticed = True
        exchange.messages.clear()
        if exchange in self.stale:
            self.stale.remove(exchange)
        current = self.exchanges.get((exchange.client, exchange.server))
        if current is None or current is exchange:
            self.handle(exchange.server, SubscriberGone(exchange.client))

    # --- queries, sources, sinks ----------------------------------------------------------------------

    def do_spark(self, name: NodeId, replica: ReplicaId) -> None:
        node = self.nodes[name]
        spark = node.sparks.get(replica)
        if spark is None or not spark.can_step:
            return
        if spark.uncommitted is not None:
            spark.commit()
        elif spark.round_complete:
            number = spark.end_round()
            if number is not None:
                self._process(node, spark, number)
                return
        instance = spark.instances[len(spark.answers)]
        spark.ticket = next(self.serial)
        noted = spark.disk.cuts.get(spark.committed, {})
        question = GateAsked(replica, instance, spark.committed, spark.ticket, self.now + self.gate_wait_ms, noted)
        self.handle(name, question)

    def _process(self, node: SimNode, spark: FakeSpark, number: int) -> None:
        disk, shard = spark.disk, spark.replica.shard
        state = node.protocol.replicas[spark.replica]
        header = state.cut_header(number, spark.cut)
        assert header is not None
        if state.plain:
            generations = {disk.inbox[stream, number][0].generation for stream in state.inputs}
            assert generations == {header.generation}, f"{shard}: mixed generations"
            numbers = range(spark.committed + 1, number + 1)
            contents = {n: {stream: [disk.inbox[stream, n][1]] for stream in state.inputs} for n in numbers}
        else:
            contents = {number: self._cut_contents(spark, state.inputs)}
        topology = self.programs.topology(spark.consumers)
        strategy, before = memory_of(topology, shard.part), disk.states[spark.committed]
        watermark = before.watermark(number, strategy) if isinstance(before, Window) else 0
        outputs = spark.process(contents, topology.outputs(shard), strategy, together=header.fold > 0)
        headers = []
        for stream, content in outputs.items():
            box = node.protocol.outboxes.boxes.get(stream)
            # What is processed again to build a state is not for anybody.
            faithful = spark.corrupt_from is None and (box is None or number > max(box.base, disk.valid))
            facts = (header.generation, header.layout, faithful)
            cut: dict[str, Any] = {"cut_ms": header.cut_ms, "fold": header.fold}
            for between in range(spark.committed + 1, number) if header.fold else ():
                nothing = no_rows(stream, between)
                headers.append(self.write_unit(disk, stream, between, nothing, False, *facts, between, **cut))
            headers.append(self.write_unit(disk, stream, number, content, header.final, *facts, header.pulse, **cut))
        self.handle(node.me, Produced(spark.replica, number, tuple(headers), watermark))

    def _cut_contents(self, spark: FakeSpark, inputs: Sequence[StreamId]) -> dict[StreamId, list[int]]:
        """The units of a cut that is more than one number."""
        disk, cut = spark.disk, spark.cut
        return {
            stream: [disk.inbox[stream, n][1] for n in range(disk.taken(stream) + 1, cut[stream].unit + 1)]
            for stream in inputs
        }

    def do_request(self, name: NodeId) -> None:
        """What a node wants of an order log gets there; out of reach of the log it is refused."""
        node = self.nodes[name]
        if not node.requests:
            return
        request = node.requests.popleft()
        if node.blind:
            self.handle(name, OrderRefused(request.shard, request.term, "the log is away"))
        else:
            self._take(name, request)

    def do_late(self) -> None:
        """The same for what a node had sent before it died."""
        if self.late:
            name, process, request = self.late.popleft()
            self.logs[request.shard].take(name, process, request)

    def _take(self, name: NodeId, request: Lead | Publish) -> None:
        refused = self.logs[request.shard].take(name, self.nodes[name], request)
        if refused is not None:
            self.handle(name, refused)

    def do_read(self, name: NodeId, shard: ShardId) -> None:
        follower = self.nodes[name].following.get(shard)
        news = None if follower is None else follower.next(self.logs[shard], self.nodes[name])
        if news is not None:
            self.handle(name, news)

    def do_force(self, name: NodeId) -> None:
        """Everything that waits to be written to the ingress log is on disk."""
        node = self.nodes[name]
        if not node.writing:
            return
        assert node.protocol.ingress is not None
        done = list(node.writing)
        node.writing.clear()
        for step in done:
            node.disk.replicas[node.protocol.ingress].persist(step.entry)
        self.handle(name, EntriesPersisted(done[0].life, len(done)))

    def do_source(self, name: NodeId) -> None:
        node = self.nodes[name]
        if not node.jobs:
            return
        job = node.jobs.popleft()
        if isinstance(job, PollSources):
            body = self.entry_body(job, self._generation(node, job.generation))
            self.handle(name, SourcesPolled(job.pulse, body, final=job.pulse >= self.pulses and self.may_end()))
        elif not job.entry.pulse:
            node.pushed.append(job.entry.body)
        else:
            self._cut_sources(node, job.entry)

    def entry_body(self, job: PollSources, generation: int) -> bytes:
        """What the sources say when they are asked for a pulse."""
        return pulse_body(job.pulse, generation, next(self.serial), job.layout)

    def _generation(self, node: SimNode, wanted: int) -> int:
        """Generations never go back, whoever leads."""
        assert node.protocol.ingress is not None
        written = [step.entry.body for step in node.writing if step.entry.pulse]
        last = written[-1] if written else node.disk.replicas[node.protocol.ingress].last_pulse()
        return max(wanted, 1 if last is None else int(json.loads(last)["generation"]))

    def may_end(self) -> bool:
        """Whether the sources may come to an end: not while other code is on its way that can get there, unless they
        are hasty."""
        return self.hasty or not self.upgrading() or len(self.fit()) < max(self.topology.replicas.values())

    def upgrading(self) -> bool:
        layout = self.store.layout
        return len(layout.generations) > 1 or self.store.wished not in (None, layout.generation)

    def fit(self) -> set[NodeId]:
        """The nodes that can take replicas."""
        return {name for name in self.store.present if name in self.nodes and name not in self.store.draining}

    def _cut_sources(self, node: SimNode, entry: Entry) -> None:
        replica = node.protocol.ingress
        assert replica is not None
        disk = node.disk.replicas[replica]
        rows, node.pushed, node.cut = (entry.body, *node.pushed), [], entry.pulse
        topology = self.programs.topology(node.generations)
        facts = (generation_asked(entry), layout_asked(entry))
        headers = []
        for source in topology.sources:
            units = self.source_units(source, entry, rows)
            fold = max(units, default=0) if topology.bucketed else 0
            for number, taken in units.items():
                ends = entry.final and number == max(units)
                cut: dict[str, Any] = {"cut_ms": entry.pulse, "fold": fold}
                for stream in topology.outputs(ShardId(source, 0)):
                    unit = source_unit(stream, taken)
                    headers.append(self.write_unit(disk, stream, number, unit, ends, *facts, **cut))
        self.handle(node.me, Produced(replica, entry.pulse, tuple(headers)))

    def source_units(self, _source: str, entry: Entry, rows: tuple[bytes, ...]) -> dict[int, tuple[bytes, ...]]:
        """The units that a source makes with an entry of the log."""
        return {entry.pulse: rows}

    def do_sink(self, name: NodeId, stream: StreamId) -> None:
        node = self.nodes[name]
        if stream not in node.deliveries:
            return
        self.do_linger(name, stream)
        _, header = node.deliveries.pop(stream)
        node.lingering.discard(stream)
        self.handle(name, SinkDelivered(stream, header.number))

    def do_linger(self, name: NodeId, stream: StreamId) -> None:
        """A sink has a unit, and its node does not know that yet."""
        node = self.nodes[name]
        if not self.runs(name) or stream not in node.deliveries or stream in node.lingering:
            return
        replica, header = node.deliveries[stream]
        content = node.disk.replicas[replica].outbox[stream, header.number][1]
        assert self.programs.counts(stream, header.generation), f"unit {header.number} of {stream} does not count"
        self.sink.write(lane_of(stream), header.number, stream.producer.part, content)
        node.lingering.add(stream)

    # --- state on its way -----------------------------------------------------------------------------

    def do_transfer(self, name: NodeId, transfer: Transfer) -> None:
        """The next stage of a copy: asked, pinned, copied, arrived. Without its donor it fails."""
        node = self.nodes[name]
        if transfer not in node.transfers or not self._can_move(transfer):
            return
        if transfer.donor is None and transfer.stage == "asked":
            transfer.stage, transfer.pinned = "pinned", deepcopy(self.snapshots[transfer.replica.shard])
        elif transfer.donor is not None and transfer.stage != "copied":
            gone = transfer.donor not in self.nodes
            if gone or (transfer.stage == "waiting" and self.nodes[transfer.donor] is not transfer.process):
                transfer.stage = "failed"
        match transfer.stage:
            case "asked":
                assert transfer.donor is not None
                transfer.ticket, transfer.stage = next(self.serial), "waiting"
                transfer.process = self.nodes[transfer.donor]
                wanted = (transfer.least, transfer.needs)
                self.handle(transfer.donor, PinAsked(transfer.shard, name, transfer.ticket, *wanted))
                assert transfer.stage != "waiting" or any(wanted), f"{transfer.donor} did not answer {transfer}"
            case "pinned":
                transfer.stage = "copied"
            case "copied":
                assert transfer.pinned is not None
                node.transfers.remove(transfer)
                node.disk.replicas[transfer.replica] = transfer.pinned
                state = transfer.pinned.recover(transfer.replica)
                self.handle(name, StateArrived(transfer.replica, state, transfer.donor, 1))
            case "failed":
                node.transfers.remove(transfer)
                self.handle(name, FetchFailed(transfer.replica, transfer.donor, "the transfer failed"))

    def do_snapshot(self, name: NodeId, shard: ShardId) -> None:
        """A node saves the state of a shard where it outlives all replicas."""
        ticket = next(self.serial)
        self.saving.add(ticket)
        self.handle(name, PinAsked(shard, name, ticket))
        self.handle(name, SnapshotTaken(shard, self.snapshots[shard].committed))

    # --- the store ------------------------------------------------------------------------------------

    def do_write(self, name: NodeId) -> None:
        if name not in self.store.present or not self.nodes[name].writes:
            return
        step, ingress = self.nodes[name].writes.popleft()
        changed = self.store.write(step, ingress)
        if changed:
            self._tell_all(self.store.sync)
        elif isinstance(step, ProposeInSync):
            self.nodes[name].documents.append(self.store.sync)

    def do_orphan(self) -> None:
        """Something that a process wrote just before it ended reaches the store."""
        if self.orphans and self.store.write(*self.orphans.popleft()):
            self._tell_all(self.store.sync)

    def do_document(self, name: NodeId, skip: bool) -> None:
        """A node sees a document; it may see only the newest ones."""
        node = self.nodes[name]
        if not node.documents or name not in self.store.present:
            return
        if skip:
            newest = {type(document): document for document in node.documents}
            node.documents.clear()
            node.documents.extend(newest.values())
        document = node.documents.popleft()
        if isinstance(document, InSync):
            self.handle(name, InSyncChanged(document))
        else:
            self.handle(name, LayoutChanged(document, self.programs.topology(document.generations)))

    def do_control(self) -> None:
        decision = self.store.decision(self.now)
        if decision is not None:
            before = self.store.layout
            self.store.publish(decision)
            self.changed_at = max((entry.pulse for entry in self.entries.values()), default=0)
            self._check_generations(before, self.store.layout)
            self._tell_all(self.store.layout)

    def do_forget(self, name: NodeId) -> None:
        """The session of a node that was killed ends."""
        if name not in self.nodes and self.may_forget(name):
            self.store.present.pop(name, None)

    def may_forget(self, name: NodeId) -> bool:
        """Whether the controller may take it that a node will not return."""
        return True

    def do_return(self, name: NodeId) -> None:
        """A node whose session had ended has a new one, and reads what it has missed."""
        node = self.nodes[name]
        self.store.present[name] = node.disk.identity
        node.documents.extend([self.store.layout, self.store.sync])
        self.read_generations(node)

    def _tell_all(self, document: Any) -> None:
        for name, node in self.nodes.items():
            if name in self.store.present:
                node.documents.append(document)
                self.read_generations(node)

    def read_generations(self, node: SimNode) -> None:
        """What a node is told of the generations matters to its queries before its protocol object hears of it."""
        layouts = [document for document in node.documents if isinstance(document, Layout)]
        if layouts and not node.blind:
            node.generations = layouts[-1].generations

    def _check_generations(self, before: Layout, after: Layout) -> None:
        """When results begin to count, all replicas of a shard have begun alike; when code is let go, it is done."""
        if after.generation > before.generation:
            topology = self.programs.topology(before.generations)
            begun: dict[ShardId, Origin] = {}
            for shard in coming_shards(topology):
                held = {replica: self.disk_of(replica) for replica in before.full(shard)}
                origins = {Origin(disk.copy, disk.began) for disk in held.values() if disk is not None}
                assert len(origins) == 1, f"{shard} has begun as {origins}"
                begun[shard] = origins.pop()
            self.programs.counted[after.generation] = begun
        elif after.generations == (before.generation,) == before.generations[1:]:
            pulses = [entry for entry in self.entries.values() if entry.pulse]
            last = max((e.pulse for e in pulses if generation_asked(e) < after.generation), default=0)
            for lane in self.programs.lanes():
                assert self.sink.through(lane) >= last, f"the code that goes still owes {lane} units up to {last}"

    def hosts(self, name: NodeId, replica: ReplicaId) -> bool:
        return name in self.nodes and replica in self.nodes[name].protocol.hosted()
