"""The outboxes of a node's replicas, and who is sent what from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from unbroken.protocol.events import OwedNoted
from unbroken.protocol.instructions import DropOutbox, GiveUp, Instruction, NoteOwed, Report, Send, SendUnit
from unbroken.protocol.messages import Ack, Claim, Claimed, Missing, Subscribe, Unsubscribe
from unbroken.protocol.output.outbox import SEND_WINDOW, SNAPSHOT, Outbox
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId, generation_of
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.notices.replicas import SnapshotOutdated
from unbroken.protocol.values.recovery import StoredUnits
from unbroken.protocol.values.units import UnitHeader


def snapshot_of(shard: ShardId) -> ReplicaId:
    """The name by which a shard's last snapshot acknowledges, as if it were a replica that seldom commits."""
    return ReplicaId(shard, SNAPSHOT)


class Terms(Protocol):
    """What is kept for a consumer, and sent to it ahead, where that is not as for every other."""

    def levels(self, part: str) -> int: ...

    def window(self, part: str) -> int: ...

    def rebuilds(self, part: str) -> bool: ...


class UsualTerms:
    """Consumers that keep their state safe themselves, and wait for all of their input."""

    def levels(self, part: str) -> int:
        return 0

    def window(self, part: str) -> int:
        return 0

    def rebuilds(self, part: str) -> bool:
        return False


