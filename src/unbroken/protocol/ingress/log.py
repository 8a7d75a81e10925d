"""The ingress log: the agreed order of pulses and pushed rows, kept by every ingress member.

Re-readable sources need no copy of their data, only agreement on where each pulse cuts them; pushed rows
cannot be read again and are kept in the log themselves. Both are entries of one small replicated log, so
"which rows belong to pulse b" has the same answer on every member, whoever fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from unbroken.errors import require
from unbroken.protocol.ingress.follower import IngressFollower
from unbroken.protocol.ingress.learners import Learners
from unbroken.protocol.instructions import Instruction, Report, Send
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.ingress_log import (
    Admission,
    Append,
    AppendAck,
    Entry,
    Held,
    IngressMessage,
    InSync,
    JoinLog,
    JoinRefused,
    ProposeInSync,
    Recall,
    Tip,
)
from unbroken.protocol.values.notices.ingress import LeadHandedOver, LogEntriesLost

__all__ = [
    "Admission",
    "Append",
    "AppendAck",
    "Entry",
    "Held",
    "InSync",
    "IngressLog",
    "IngressMessage",
    "JoinLog",
    "JoinRefused",
    "ProposeInSync",
    "Recall",
    "Tip",
]


@dataclass
class IngressLog(IngressFollower):
    """One member of the replicated ingress log.

    An entry is committed when every member of the in-sync set has it on disk; so any of them alone can go
    on after the others are lost. A member that loses sight of another asks the store for a smaller set. The
    store is asked only then: in normal operation an entry costs one message to each follower and back.

    News of a term comes from the store or from its leader, whichever is faster: a leader writes only to the
    members of its own set and to its learners, so its first message to a member proves both that it leads and that
    the receiver belongs to it.

    A newcomer becomes a member as a learner: it copies the leader's log, says from where on it needs the rest
    (``JoinLog``), and is sent what followed and what comes. When it is near the end, commits wait for it; when it has
    everything that is committed, the leader proposes a set with it, and goes on waiting for it until the store has
    decided: whichever set the store then names, each of its members holds every committed entry. Only the leader that
    gave out a copy knows its learner; with another leader the copy begins again.

    A member that starts from its disk takes all it finds after its base for uncommitted: what was committed before is
    committed again. One that leads begins a term of its own before it commits anything, because a proposal of its
    earlier life may still be on its way to the store, with a learner in it that this life would not wait for.

    Its disk may also have lost the end of the log, if that was not forced. A follower tells its leader how far its log
    goes (``JoinLog``), and is left out and copies the log if that lacks something committed. A leader asks all members
    first (``Recall``, ``Held``); if one has more, it hands the lead to the one that has most, leaves the set and copies
    the log itself. It cannot tell what of it was committed; with all of it nothing is lost.

    Invariants
    ----------
    - A leader commits only what is on its disk, what every in-sync member has acknowledged, and every learner in a set
      it has proposed; a member acknowledges only what is on its disk.
    - It proposes a set with a learner only if that has acknowledged all that any leader may have committed.
    - A member outside the in-sync set, or with an older term, commits nothing; a learner commits what its leader says.
    """

    @classmethod
    def recovered(
        cls, me: NodeId, sync: InSync, committed: int, entries: Iterable[Entry], pulse: int, finished: bool
    ) -> Self:
        """A member that starts from its disk: ``committed`` and what follows it come from its base.

        ``sync`` is the store's document, read after the start. ``begin`` is to be called first.
        """
        left = [entry for entry in entries if entry.index > committed]
        log = cls(me, sync, committed, left, pulse=pulse, finished=finished)
        log.recalled = log.unsure = True
        log.found = log.last
        log.restarted = sync.leader == me and me in sync.members
        log.check()
        return log

    @classmethod
    def learner(
        cls,
        me: NodeId,
        sync: InSync,
        admission: Admission,
        committed: int,
        entries: Iterable[Entry],
        pulse: int,
        finished: bool,
    ) -> Self:
        """A newcomer with a copy of the leader's log, which begins after the base ``committed``.

        What the copy holds after the admitted index counts for nothing until the leader has sent it. ``begin`` is to
        be called first.
        """
        held = max(admission.index, committed)
        left = [entry for entry in entries if entry.index > committed]
        if sync.term < admission.term:
            # The store's document has yet to come; till then an earlier leader must not pass for the present one.
            sync = replace(sync, term=admission.term, leader=admission.leader)
        log = cls(me, sync, committed, left, confirmed=held, pulse=pulse, finished=finished, admission=admission)
        require(log.last >= held, f"the copy of the ingress log ends with {log.last} instead of {held}")
        log.check()
        return log

    def begin(self) -> list[Instruction]:
        """The first step of a member that started from a copy or from its disk."""
        if self.learning:
            return self._follow_document()
        if self.restarted:
            return self._propose_set(self.sync.members)
        if self.member and self.sync.leader != self.me:
            return self._ask_again()
        return []

    def append(self, body: bytes, pulse: int = 0, final: bool = False) -> list[Instruction]:
        """The leader adds an entry."""
        require(self.leading, f"{self.me} appends to the ingress log but {self.sync.leader} leads it")
        entry = Entry(self.last + 1, self.sync.term, body, pulse, final)
        self.entries.append(entry)
        out: list[Instruction] = [self.write(entry)]
        out += [Send(peer, Append(self.sync.term, entry, self.committed)) for peer in self._followers()]
        for peer in self.learners.joined():
            out += self._feed(peer)
        return out

    def persisted(self, count: int) -> list[Instruction]:
        """So many of the entries that were to be written are on disk, in the order of the instructions."""
        require(
            count <= len(self.writing), f"{count} entries are on the disk of {self.me}, {len(self.writing)} written"
        )
        before = self.acknowledged
        for _ in range(count):
            self.writing.popleft()
        if self.leading:
            return self._advance()
        if self.expelled or self.refused or self.elected:
            return []
        out: list[Instruction] = []
        if self.acknowledged > before:
            out.append(Send(self.sync.leader, AppendAck(self.sync.term, self.acknowledged)))
        return out + self.commit(min(self.agreed, self.durable))

    def receive(self, sender: NodeId, message: IngressMessage) -> list[Instruction]:
        match message:
            case Append():
                return self._appended(sender, message)
            case AppendAck():
                return self._acknowledged(sender, message)
            case JoinLog():
                return self._asked_to_join(sender, message)
            case JoinRefused(session):
                if self.admission is None or self.admission.session != session:
                    return []
                self.refused = True
                return []
            case Recall(term):
                return self._asked_what_it_holds(sender, term)
            case Held():
                return self._heard_what_it_holds(sender, message)

    def learn(self, peer: NodeId) -> tuple[Admission | None, list[Instruction]]:
        """A newcomer on ``peer`` asks for a copy: to be called on the leader when the copy is pinned.

        None if it cannot be had at this moment: another member leads, or the store is deciding about ``peer``. A
        member that asks has no log any more and is given up first.
        """
        if not self.leading or peer == self.me or peer in self._joining():
            return None, []
        if peer in self.sync.members:
            return None, self.lost(peer)
        self.unreachable.discard(peer)
        self.asking.pop(peer, None)
        self.learners.forget(peer)
        out = self._advance()  # an earlier attempt may have been waited for
        session = self.learners.admit(peer, self.sync.term, self.committed)
        return Admission(self.me, self.committed, self.sync.term, self.sync.version, session), out

    def connected(self, peer: NodeId) -> list[Instruction]:
        """A link to ``peer`` stands (again): send it everything that may have been lost on an earlier one."""
        self.unreachable.discard(peer)
        if peer == self.me:
            return []
        if self.admission is not None and peer == self.admission.leader:
            return self._ask_to_join()
        if self.recalling:
            return [Send(peer, Recall(self.sync.term))] if peer in self.sync.members else []
        if self.leading:
            if peer in self.sync.members:
                return self._tell_all(peer)
            return self._asked_to_join(peer, self.asking[peer]) if peer in self.asking else self._resume(peer)
        if peer != self.sync.leader or self.expelled:
            return []
        # The two directions of a pair of links break and stand apart: entries may have come while acknowledgements
        # could not go.
        out: list[Instruction] = []
        if self.confirmed:
            out.append(Send(peer, AppendAck(self.sync.term, self.acknowledged)))
        return out + self._ask_again() if self.recalled else out

    def lost(self, peer: NodeId) -> list[Instruction]:
        """No sign of ``peer`` any more: go on without it if the store agrees."""
        self.unreachable.add(peer)
        if peer in self._joining():
            return []
        self._forget(peer)
        return [*self._advance(), *self._propose()]

    def in_sync(self, sync: InSync) -> list[Instruction]:
        """The store's current document, after a proposal or because somebody else changed it."""
        if self.refused or sync.version <= self.sync.version or sync.term < self.sync.term:
            return []
        led = self.leading
        self.admission = self._still_learning(sync)
        if sync.term > self.sync.term:
            self.confirmed = self.committed
        self.sync = sync
        self.proposed = None
        self.restarted = False
        if self.learning:
            return self._follow_document()
        self.recalling, self.told = self.elected and self.unsure, {}
        if not led or not self.leading:
            self.learners, self.inherited = Learners(), self.last
        if not self.member:
            self.asking = {}
            return []
        # A follower may still hold another tail from an older term: only what it acknowledges in this term counts.
        self.acked = {peer: self.committed for peer in sync.members if peer != self.me}
        out: list[Instruction] = []
        if self.recalling:
            out += [Send(peer, Recall(sync.term)) for peer in self._followers()]
            out += self._compare_with_members()
        elif self.leading:
            out += self._lead()
        elif self.unsure:
            out += self._ask_again()
        # Somebody else may have been lost while the store was deciding.
        return out + self._propose()

    def check(self) -> None:
        self.check_entries()
        if not self.leading:
            require(not self.learners.known, f"{self.me} keeps learners but does not lead the ingress")
            return
        self.learners.check(self.committed)
        required = {peer: self.acked.get(peer, self.committed) for peer in self._followers()}
        required |= {peer: acked for peer, acked in self.learners.closing().items() if peer in self._joining()}
        require(required.keys() >= self._joining(), "a learner in a proposed set is not waited for")
        for peer, acked in required.items():
            require(acked >= self.committed, f"ingress entry {self.committed} committed before {peer} had it")

    # --- as the leader ------------------------------------------------------------------------------------

    def _heard_what_it_holds(self, sender: NodeId, message: Held) -> list[Instruction]:
        if not self.recalling or message.term != self.sync.term:
            return []
        self.told[sender] = message
        return self._compare_with_members()

    def _compare_with_members(self) -> list[Instruction]:
        """Begin to lead if no member holds more than this one; hand the lead to the one that holds most otherwise."""
        followers = self._followers()
        if self._waiting_for_store() or not self.told.keys() >= set(followers):
            return []
        certain = max([self.committed, *(held.committed for held in self.told.values())])
        tips = {peer: self.told[peer].tip for peer in followers if self.told[peer].tip.index >= certain}
        best = max(tips, key=lambda peer: (tips[peer], peer), default=None)
        if best is None or (self.last >= certain and not (tips[best] > self.tip and tips[best].index > self.committed)):
            self.recalling = self.unsure = False
            return [*self._lead(), *self._propose()]
        notice = LeadHandedOver(self.me, self.last, best, tips[best].index)
        proposal = InSync(self.sync.term + 1, best, self.sync.members - {self.me}, self.sync.version + 1)
        self.proposed = ProposeInSync(proposal, self.sync.version)
        return [Report(notice), self.proposed]

    def _lead(self) -> list[Instruction]:
        """A term begins that this member leads: everybody is told all that may not have reached it."""
        for peer in self.learners.known.keys() & self.sync.members:
            self.learners.forget(peer)
        for peer in self.learners.known.keys() & self.unreachable:
            self._forget(peer)
        out: list[Instruction] = []
        for peer in self._followers():
            out += self._tell_all(peer)
        self.learners.begin_term(self.committed)
        for peer in self.learners.joined():
            out += self._resume(peer)
        for peer, message in list(self.asking.items()):
            out += self._asked_to_join(peer, message)
        return out + self._advance()

    def _acknowledged(self, sender: NodeId, message: AppendAck) -> list[Instruction]:
        if message.term != self.sync.term or not self.leading:
            return []
        if sender in self.sync.members:
            self.acked[sender] = max(self.acked.get(sender, 0), message.index)
            return self._advance()
        if not self.learners.acknowledge(sender, message.index, self.committed):
            return []
        return [*self._feed(sender), *self._advance(), *self._propose()]

    def _asked_to_join(self, sender: NodeId, message: JoinLog) -> list[Instruction]:
        if self.expelled:
            return []
        # Whoever asks may know sooner than this member that it leads; and a refusal may be lost with its link.
        self.asking[sender] = message
        if self.recalling and sender in self.sync.members:
            return [Send(sender, Recall(self.sync.term))]  # it may not have been there when it was asked
        if not self.leading or sender in self._joining():
            return []
        if sender in self.sync.members:
            del self.asking[sender]
            return self._returned(sender, message)
        if self.learners.join(sender, message.session, message.index, self.last):
            del self.asking[sender]
            return self._resume(sender)
        return [Send(sender, JoinRefused(message.session))]

    def _returned(self, member: NodeId, message: JoinLog) -> list[Instruction]:
        """A member that started from its disk: it may have lost what it had acknowledged."""
        if self.lacks(message.tip):
            told = (
                []
                if member in self.unreachable
                else [Report(LogEntriesLost(member, message.tip.index, self.committed))]
            )
            return [*told, *self.lost(member)]
        self.acked[member] = min(self.acked.get(member, 0), max(self.committed, message.index))
        return self._tell_all(member)

    def _forget(self, peer: NodeId) -> None:
        """Give a learner up. It may live, and hear of it when a link to it stands."""
        learner = self.learners.forget(peer)
        if learner is not None:
            self.asking[peer] = JoinLog(learner.session, learner.acked)

    def _tell_all(self, peer: NodeId) -> list[Instruction]:
        """Every entry that is not committed, and how far the log is: the peer may have missed that, too."""
        messages = [Append(self.sync.term, entry, self.committed) for entry in (*self.entries, None)]
        return [Send(peer, message) for message in messages]

    def _resume(self, peer: NodeId) -> list[Instruction]:
        """Send a learner again what it has not acknowledged; nothing if it has not asked for it."""
        if peer not in self.learners.joined():
            return []
        self.learners.rewind(peer)
        return [*self._feed(peer), Send(peer, Append(self.sync.term, None, self.committed))]

    def _feed(self, peer: NodeId) -> list[Instruction]:
        entries = self.learners.outgoing(peer, self.committed, self.entries)
        return [Send(peer, Append(self.sync.term, entry, self.committed)) for entry in entries]

    def _propose(self) -> list[Instruction]:
        """Ask the store for a set without lost members and with learners that have it all, if that is its business."""
        gone = self.unreachable & self.sync.members - {self.me}
        if not self.member or self._waiting_for_store():
            return []
        if not self.elected:
            return self._propose_set(self.sync.members - gone) if self.sync.leader in gone else []
        # Part of what this leader found in its log may have been committed by an earlier one.
        safe = max(self.committed, self.inherited)
        ready = {peer for peer, acked in self.learners.closing().items() if acked >= safe}
        wanted = (self.sync.members - gone) | (ready - self.unreachable)
        return self._propose_set(wanted) if wanted != self.sync.members else []

    def _joining(self) -> frozenset[NodeId]:
        """The learners in a set that the store has yet to decide on."""
        return frozenset() if self.proposed is None else self.proposed.proposal.members - self.sync.members

    def _followers(self) -> list[NodeId]:
        return sorted(self.sync.members - {self.me})

    def _advance(self) -> list[Instruction]:
        if not self.leading:
            return []
        acked = [self.acked.get(peer, 0) for peer in self._followers()]
        done = self.commit(min([self.durable, *acked, *self.learners.closing().values()]))
        if not done:
            return []
        out: list[Instruction] = list(done)
        self.learners.keep([step.entry for step in done])
        while (peer := self.learners.too_slow()) is not None:
            self._forget(peer)
            out.append(Send(peer, JoinRefused(self.asking[peer].session)))
        for peer in (*self._followers(), *self.learners.joined()):
            out.append(Send(peer, Append(self.sync.term, None, self.committed)))
        return out + self._advance()  # a learner that was waited for may be forgotten
