"""Skipping the rows of a source in one pulse, because an operator says so, without nodes that disagree.

A unit has one content for ever. If one ingress node had made the unit with the rows, and another one without them,
consumers would compute different results. So a skip is valid only if no node has made the unit, and none can while that
is found out. It takes two entries of the ingress log:

1. A *hold* keeps every node that has it in its log from making the unit. When it is committed, all members have it on
   disk, and it outlives a restart of each of them: a node reads its log before it reads a source.
2. When all nodes of the ingress have answered that they hold the pulse, and no consumer has the unit, a *skip* that
   names the hold sets the rows aside. A *release* ends the hold without that; the leader asks for one when the skip
   does not follow in time, so that an operator who went away does not stop the source.

All entries are committed as any other, and taken in their order: a skip after a release changes nothing, on any node.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from unbroken.errors import require
from unbroken.protocol.values.ids import NodeId

SkipRequestKind = Literal["hold", "release", "skip"]


@dataclass(frozen=True)
class SkipRequest:
    """An entry of the log about the rows of ``source`` in ``pulse``; ``hold`` is the index of the hold that it ends."""

    kind: SkipRequestKind
    source: str
    pulse: int
    hold: int = 0


@dataclass
class Holds:
    """What a log says of the rows of one source.

    ``agreed`` has for each pulse that is held the index of its hold, by the committed entries alone, so it is the same
    on all nodes at the same entry. ``early`` are the holds that are in the log of this node and not committed yet.

    Invariant: a pulse is held, skipped or neither; ``early`` has no committed entry.
    """

    agreed: dict[int, int] = field(default_factory=dict)
    early: dict[int, int] = field(default_factory=dict)
    skipped: set[int] = field(default_factory=set)

    def held(self, pulse: int) -> int:
        """The hold of a pulse, which is not to be read while there is one; 0 if there is none."""
        return self.agreed.get(pulse) or next((at for at, held in self.early.items() if held == pulse), 0)

    def persisted(self, index: int, wish: SkipRequest) -> None:
        """An entry is in the log of this node, though perhaps not for good: a hold begins."""
        if wish.kind == "hold":
            self.early[index] = wish.pulse

    def dropped(self, index: int) -> None:
        """The entries from ``index`` on are replaced by others."""
        self.early = {at: pulse for at, pulse in self.early.items() if at < index}

    def committed(self, index: int, wish: SkipRequest) -> None:
        """An entry is committed: a hold begins, or ends in one way or the other."""
        self.early = {at: pulse for at, pulse in self.early.items() if at > index}
        if wish.kind == "hold":
            if wish.pulse not in self.skipped:
                self.agreed.setdefault(wish.pulse, index)
        elif self.agreed.get(wish.pulse) == wish.hold:
            del self.agreed[wish.pulse]
            if wish.kind == "skip":
                self.skipped.add(wish.pulse)

    def done(self, pulse: int) -> None:
        """The unit of ``pulse`` and all before it are made."""
        self.agreed = {held: index for held, index in self.agreed.items() if held > pulse}
        self.early = {index: held for index, held in self.early.items() if held > pulse}
        self.skipped = {skipped for skipped in self.skipped if skipped > pulse}

    def check(self) -> None:
        require(not self.skipped & self.agreed.keys(), "a pulse is held and skipped")


@dataclass(frozen=True)
class MemberView:
    """What a node of the ingress has answered about a source: the pulse that it is stuck at, and the hold of that."""

    node: NodeId
    pulse: int | None
    hold: int = 0


@dataclass(frozen=True)
class ReaderView:
    """What a consumer has of a stream of the source, and the last unit of it that members have made."""

    replica: str
    has: int
    made: int


def stuck_everywhere(members: Sequence[MemberView], placed: Collection[NodeId], pulse: int) -> str | None:
    """Why the rows of ``pulse`` cannot be skipped, before they are held; None if they may be."""
    silent = sorted(set(placed) - {member.node for member in members})
    if silent:
        return f"{', '.join(silent)} does not answer, and may have read the rows; wait for it, or drain it"
    beyond = sorted(member.node for member in members if member.pulse is None or member.pulse > pulse)
    if beyond:
        return f"{', '.join(beyond)} has read the rows: they are part of the flow"
    behind = sorted(member.node for member in members if member.pulse is not None and member.pulse < pulse)
    if behind:
        return f"{', '.join(behind)} has yet to read an earlier pulse; skip that first"
    return None


def objection(
    members: Sequence[MemberView], placed: Collection[NodeId], pulse: int, readers: Sequence[ReaderView]
) -> str | None:
    """Why a pulse that is held must not be skipped; None if no node has made the unit, and none can."""
    found = stuck_everywhere(members, placed, pulse)
    if found is not None:
        return found
    if len({member.hold for member in members}) != 1 or not all(member.hold for member in members):
        return "not all nodes of the ingress hold the rows"
    having = sorted(reader.replica for reader in readers if reader.has > reader.made)
    return f"{', '.join(having)} has the unit already" if having else None
