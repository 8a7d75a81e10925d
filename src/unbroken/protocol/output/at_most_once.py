"""At most once: whose turn it is to hand a unit to a sink, and which units nobody may hand to it any more.

A sink that has no ledger cannot tell a unit that it was given before. So the right to deliver a unit is given to one
replica of a shard, once: the sources agree with the cut of each pulse on a version of the layout, and the layout of
that version names the replica. A replica that takes another's place has the turn from a later version on. It never
delivers what was cut before, even if that was not delivered: the lost one may have delivered it, or may yet.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.units import UnitHeader


class Verdict(Enum):
    """What a replica is to do with the next unit of a stream to a sink."""

    DELIVER = "deliver"
    WAIT = "wait"
    GIVE_UP = "give up"


@dataclass(frozen=True)
class Turn:
    """``replica`` delivers the units that were cut by layouts of version ``since`` and later ones.

    Invariant: layouts follow each other one by one, and each names the same turn as the one before it or another one
    that begins with itself. So a layout says of every version from ``since`` up to its own whose turn it was, and no
    two layouts disagree on that.
    """

    replica: ReplicaId
    since: int

    def verdict(self, replica: ReplicaId, header: UnitHeader, version: int) -> Verdict:
        """What ``replica`` is to do with a unit, by the layout of ``version``, which has this turn."""
        if replica != self.replica or header.layout > version:
            return Verdict.WAIT
        return Verdict.GIVE_UP if header.layout < self.since else Verdict.DELIVER


def next_turn(
    held: Turn | None,
    working: Collection[ReplicaId],
    full: Collection[ReplicaId],
    doubtful: Collection[ReplicaId],
    version: int,
) -> Turn | None:
    """Whose turn it is in the layout of ``version``: the same replica's, as long as there is no doubt about it.

    Taking the turn from one that lives costs what it has under way, and nothing else.
    """
    well = set(working) - set(doubtful)
    if held is not None and (held.replica in well or not well):
        return held
    found = min(well & set(full), default=None) or min(well, default=None)
    return held if found is None else Turn(found, version)
