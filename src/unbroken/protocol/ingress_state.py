"""What one member of the ingress log knows: its entries, its place in the in-sync set, and what is under way."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.errors import require
from unbroken.protocol.ids import NodeId
from unbroken.protocol.ingress_learners import Learners
from unbroken.protocol.ingress_messages import Admission, Commit, Entry, InSync, JoinLog, Persist, ProposeInSync


@dataclass
class IngressState:
    """The state of a member; what it does with it is in `IngressLog`.

    ``acked``: how far each follower has acknowledged, as its leader knows. ``unreachable``: peers of which there is no
    sign. ``proposed``: the set that the store has yet to decide on. ``learners``: the newcomers a leader knows.
    ``asking``: who has asked to join and is not answered, or may not have heard the answer. ``admission``: set while
    this member is itself a learner. ``recalled``: it started from its disk. ``restarted``: it led before it started
    from its disk, and has yet to begin a term of its own. ``refused``: its copy is of no use any more. ``inherited``:
    the last entry it found in its log when it began to lead.

    Invariants
    ----------
    - ``entries`` are the dense run after ``committed``; an entry once committed never changes and is left to
      the log on disk.
    - ``confirmed`` is how far this member has acknowledged the log of the present term.
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

    @property
    def last(self) -> int:
        return self.committed + len(self.entries)

    @property
    def leading(self) -> bool:
        return self.sync.leader == self.me and self.member and not self.restarted

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

    def take(self, entry: Entry) -> list[Persist]:
        """A follower takes the leader's entry; an entry of an older term in its place is replaced."""
        if entry.index <= self.committed:
            return []
        place = entry.index - self.committed - 1
        if self.entries[place : place + 1] == [entry]:
            return []
        self.entries[place:] = [entry]
        return [Persist(entry)]

    def commit(self, through: int) -> list[Commit]:
        """Everything up to ``through`` is agreed, as far as it is here."""
        count = max(0, through - self.committed)
        done, self.entries = self.entries[:count], self.entries[count:]
        self.committed += len(done)
        self.pulse = max([self.pulse, *(entry.pulse for entry in done)])
        self.finished = self.finished or any(entry.final for entry in done)
        return [Commit(entry) for entry in done]
