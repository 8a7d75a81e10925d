"""What one member of the ingress log knows: its entries, its place in the in-sync set, and what is under way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from unbroken.errors import require
from unbroken.protocol.ingress.learners import Learners
from unbroken.protocol.instructions import CommitEntry, PersistEntry
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.ingress_log import Admission, Entry, Held, InSync, JoinLog, ProposeInSync, Tip

RECENT_ENTRIES = 4096
"""Committed entries whose terms are kept to compare with what a leader sends: far more than it sends twice."""


@dataclass
class IngressState:
    """The state of a member; what it does with it is in `IngressLog`.

    ``acked``: how far each follower has acknowledged, as its leader knows. ``unreachable``: peers of which there is no
    sign. ``proposed``: the set that the store has yet to decide on. ``learners``: the newcomers a leader knows.
    ``asking``: who has asked to join and is not answered, or may not have heard the answer. ``admission``: set while
    this member is itself a learner. ``recalled``: it started from its disk. ``restarted``: it led before it started
    from its disk, and has yet to begin a term of its own. ``refused``: its copy is of no use any more. ``inherited``:
    the last entry it found in its log when it began to lead.

    ``writing``: the entries that are being written, each by the first index that it may replace. ``agreed``: how far
    the leader has said that the log is committed. ``settled_term``: the term of the last committed entry, 0 if that is
    not known; ``recent`` has the terms of those before it. ``unsure``: this member started from its disk with ``found``
    as the last entry, it may have lost entries that it had acknowledged, and nothing has shown yet that it has not.
    ``recalling``: it leads by the document, but asks the members first what they hold; ``told`` has their answers.
    ``life`` tells this log from earlier ones of the same node, whose entries may still be on their way to a disk that
    no longer exists.

    Invariants
    ----------
    - ``entries`` are the dense run after ``committed``; an entry once committed never changes and is left to
      the log on disk.
    - ``confirmed`` is how far this member's log is known to be that of the present leader. It acknowledges
      (``acknowledged``) only what is on its disk as well (``durable``), and nothing is committed here before that.
    """

    me: NodeId
    sync: InSync
    committed: int = 0
    entries: list[Entry] = field(default_factory=list)
    acked: dict[NodeId, int] = field(default_factory=dict)
    unreachable: set[NodeId] = field(default_factory=set)
    proposed: ProposeInSync | None = None
    confirmed: int = 0
    pulse: int = 0
    finished: bool = False
    learners: Learners = field(default_factory=Learners)
    asking: dict[NodeId, JoinLog] = field(default_factory=dict)
    admission: Admission | None = None
    recalled: bool = False
    restarted: bool = False
    refused: bool = False
    inherited: int = 0
    writing: deque[int] = field(default_factory=deque)
    agreed: int = 0
    settled_term: int = 0
    recent: dict[int, int] = field(default_factory=dict)
    unsure: bool = False
    found: int = 0
    recalling: bool = False
    told: dict[NodeId, Held] = field(default_factory=dict)
    life: int = 1

    @property
    def last(self) -> int:
        return self.committed + len(self.entries)

    @property
    def tip(self) -> Tip:
        """How far the log goes, committed or not."""
        return Tip(self.entries[-1].term if self.entries else self.settled_term, self.last)

    @property
    def durable(self) -> int:
        """Entries up to this one are on disk, as safe as the durability setting wants."""
        return self.writing[0] - 1 if self.writing else self.last

    @property
    def acknowledged(self) -> int:
        """How far this member has acknowledged the log of the present term."""
        return min(self.confirmed, self.durable)

    @property
    def elected(self) -> bool:
        """Whether the document names this member the leader; it leads once it knows that its log is whole."""
        return self.sync.leader == self.me and self.member and not self.restarted

    @property
    def leading(self) -> bool:
        return self.elected and not self.recalling

    @property
    def learning(self) -> bool:
        """Whether this is a newcomer that does not count yet."""
        return self.admission is not None

    @property
    def member(self) -> bool:
        """Whether this is one of the in-sync set, as far as it knows."""
        return self.me in self.sync.members and not self.learning

    @property
    def expelled(self) -> bool:
        """Whether the others went on without this member: its log is of no use any more."""
        return not self.member and not self.learning

    @property
    def last_pulse(self) -> int:
        """The last pulse in the log, committed or not: the next one to cut follows it."""
        return max([self.pulse, *(entry.pulse for entry in self.entries)])

    @property
    def ended(self) -> bool:
        """Whether the last pulse there will be is in the log."""
        return self.finished or any(entry.final for entry in self.entries)

    def check_entries(self) -> None:
        expected = list(range(self.committed + 1, self.last + 1))
        require([entry.index for entry in self.entries] == expected, "ingress log has a hole")
        require(self.confirmed <= self.last, f"{self.me} has confirmed entries it does not hold")
        require(self.committed <= self.durable, f"{self.me} has committed entries that are not on its disk")

    def lacks(self, tip: Tip) -> bool:
        """Whether a log that goes to ``tip`` does not hold everything that is committed here."""
        return tip.index < self.committed or 0 < tip.term < self.settled_term

    def differs(self, entry: Entry) -> bool:
        """Whether another entry was committed in the place of this one."""
        return self.recent.get(entry.index, entry.term) != entry.term

    def write(self, entry: Entry) -> PersistEntry:
        """Write an entry; one that is written a second time replaces all that followed the first."""
        if self.writing and self.writing[-1] >= entry.index:
            self.writing = deque(min(index, entry.index) for index in self.writing)
        self.writing.append(entry.index)
        return PersistEntry(entry, self.life)

    def take(self, entry: Entry) -> list[PersistEntry]:
        """A follower takes the leader's entry; an entry of an older term in its place is replaced."""
        if entry.index <= self.committed:
            require(not self.differs(entry), f"{self.me} is given another entry {entry.index} than it has committed")
            return []
        place = entry.index - self.committed - 1
        if self.entries[place : place + 1] == [entry]:
            return []
        self.entries[place:] = [entry]
        return [self.write(entry)]

    def commit(self, through: int) -> list[CommitEntry]:
        """Everything up to ``through`` is agreed, as far as it is here."""
        count = max(0, through - self.committed)
        done, self.entries = self.entries[:count], self.entries[count:]
        self.committed += len(done)
        self.pulse = max([self.pulse, *(entry.pulse for entry in done)])
        self.finished = self.finished or any(entry.final for entry in done)
        for entry in done:
            self.recent[entry.index] = entry.term
            self.recent.pop(entry.index - RECENT_ENTRIES, None)
            self.settled_term = entry.term
        if self.committed > self.found:
            self.unsure = False
        return [CommitEntry(entry) for entry in done]
