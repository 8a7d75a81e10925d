"""What a ledger that a sink keeps with its data says about a unit.

A ledger holds the last unit of each stream: units of a stream come in their order, so whatever is not above it is
there. Such a ledger outlives the run that wrote it, and a run that begins from nothing counts from 1 again: its units
would pass for delivered and be lost without a word. So the time at which the last unit was cut is kept with its number.
Within a run it never goes back, and no run cuts before an earlier one has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unbroken.coverage import Coverage
from unbroken.errors import UnbrokenError
from unbroken.protocol.ids import ShardId, StreamId, segment_of
from unbroken.protocol.units import UnitHeader


@dataclass(frozen=True)
class Mark:
    """The last stable unit of a stream that is in a sink, and when it was cut.

    A sink that takes tentative units may keep more in it: the pulse of that unit, and the pulses after it that are
    ``covered`` by tentative ones.
    """

    number: int
    cut_ms: int
    pulse: int = 0
    covered: Coverage = field(default_factory=Coverage)

    @property
    def reach(self) -> int:
        """The highest pulse that is there, stable or tentative."""
        return max(self.pulse, self.covered.last)

    def corrected_by(self, header: UnitHeader) -> bool:
        """Whether a unit is a stable one of pulses for which there are tentative ones."""
        return header.stable and self.covered.meets(self.pulse, header.pulse)

    def after(self, header: UnitHeader) -> Mark:
        """The mark once a unit is there that was not there before."""
        if not header.stable:
            return replace(self, covered=self.covered.add(header.since, header.pulse))
        return Mark(header.number, header.cut_ms, max(self.pulse, header.pulse), self.covered.beyond(header.pulse))


def stream_name(stream: StreamId) -> str:
    """A stream's name in a ledger: the same whichever generation of the code produces it."""
    return str(StreamId(_without_generation(stream.producer), _without_generation(stream.consumer)))


def is_delivered(header: UnitHeader, mark: Mark | None, ledger: str, remedy: str) -> bool:
    """Whether a ledger has the unit.

    Raises
    ------
    UnbrokenError
        If the ledger was written by another run. ``ledger`` says where it is, ``remedy`` what to do about it.
    """
    if mark is None or mark.number < header.number:
        return False
    if header.cut_ms > mark.cut_ms:
        raise UnbrokenError(
            f"{ledger} has unit {mark.number} of {stream_name(header.stream)} of an earlier run, so unit "
            f"{header.number} of this run would pass for delivered; {remedy}"
        )
    return True


def _without_generation(shard: ShardId) -> ShardId:
    return ShardId(segment_of(shard.part), shard.index)
