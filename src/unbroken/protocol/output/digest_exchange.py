"""Replicas of a shard tell each other the digests of their units; what differs is reported and stopped."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.protocol.instructions import Instruction, Send
from unbroken.protocol.messages import DigestNote
from unbroken.protocol.output.divergence import DigestBook, Divergence
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.units import UnitHeader


@dataclass
class DigestExchange:
    """The digest books of the shards that have a replica here.

    Invariant: a divergence is never passed over: notes that may have been lost with a link are told again.
    """

    me: NodeId
    books: dict[ShardId, DigestBook] = field(default_factory=dict)
    divergences: list[Divergence] = field(default_factory=list)

    def open(self, shard: ShardId) -> None:
        self.books[shard] = DigestBook()

    def close(self, shard: ShardId) -> None:
        self.books.pop(shard, None)

    def share(self, replica: ReplicaId, header: UnitHeader, layout: Layout) -> tuple[DigestNote, list[Instruction]]:
        """Tell the siblings about a unit produced here; the note is to be compared here as well."""
        note = DigestNote(replica, header.stream, header.number, header.digest)
        siblings = [node for node in layout.nodes_of(replica.shard) if node != self.me]
        return note, [Send(node, note) for node in siblings]

    def compare(self, note: DigestNote) -> Divergence | None:
        book = self.books.get(note.replica.shard)
        found = None if book is None else book.note(note.replica, note.stream, note.number, note.digest)
        if found is not None:
            self.divergences.append(found)
        return found

    def repeat(self, node: NodeId, hosted: list[ReplicaId], layout: Layout) -> list[Instruction]:
        """What a sibling's node may have missed."""
        if node == self.me:
            return []
        return [
            Send(node, DigestNote(replica, *note))
            for replica in hosted
            if replica.shard in self.books and node in layout.nodes_of(replica.shard)
            for note in self.books[replica.shard].reported_by(replica)
        ]

    def check(self) -> None:
        for book in self.books.values():
            book.check()
