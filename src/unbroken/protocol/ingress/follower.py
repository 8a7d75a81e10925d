"""What a member of the ingress log does that does not lead it: a follower, or a learner that is to become one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unbroken.protocol.ingress.state import IngressState
from unbroken.protocol.instructions import Instruction, Report, Send
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.ingress_log import (
    Admission,
    Append,
    AppendAck,
    Entry,
    Held,
    InSync,
    JoinLog,
    ProposeInSync,
)
from unbroken.protocol.values.notices.ingress import LogContradicted


@dataclass
class IngressFollower(IngressState):
    """Takes entries from a leader and acknowledges what is on its disk.

    Invariant: it takes entries only from the leader of the newest term that it knows of, and nothing that it has
    committed is replaced: a leader that wants that must not lead.
    """

    def _appended(self, sender: NodeId, message: Append) -> list[Instruction]:
        if not self._follows(sender, message.term):
            return []
        if message.entry is not None and self.differs(message.entry):
            return self._contradict(message.entry)
        out: list[Instruction] = []
        # An entry counts only if the one before it is certain: confirmed to this leader, or committed. A log that began
        # in the middle of a conversation may hold another leader's entry in that place.
        certain = max(self.confirmed, self.committed, min(message.committed, self.last))
        if message.entry is not None and message.entry.index <= certain + 1:
            out += self.take(message.entry)
            self.confirmed = max(self.confirmed, message.entry.index)
            if message.entry.index <= self.durable:
                out.append(Send(sender, AppendAck(self.sync.term, message.entry.index)))
        elif message.entry is None and self.learning:
            # A learner that lacks nothing has no other way to show that messages go both ways.
            out.append(Send(sender, AppendAck(self.sync.term, self.acknowledged)))
        elif self.unsure and (message.entry is not None or message.committed > self.last):
            out += self._ask_again()
        self.agreed = max(self.agreed, message.committed)
        return out + self.commit(min(self.agreed, self.durable))

    def _follows(self, sender: NodeId, term: int) -> bool:
        """Whether ``sender`` leads this member in ``term``, which may be news."""
        if term < self.sync.term or self.refused:
            return False
        if term > self.sync.term:
            # The store's document is still under way. Its version stays unknown until then, so a proposal made
            # in the meantime fails and is made again on the real document.
            self.sync = replace(self.sync, term=term, leader=sender)
            self.confirmed = self.committed
            self.recalling = False
        return sender == self.sync.leader and not self.expelled

    def _asked_what_it_holds(self, sender: NodeId, term: int) -> list[Instruction]:
        return [Send(sender, Held(term, self.tip, self.committed))] if self._follows(sender, term) else []

    def _contradict(self, entry: Entry) -> list[Instruction]:
        """The leader has another log than what was committed here: it must not lead."""
        leader = self.sync.leader
        notice = LogContradicted(self.me, leader, entry.index, entry.term, self.recent[entry.index])
        if self._waiting_for_store() or not self.member:
            return []
        return [Report(notice), *self._propose_set(self.sync.members - {leader})]

    def _still_learning(self, sync: InSync) -> Admission | None:
        """What is left of the admission when the store says ``sync``: a document with this learner ends it."""
        if self.admission is None or (self.me in sync.members and sync.version > self.admission.version):
            return None
        return self.admission

    def _follow_document(self) -> list[Instruction]:
        """The store has said who leads, and that this learner is no member."""
        admission = self.admission
        if admission is not None and self.sync.version > admission.version and self.sync.leader != admission.leader:
            # Nobody else knows this learner, and a proposal with it came too late.
            self.refused = True
            return []
        return self._ask_to_join()

    def _ask_to_join(self) -> list[Instruction]:
        if self.admission is None or self.refused:
            return []
        return [Send(self.admission.leader, JoinLog(self.admission.session, self.acknowledged))]

    def _ask_again(self) -> list[Instruction]:
        """A member that started from its disk may not have been there when its leader told it all."""
        return [Send(self.sync.leader, JoinLog("", self.acknowledged, self.tip))]

    def _propose_set(self, members: frozenset[NodeId]) -> list[Instruction]:
        proposal = InSync(self.sync.term + 1, self.me, members, self.sync.version + 1)
        self.proposed = ProposeInSync(proposal, self.sync.version)
        return [self.proposed]

    def _waiting_for_store(self) -> bool:
        return self.proposed is not None and self.proposed.replaces == self.sync.version
