"""Comparing the digests of sibling replicas: the same unit must be the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.errors import require
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.notices.replicas import ReplicaDiverged
from unbroken.protocol.values.units import Digest

REMEMBERED = 256
"""Digests kept per stream and replica. A sibling further behind than this is far beyond any lag at which it
would still count as redundancy."""


@dataclass(frozen=True)
class Divergence:
    """Two replicas produced different units for the same number; ``stopped`` is the one that has to stop."""

    stream: StreamId
    number: int
    kept: ReplicaId
    stopped: ReplicaId
    kept_digest: Digest
    stopped_digest: Digest

    def notice(self) -> ReplicaDiverged:
        mine, theirs = self.stopped_digest, self.kept_digest
        seen = (mine.rows, f"{mine.exact:x}", theirs.rows, f"{theirs.exact:x}")
        return ReplicaDiverged(self.stopped, self.kept, self.stream, self.number, *seen)


@dataclass
class DigestBook:
    """The digests that the replicas of one shard reported for their units.

    Invariant: a mismatch is reported exactly once for each replica that has to stop, and the replica that
    stops is the younger one (the one started later; among equals the one with the higher index).
    """

    born: dict[ReplicaId, int] = field(default_factory=dict)
    seen: dict[StreamId, dict[int, dict[ReplicaId, Digest]]] = field(default_factory=dict)
    stopped: set[ReplicaId] = field(default_factory=set)

    def note(self, replica: ReplicaId, stream: StreamId, number: int, digest: Digest) -> Divergence | None:
        units = self.seen.setdefault(stream, {})
        reports = units.setdefault(number, {})
        reports[replica] = digest
        if len(units) > REMEMBERED:
            del units[min(units)]
        for other, theirs in reports.items():
            if other == replica or theirs.matches(digest):
                continue
            younger = max(replica, other, key=self._age)
            older = other if younger == replica else replica
            if younger in self.stopped or older in self.stopped:
                continue
            self.stopped.add(younger)
            return Divergence(stream, number, older, younger, reports[older], reports[younger])
        return None

    def reported_by(self, replica: ReplicaId) -> list[tuple[StreamId, int, Digest]]:
        """What ``replica`` reported and is still remembered, to be told again to a sibling that missed it."""
        return [
            (stream, number, reports[replica])
            for stream, units in self.seen.items()
            for number, reports in units.items()
            if replica in reports
        ]

    def check(self) -> None:
        require(all(len(units) <= REMEMBERED for units in self.seen.values()), "digest book grew over its bound")

    def _age(self, replica: ReplicaId) -> tuple[int, int]:
        return (self.born.get(replica, 0), replica.index)
