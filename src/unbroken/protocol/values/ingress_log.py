"""What the members of the ingress log tell each other, agree on in the store, and want done."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.values.ids import NodeId


@dataclass(frozen=True)
class Entry:
    """One entry of the log: a pulse (``pulse`` is its number) or, with pulse 0, a batch of pushed rows.

    ``body`` is opaque here: where the pulse cuts each source, or the rows. ``final`` marks the last pulse.
    """

    index: int
    term: int
    body: bytes
    pulse: int = 0
    final: bool = False


@dataclass(frozen=True, order=True)
class Tip:
    """How far a member's log goes: the term of its last entry, and the index of that.

    As in Raft, of two logs the one with the later tip holds everything committed that either of them holds.
    A ``term`` of 0 is not known: the entry is done with, and no longer kept.
    """

    term: int = 0
    index: int = 0


@dataclass(frozen=True)
class InSync:
    """The members that hold every committed entry, and who leads them. One versioned document in ZooKeeper.

    ``version`` is the store's version of the document: a change names the version it replaces, so of two
    members that want to go on without each other exactly one succeeds.
    """

    term: int
    leader: NodeId
    members: frozenset[NodeId]
    version: int


@dataclass(frozen=True)
class Admission:
    """The leader's word to a newcomer whose copy of the log is pinned at this moment.

    The copy holds every entry up to ``index``, and the leader keeps what follows. ``session`` is used for this copy
    only, so that what an earlier attempt of the same node left on its way is not taken for this one's. Documents up
    to ``version`` say nothing about this copy, and leaders of terms before ``term`` have nothing to say to it.
    """

    leader: NodeId
    index: int
    term: int
    version: int
    session: str


# --- messages ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Append:
    """Leader to follower or learner: take this entry; everything up to ``committed`` is agreed."""

    term: int
    entry: Entry | None
    committed: int


@dataclass(frozen=True)
class AppendAck:
    """Follower or learner to leader: entries up to ``index`` are on my disk, as the durability setting wants it."""

    term: int
    index: int


@dataclass(frozen=True)
class JoinLog:
    """Learner to leader: I have your log up to ``index``; send me what follows.

    A member that started from its disk asks without a session, and tells its ``tip``: it may have lost entries.
    """

    session: str
    index: int
    tip: Tip = Tip()


@dataclass(frozen=True)
class JoinRefused:
    """Leader to learner: what follows your copy is not kept (any more); copy the log again."""

    session: str


@dataclass(frozen=True)
class Recall:
    """Leader to follower: I started from my disk, which may have lost entries. How far does your log go?"""

    term: int


@dataclass(frozen=True)
class Held:
    """Follower to leader: my log goes to ``tip``, and I know everything up to ``committed`` to be agreed."""

    term: int
    tip: Tip
    committed: int


IngressMessage = Append | AppendAck | JoinLog | JoinRefused | Recall | Held


# --- instructions -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProposeInSync:
    """Ask the store to replace version ``replaces`` by this set; the answer comes back as ``in_sync()``."""

    proposal: InSync
    replaces: int
