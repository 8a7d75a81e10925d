"""Turns: which replica of a shard may hand a unit to a sink, where that is to happen at most once."""

from __future__ import annotations

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