@dataclass
class Outboxes:
    """One outbox per stream produced here, each with the replica that fills it.

    Invariants: those of each outbox; a subscription has a route; a claim is confirmed only by an outbox that works
    by a layout that counts the claimant, so that nothing it needs can be dropped afterwards.

    A replica at work may come to produce one stream more, when code that reads from it begins to run: its outbox opens
    with the first unit. Who asks for it earlier is answered then (``claims``, ``early``).
    """

    topology: Topology
    client_retain: int
    claim_units: int
    claim_bytes: int
    snapshots: bool = False
    terms: Terms = field(default_factory=UsualTerms)
    boxes: dict[StreamId, Outbox] = field(default_factory=dict)
    owners: dict[StreamId, ReplicaId] = field(default_factory=dict)
    routes: dict[tuple[StreamId, str], NodeId] = field(default_factory=dict)
    claims: list[tuple[NodeId, Claim]] = field(default_factory=list)
    given_up: set[ReplicaId] = field(default_factory=set)
    early: dict[tuple[StreamId, str], tuple[NodeId, Subscribe]] = field(default_factory=dict)
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def open(self, stream: StreamId, owner: ReplicaId, layout: Layout, stored: StoredUnits) -> None:
        """The outbox of a stream that ``owner`` produces here, with what is on disk of it."""
        sink = stream.consumer.part
        retain = self.client_retain if sink in self.topology.client_sinks else 0
        headers = {header.number: header for header in stored.headers}
        counted = self._counted(stream, owner, layout)
        levels = self.terms.levels(sink)
        window = max(SEND_WINDOW, self.terms.window(sink))
        box = Outbox(stream, counted, retain, stored.base, headers, levels=levels, window=window)
        if levels:
            box.owed, box.rebuilt = stored.owed, stored.rebuilt
            box.noted = stored.owed
        self.boxes[stream] = box
        self.owners[stream] = owner
        for listener in self.listeners:
            listener()

    def on_open(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when an outbox is opened."""
        self.listeners.append(listener)

    def close(self, owner: ReplicaId) -> None:
        """Forget the outboxes of a replica that is not hosted here any more."""
        for stream in [stream for stream, replica in self.owners.items() if replica == owner]:
            self._forget(stream)

    def _forget(self, stream: StreamId) -> None:
        del self.boxes[stream], self.owners[stream]
        for key in [key for key in self.routes if key[0] == stream]:
            del self.routes[key]

    def of(self, owner: ReplicaId) -> list[Outbox]:
        return [self.boxes[stream] for stream, replica in self.owners.items() if replica == owner]

    # --- what is asked of them ------------------------------------------------------------------------

    def subscribe(self, sender: NodeId, message: Subscribe) -> list[Instruction]:
        box = self.boxes.get(message.stream)
        if box is None:
            # The subscriber is told when a replica here begins; one at work may begin with this stream at any moment.
            if self.topology.has(message.stream):
                self.early[message.stream, message.subscriber] = (sender, message)
            return []
        self.routes[message.stream, message.subscriber] = sender
        complete = box.subscribe(message.subscriber, message.after)
        sends = self.sends(box)
        if complete:
            return sends
        return [Send(sender, Missing(message.stream, message.subscriber, box.base)), *sends]

    def unsubscribe(self, message: Unsubscribe) -> None:
        self.early.pop((message.stream, message.subscriber), None)
        if self.routes.pop((message.stream, message.subscriber), None) is not None:
            self.boxes[message.stream].unsubscribe(message.subscriber)

    def subscriber_gone(self, node: NodeId) -> None:
        self.early = {key: question for key, question in self.early.items() if question[0] != node}
        for stream, subscriber in [key for key, where in self.routes.items() if where == node]:
            del self.routes[stream, subscriber]
            self.boxes[stream].unsubscribe(subscriber)

    def ack(self, message: Ack) -> list[Instruction]:
        box = self.boxes.get(message.stream)
        if box is None:
            return []
        known = (box.owed, box.rebuilt)
        box.ack(message.subscriber, message.through, message.level, message.rebuilt)
        out: list[Instruction] = []
        if box.levels and (box.owed, box.rebuilt) != known:
            out.append(self._note_owed(box))
        if self.snapshots and message.subscriber == str(snapshot_of(message.stream.consumer)):
            self.given_up.discard(snapshot_of(message.stream.consumer))
        return [*out, *self.trim(box), *self.sends(box), *self._give_up(box)]

    def noted(self, event: OwedNoted) -> list[Instruction]:
        """What a stream is good for is on disk: what goes by that can go."""
        box = self.boxes.get(event.stream)
        if box is None or self.owners[event.stream] != event.replica:
            return []
        box.noted = max(box.noted, event.owed)
        return self.trim(box)

    def claim(self, sender: NodeId, message: Claim, layout: Layout) -> list[Instruction]:
        """Confirm a claim as soon as the layout here counts the claimant."""
        asked = (sender, message.stream, message.replica)
        self.claims = [claim for claim in self.claims if (claim[0], claim[1].stream, claim[1].replica) != asked]
        self.claims.append((sender, message))
        return self._confirm(layout)

    # --- what happens to them -------------------------------------------------------------------------

    def produced(self, owner: ReplicaId, header: UnitHeader, layout: Layout) -> tuple[bool, list[Instruction]]:
        """Take a unit into its outbox; whether it counts and was not there before, and what follows."""
        stream, number = header.stream, header.number
        drop = DropOutbox(owner, stream, (number,))
        if not self.topology.has(stream):
            return False, [drop]  # whoever read it is not part of the flow any more
        out: list[Instruction] = []
        if stream not in self.boxes:
            out += self._open_late(stream, owner, layout, number - 1)
        box = self.boxes[stream]
        if not self.wanted(header):
            if header.generation < generation_of(stream.producer.part):
                box.skip(number)
            return False, [*out, drop]
        if not box.add(header):
            # Produced again after a restart, perhaps although nobody needs it any more.
            return False, [drop] if number <= box.base else []
        return True, [*out, *self.sends(box), *self.trim(box)]

    def wanted(self, header: UnitHeader) -> bool:
        """Sinks take what the generation of a unit asks for; segments take everything that is for them."""
        stream = header.stream
        if stream.consumer.part not in self.topology.sinks:
            return True
        return self.topology.counts(stream.producer.part, header.generation)

    def _open_late(self, stream: StreamId, owner: ReplicaId, layout: Layout, base: int) -> list[Instruction]:
        self.open(stream, owner, layout, StoredUnits(base))
        early = self.take_early(stream)
        return [*self._confirm(layout), *(step for question in early for step in self.subscribe(*question))]

    def take_early(self, stream: StreamId) -> list[tuple[NodeId, Subscribe]]:
        """Those who asked for a stream before its outbox was open."""
        asked = [question for key, question in self.early.items() if key[0] == stream]
        self.early = {key: question for key, question in self.early.items() if key[0] != stream}
        return asked

    def topology_changed(self, topology: Topology) -> list[Instruction]:
        """Streams that nobody reads any more are forgotten with all their units."""
        self.topology = topology
        out: list[Instruction] = []
        for stream in set(self.boxes) - set(topology.streams):
            out.append(DropOutbox(self.owners[stream], stream, tuple(self.boxes[stream].headers)))
            self._forget(stream)
        self.early = {key: question for key, question in self.early.items() if key[0] in topology.streams}
        return out

    def layout_changed(self, layout: Layout) -> list[Instruction]:
        out: list[Instruction] = []
        parts = {stream.consumer.part for stream in self.boxes}
        levels = {part: self.terms.levels(part) for part in parts}
        for stream, box in self.boxes.items():
            before = box.counted
            box.count(self._counted(stream, self.owners[stream], layout))
            for replica in before - box.counted:  # it will not unsubscribe, and its node may live on
                self.unsubscribe(Unsubscribe(stream, str(replica)))
            if box.relevel(levels[stream.consumer.part]):
                out.append(self._note_owed(box))
            out += self.trim(box)
        self.given_up &= set(layout.placement)
        return [*out, *self._confirm(layout)]

    def _note_owed(self, box: Outbox) -> NoteOwed:
        return NoteOwed(self.owners[box.stream], box.stream, box.owed, box.rebuilt)

    def sends(self, box: Outbox) -> list[Instruction]:
        owner = self.owners[box.stream]
        return [
            SendUnit(self.routes[box.stream, subscriber], owner, box.headers[number])
            for subscriber, number in box.sends()
        ]

    def trim(self, box: Outbox) -> list[Instruction]:
        dropped = box.trim()
        return [DropOutbox(self.owners[box.stream], box.stream, tuple(dropped))] if dropped else []

    def check(self) -> None:
        for box in self.boxes.values():
            box.check()

    def _counted(self, stream: StreamId, owner: ReplicaId, layout: Layout) -> frozenset[ReplicaId]:
        """Who has to acknowledge a stream: its consumer's replicas, or the sink, on this replica's own account."""
        sink = stream.consumer.part
        if sink in self.topology.client_sinks:
            return frozenset()
        if sink in self.topology.sinks:
            return frozenset({ReplicaId(stream.consumer, owner.index)})
        rebuilt = self.terms.rebuilds(sink)
        snapshot = {snapshot_of(stream.consumer)} if self.snapshots and not rebuilt else set()
        return layout.counted(stream.consumer) | snapshot

    def _confirm(self, layout: Layout) -> list[Instruction]:
        out: list[Instruction] = []
        waiting: list[tuple[NodeId, Claim]] = []
        for sender, claim in self.claims:
            box = self.boxes.get(claim.stream)
            if layout.version < claim.version:
                waiting.append((sender, claim))
            elif box is None:
                if self.topology.has(claim.stream) and claim.replica in layout.placement:
                    waiting.append((sender, claim))
            elif claim.replica in box.counted:
                rebuilt = box.rebuilt if box.rebuilds else None
                kept_after = box.acked[claim.replica]
                out.append(Send(sender, Claimed(claim.stream, claim.replica, kept_after, box.last, rebuilt)))
        self.claims = waiting
        return out

    def _give_up(self, box: Outbox) -> list[Instruction]:
        """Consumers that hold up more than the settings allow are to be built again from their peers."""
        out = self._limit_snapshot(box)
        for replica in box.overdue(self.claim_units, self.claim_bytes):
            if replica not in self.given_up:
                self.given_up.add(replica)
                kept = max(box.acked.values()) - box.acked[replica]
                out.append(GiveUp(replica, box.stream, kept))
        return out

    def _limit_snapshot(self, box: Outbox) -> list[Instruction]:
        """A store that takes no snapshots must not fill the disk: units that only the next one needs are let go."""
        if not self.snapshots:
            return []
        snapshot = snapshot_of(box.stream.consumer)
        limit = box.too_old(snapshot, self.claim_units, self.claim_bytes) if snapshot in box.counted else None
        if limit is None:
            return []
        box.ack(str(snapshot), limit)
        out = self.trim(box)
        if snapshot not in self.given_up:
            self.given_up.add(snapshot)
            out.append(Report(SnapshotOutdated(snapshot.shard)))
        return out
