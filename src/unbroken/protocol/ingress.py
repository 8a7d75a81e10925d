"""The ingress log: the agreed order of pulses and pushed rows, kept by every ingress member.

Re-readable sources need no copy of their data, only agreement on where each pulse cuts them; pushed rows
cannot be read again and are kept in the log themselves. Both are entries of one small replicated log, so
"which rows belong to pulse b" has the same answer on every member, whoever fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unbroken.errors import require
from unbroken.protocol.ids import NodeId


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
class Append:
    """Leader to follower: take this entry; everything up to ``committed`` is agreed."""

    term: int
    entry: Entry | None
    committed: int


@dataclass(frozen=True)
class AppendAck:
    """Follower to leader: entries up to ``index`` are on my disk."""

    term: int
    index: int


@dataclass(frozen=True)
class Persist:
    entry: Entry


@dataclass(frozen=True)
class Commit:
    """The entry is agreed: cut the sources by it, acknowledge the producer of it."""

    entry: Entry


@dataclass(frozen=True)
class Tell:
    to: NodeId
    message: Append | AppendAck


@dataclass(frozen=True)
class ProposeInSync:
    """Ask the store to replace version ``replaces`` by this set; the answer comes back as ``in_sync()``."""

    proposal: InSync
    replaces: int


IngressInstruction = Persist | Commit | Tell | ProposeInSync


@dataclass
class IngressLog:
    """One member of the replicated ingress log.

    An entry is committed when every member of the in-sync set has it on disk; so any of them alone can go
    on after the others are lost. A member that loses sight of another asks the store for a smaller set. The
    store is asked only then: in normal operation an entry costs one message to each follower and back.

    News of a term comes from the store or from its leader, whichever is faster: a leader writes only to the
    members of its own set, so its first message proves both that it leads and that the receiver belongs to it.

    Invariants
    ----------
    - ``entries`` are the dense run after ``committed``; an entry once committed never changes and is left to
      the log on disk.
    - A leader commits only what every in-sync member has acknowledged.
    - A member outside the in-sync set, or with an older term, commits nothing.
    - ``confirmed`` is how far this member has acknowledged the log of the present term to its leader.
    """

    me: NodeId
    sync: InSync
    committed: int = 0
    entries: list[Entry] = field(default_factory=list)
    acked: dict[NodeId, int] = field(default_factory=dict)
    unreachable: set[NodeId] = field(default_factory=set)
    proposed: int | None = None
    confirmed: int = 0
    pulse: int = 0
    finished: bool = False

    @property
    def last(self) -> int:
        return self.committed + len(self.entries)

    @property
    def leading(self) -> bool:
        return self.sync.leader == self.me and self.me in self.sync.members

    @property
    def last_pulse(self) -> int:
        """The last pulse in the log, committed or not: the next one to cut follows it."""
        return max([self.pulse, *(entry.pulse for entry in self.entries)])

    @property
    def ended(self) -> bool:
        """Whether the last pulse there will be is in the log."""
        return self.finished or any(entry.final for entry in self.entries)

    def append(self, body: bytes, pulse: int = 0, final: bool = False) -> list[IngressInstruction]:
        """The leader adds an entry."""
        require(self.leading, f"{self.me} appends to the ingress log but {self.sync.leader} leads it")
        entry = Entry(self.last + 1, self.sync.term, body, pulse, final)
        self.entries.append(entry)
        out: list[IngressInstruction] = [Persist(entry)]
        out += [Tell(peer, Append(self.sync.term, entry, self.committed)) for peer in self._followers()]
        return out + self._advance()

    def receive(self, sender: NodeId, message: Append | AppendAck) -> list[IngressInstruction]:
        if message.term < self.sync.term:
            return []
        if isinstance(message, AppendAck):
            if message.term > self.sync.term:
                return []
            self.acked[sender] = max(self.acked.get(sender, 0), message.index)
            return self._advance()
        if message.term > self.sync.term:
            # The store's document is still under way. Its version stays unknown until then, so a proposal made
            # in the meantime fails and is made again on the real document.
            self.sync = replace(self.sync, term=message.term, leader=sender)
            self.confirmed = self.committed
        if sender != self.sync.leader or self.me not in self.sync.members:
            return []
        out: list[IngressInstruction] = []
        if message.entry is not None:
            out += self._take(message.entry)
            if message.entry.index <= self.last:
                self.confirmed = max(self.confirmed, message.entry.index)
                out.append(Tell(sender, AppendAck(self.sync.term, message.entry.index)))
        return out + self._commit(min(message.committed, self.last))

    def connected(self, peer: NodeId) -> list[IngressInstruction]:
        """A link to ``peer`` stands (again): send it everything that may have been lost on an earlier one."""
        self.unreachable.discard(peer)
        if self.me not in self.sync.members or peer not in self.sync.members or peer == self.me:
            return []
        if self.leading:
            return self._tell_all(peer)
        # The two directions of a pair of links break and stand apart: entries may have come while acknowledgements
        # could not go.
        if peer == self.sync.leader and self.confirmed:
            return [Tell(peer, AppendAck(self.sync.term, self.confirmed))]
        return []

    def lost(self, peer: NodeId) -> list[IngressInstruction]:
        """No sign of ``peer`` any more: go on without it if the store agrees."""
        self.unreachable.add(peer)
        return self._propose()

    def in_sync(self, sync: InSync) -> list[IngressInstruction]:
        """The store's current document, after a proposal or because somebody else changed it."""
        if sync.version <= self.sync.version or sync.term < self.sync.term:
            return []
        if sync.term > self.sync.term:
            self.confirmed = self.committed
        self.sync = sync
        self.proposed = None
        if self.me not in sync.members:
            return []
        # A follower may still hold another tail from an older term: only what it acknowledges in this term counts.
        self.acked = {peer: self.committed for peer in sync.members if peer != self.me}
        out: list[IngressInstruction] = []
        if self.leading:
            for peer in self._followers():
                out += self._tell_all(peer)
            out += self._advance()
        # Somebody else may have been lost while the store was deciding.
        return out + self._propose()

    def check(self) -> None:
        expected = list(range(self.committed + 1, self.last + 1))
        require([entry.index for entry in self.entries] == expected, "ingress log has a hole")
        if self.leading:
            for peer in self._followers():
                require(
                    self.acked.get(peer, self.committed) >= self.committed,
                    f"ingress entry {self.committed} committed before {peer} had it",
                )

    def _take(self, entry: Entry) -> list[IngressInstruction]:
        """A follower takes the leader's entry; an entry of an older term in its place is replaced."""
        if entry.index <= self.committed or entry.index > self.last + 1:
            return []
        place = entry.index - self.committed - 1
        if self.entries[place : place + 1] == [entry]:
            return []
        self.entries[place:] = [entry]
        return [Persist(entry)]

    def _tell_all(self, peer: NodeId) -> list[IngressInstruction]:
        """Every entry that is not committed, and how far the log is: the peer may have missed that, too."""
        messages = [Append(self.sync.term, entry, self.committed) for entry in (*self.entries, None)]
        return [Tell(peer, message) for message in messages]

    def _propose(self) -> list[IngressInstruction]:
        """Ask the store for a set without the lost members, if that is this member's business."""
        gone = self.unreachable & self.sync.members - {self.me}
        if self.me not in self.sync.members or not gone or self.proposed == self.sync.version:
            return []
        if not self.leading and self.sync.leader not in gone:
            return []
        self.proposed = self.sync.version
        proposal = InSync(self.sync.term + 1, self.me, self.sync.members - gone, self.sync.version + 1)
        return [ProposeInSync(proposal, self.sync.version)]

    def _followers(self) -> list[NodeId]:
        return sorted(self.sync.members - {self.me})

    def _advance(self) -> list[IngressInstruction]:
        if not self.leading:
            return []
        safe = min([self.last, *(self.acked.get(peer, 0) for peer in self._followers())])
        out = self._commit(safe)
        if out:
            heads = [Tell(peer, Append(self.sync.term, None, self.committed)) for peer in self._followers()]
            return [*out, *heads]
        return []

    def _commit(self, through: int) -> list[IngressInstruction]:
        count = max(0, through - self.committed)
        done, self.entries = self.entries[:count], self.entries[count:]
        self.committed += len(done)
        self.pulse = max([self.pulse, *(entry.pulse for entry in done)])
        self.finished = self.finished or any(entry.final for entry in done)
        return [Commit(entry) for entry in done]
