"""The inbox of one input stream of a replica: first copy wins, in order, each number once."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from unbroken.errors import broken, require
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

AHEAD_LIMIT = 256
"""Units held ahead of the next one to process. A producer's send window is 64, so a well-behaved sender never
reaches this; it bounds the memory a confused one can take."""


RECENT_UNITS = 256
"""Consumed units whose digests are kept, to compare copies that arrive late: as many as may be on their way."""


class Arrival(Enum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    DIVERGENT = "divergent"
    REFUSED = "refused"


@dataclass
class Inbox:
    """Units ``consumed + 1 ..`` of a stream that have arrived and are not yet processed.

    Any number of producer replicas may send the same stream; the first copy of a unit is taken, a later one
    only has its digest compared.

    Invariants
    ----------
    - Dup-free: each number is accepted at most once.
    - In order: ``available`` is the largest n such that all of ``consumed + 1 .. n`` are here.
    - ``consumed`` never goes back, and ``available`` only if a unit on disk turns out to be damaged.

    ``pulse`` is what the last consumed unit has completed, ``cut_ms`` when that was cut, and ``ended`` says that it was
    the final one. ``limit`` is how many units may be held ahead. ``recent`` has the digests of the last units that were
    consumed.
    """

    stream: StreamId
    consumed: int = 0
    available: int = 0
    headers: dict[int, UnitHeader] = field(default_factory=dict)
    duplicates: int = 0
    pulse: int = 0
    cut_ms: int = 0
    ended: bool = False
    limit: int = AHEAD_LIMIT
    recent: dict[int, Digest] = field(default_factory=dict)

    def arrive(self, header: UnitHeader) -> Arrival:
        """Judge an arriving unit. Only an ACCEPTED one may be stored."""
        if header.stream != self.stream:
            broken(
                f"unit of {header.stream} in the inbox of {self.stream}", header.stream, self.stream, unit=header.number
            )
        held = self.headers.get(header.number)
        known = self.recent.get(header.number) if held is None else held.digest
        if known is not None or header.number <= self.consumed:
            self.duplicates += 1
            return Arrival.DUPLICATE if known is None or known.matches(header.digest) else Arrival.DIVERGENT
        if header.number > self.consumed + self.limit:
            return Arrival.REFUSED
        self.headers[header.number] = header
        while self.available + 1 in self.headers:
            self.available += 1
        return Arrival.ACCEPTED

    def consume(self, through: int) -> list[int]:
        """Units up to ``through`` are part of the replica's state; the numbers that can be forgotten."""
        if through > self.available:
            broken(
                f"{self.stream}: consumed {through}, only {self.available} here", self.stream, unit=self.available + 1
            )
        last = self.headers.get(through)
        if last is not None:
            self.pulse, self.cut_ms, self.ended = last.pulse, last.cut_ms, last.final
        done = sorted(number for number in self.headers if number <= through)
        for number in done:
            self.recent[number] = self.headers.pop(number).digest
        for number in list(self.recent)[: max(0, len(self.recent) - RECENT_UNITS)]:
            del self.recent[number]
        self.consumed = max(self.consumed, through)
        return done

    def lose(self, number: int) -> bool:
        """A unit is not on disk as it was written: whether it was needed, and is to arrive once more."""
        if self.headers.pop(number, None) is None:
            return False
        self.available = min(self.available, number - 1)
        return True

    def completing(self, pulse: int) -> int | None:
        """The first unit that completes ``pulse``, which may have been consumed already; None if it is not here."""
        if self.pulse >= pulse or self.ended:
            return self.consumed
        numbers = range(self.consumed + 1, self.available + 1)
        return next((number for number in numbers if self.headers[number].pulse >= pulse), None)

    @property
    def reach(self) -> int:
        """The pulse that is complete in what is here."""
        last = self.headers.get(self.available)
        return self.pulse if last is None else last.pulse

    def check(self) -> None:
        require(self.available >= self.consumed, f"{self.stream}: available behind consumed", self.stream)
        require(
            all(n in self.headers for n in range(self.consumed + 1, self.available + 1)),
            f"{self.stream}: a unit up to {self.available} is missing",
            self.stream,
        )
        require(all(n > self.consumed for n in self.headers), f"{self.stream}: consumed unit still held", self.stream)
