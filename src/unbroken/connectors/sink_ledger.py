"""What a ledger that a sink keeps with its data says about a unit.

A ledger holds the last unit of each stream: units of a stream come in their order, so whatever is not above it is
there. Such a ledger outlives the run that wrote it, and a run that begins from nothing counts from 1 again: its units
would pass for delivered and be lost without a word. So the run is kept with the number, and compared before it. A run
that an operator has allowed to add to the results of another (`RunIdentity.supersedes`) begins that one's entry anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unbroken.codecs.codec import Codec
from unbroken.data.coverage import Coverage
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import ShardId, StreamId, segment_of
from unbroken.protocol.values.run import RunIdentity
from unbroken.protocol.values.units import UnitHeader


@dataclass(frozen=True)
class SinkMark:
    """The last stable unit of a stream that is in a sink, and the run that it is of.

    A sink that takes tentative units may keep more in it: the pulse of that unit, and the pulses after it that are
    ``covered`` by tentative ones.
    """

    number: int
    run: str
    pulse: int = 0
    covered: Coverage = field(default_factory=Coverage)

    @property
    def reach(self) -> int:
        """The highest pulse that is there, stable or tentative."""
        return max(self.pulse, self.covered.last)

    def corrected_by(self, header: UnitHeader) -> bool:
        """Whether a unit is a stable one of pulses for which there are tentative ones."""
        return header.stable and self.covered.meets(self.pulse, header.pulse)

    def after(self, header: UnitHeader) -> SinkMark:
        """The mark once a unit is there that was not there before."""
        if not header.stable:
            return replace(self, covered=self.covered.add(header.since, header.pulse))
        return SinkMark(header.number, self.run, max(self.pulse, header.pulse), self.covered.beyond(header.pulse))


SINK_MARK = Codec(SinkMark, "sink-mark", readable=True)


def stream_name(stream: StreamId) -> str:
    """A stream's name in a ledger: the same whichever generation of the code produces it."""
    return str(StreamId(_without_generation(stream.producer), _without_generation(stream.consumer)))


def own_mark(mark: SinkMark | None, run: RunIdentity, ledger: str, remedy: str) -> SinkMark | None:
    """What a ledger says of a stream, as far as it concerns ``run``: None if that has delivered nothing.

    Raises
    ------
    UnbrokenError
        If the ledger is that of another run, which this one may not supersede. ``ledger`` says where it is, ``remedy``
        what to do about it.
    """
    if mark is None or mark.run in run.supersedes:
        return None
    if mark.run != run.id:
        raise UnbrokenError(f"{ledger} has unit {mark.number} of run {mark.run}, and this is run {run.id}; {remedy}")
    return mark


def is_delivered(header: UnitHeader, mark: SinkMark | None, run: RunIdentity, ledger: str, remedy: str) -> bool:
    """Whether a ledger has the unit of ``run``; raises UnbrokenError like `own_mark`."""
    mine = own_mark(mark, run, ledger, remedy)
    return mine is not None and mine.number >= header.number


def _without_generation(shard: ShardId) -> ShardId:
    return ShardId(segment_of(shard.part), shard.index)
