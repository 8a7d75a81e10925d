"""The undo log of a replica: the input that its state could be built again from, without any copy of that state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from unbroken.errors import require
from unbroken.protocol.instructions import DropInbox, Instruction, Report
from unbroken.protocol.policies.undo.instructions import UndoReplica
from unbroken.protocol.replica.causes import Causes
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.consistency import DelayBound
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.notices.replicas import UndoRefused
from unbroken.protocol.values.strategy import Strategy
from unbroken.protocol.values.units import UnitHeader


@dataclass
class UndoLog:
    """Keeps input that is part of the state as long as it matters to results to come.

    The stream markers are those of upstream backup: for each unit the time that was in force while it was processed,
    and from it the oldest input that the state after that unit was made from.

    Invariant: ``kept`` ends with the last unit that is part of the state, without a hole.
    """

    causes: Causes
    kept: dict[StreamId, dict[int, UnitHeader]] = field(default_factory=dict)

    @classmethod
    def of(cls, how: DelayBound) -> UndoLog:
        return cls(Causes(Strategy(horizon_ms=how.horizon_ms, timed=how.timed)))

    def check(self) -> None:
        for stream, kept in self.kept.items():
            whole = not kept or max(kept) - min(kept) + 1 == len(kept)
            require(whole, f"units of {stream} are missing between {min(kept, default=0)} and {max(kept, default=0)}")

    def processed(self, number: int, time_ms: float | None, first: int = 0) -> None:
        """``time_ms`` was in force for the units from ``first`` on, or for one; None if that is not known."""
        if time_ms is None:
            self.causes.unknown()
        else:
            self.causes.note(number, time_ms, first)

    def committing(self, replica: SegmentReplica, through: int) -> None:
        """Units up to ``through`` are about to become part of the state."""
        for stream, inbox in replica.inboxes.items():
            kept = self.kept.setdefault(stream, {})
            kept |= {number: header for number, header in inbox.headers.items() if number <= through}

    def committed(self, replica: SegmentReplica, drops: Iterable[DropInbox]) -> list[Instruction]:
        """Of the input that the state now has, what can be let go."""
        marker = self.causes.before(replica.committed)
        out: list[Instruction] = []
        for stream, kept in self.kept.items():
            done = tuple(sorted(number for number in kept if number <= marker))
            for number in done:
                del kept[number]
            if done:
                out.append(DropInbox(replica.replica, stream, done))
        self.causes.forget(marker)
        unknown = [drop for drop in drops if drop.stream not in self.kept]
        return [*out, *unknown]

    def undo(self, replica: SegmentReplica) -> list[Instruction]:
        """Set a replica back to the oldest input that matters; to its checkpoint, if some of that is not here."""
        valid, base = replica.committed, self.causes.before(replica.committed)
        for stream in replica.inputs:
            if any(number not in self.kept.get(stream, {}) for number in range(base + 1, valid + 1)):
                return [Report(UndoRefused(replica.replica))]
        replica.rewind(base, {stream: self.kept.get(stream, {}) for stream in replica.inputs})
        return [UndoReplica(replica.replica, base, valid)]
