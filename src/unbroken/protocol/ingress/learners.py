"""What the leader of the ingress log keeps for newcomers that are on their way into the in-sync set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from unbroken.errors import require
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.ingress_log import Entry

LEARNER_ENTRIES = 20_000
"""Committed entries kept for learners; hours of pulses, or minutes of small pushes while a copy is under way."""

LEARNER_BYTES = 256 * 1024 * 1024
"""Bodies of those entries: what a leader can spare beside Spark. A learner slower than that starts again."""

WINDOW_ENTRIES = 256
WINDOW_BYTES = 16 * 1024 * 1024
"""What is on its way to one learner at a time, so that a long catch-up does not fill the link for the others."""

CLOSING_LAG = 100
"""A learner this near is waited for at every commit, or it might never meet the end of a busy log."""


@dataclass
class Learner:
    """One newcomer: it holds the log up to ``acked``, and entries up to ``sent`` are on their way to it.

    ``joined``: its copy is complete and it asked for the rest. ``closing``: every commit waits for it.
    """

    session: str
    acked: int
    sent: int
    joined: bool = False
    closing: bool = False


@dataclass
class Learners:
    """The newcomers a leader knows, and the committed entries it keeps in memory for them.

    Invariants
    ----------
    - ``retained`` is the dense run of entries that ends with the last committed one; it begins not later than with
      the first entry that some learner has not acknowledged, and is empty if there is no learner.
    - It stays within LEARNER_ENTRIES and LEARNER_BYTES: the learner that needs the oldest entry is forgotten first.
    """

    known: dict[NodeId, Learner] = field(default_factory=dict)
    retained: list[Entry] = field(default_factory=list)
    retained_bytes: int = 0
    admitted: int = 0

    def admit(self, peer: NodeId, term: int, committed: int) -> str:
        """Note a newcomer whose copy holds the log up to ``committed``; returns the name of its session."""
        self.admitted += 1
        session = f"{term}.{self.admitted}"
        self.known[peer] = Learner(session, committed, committed)
        return session

    def forget(self, peer: NodeId) -> Learner | None:
        learner = self.known.pop(peer, None)
        self._release()
        return learner

    def joined(self) -> list[NodeId]:
        return sorted(peer for peer, learner in self.known.items() if learner.joined)

    def closing(self) -> dict[NodeId, int]:
        """The learners whose acknowledgement every commit needs, and how far they have acknowledged."""
        return {peer: learner.acked for peer, learner in self.known.items() if learner.closing}

    def join(self, peer: NodeId, session: str, index: int, last: int) -> bool:
        """Whether the learner can go on; what was on its way is sent again.

        What it has acknowledged holds for its session, even if it says less because a term began in between.
        """
        learner = self.known.get(peer)
        if learner is None or learner.session != session or index > last:
            return False
        learner.joined = True
        learner.acked = learner.sent = max(learner.acked, index)
        self._release()
        return True

    def acknowledge(self, peer: NodeId, index: int, committed: int) -> bool:
        """Whether this acknowledgement counts: one that was sent before the learner asked to join does not."""
        learner = self.known.get(peer)
        if learner is None or not learner.joined:
            return False
        learner.acked = max(learner.acked, index)
        learner.sent = max(learner.sent, learner.acked)
        learner.closing = learner.closing or committed - learner.acked <= CLOSING_LAG
        self._release()
        return True

    def begin_term(self, committed: int) -> None:
        """In a new term a learner, like a follower, confirms again what is not committed."""
        for learner in self.known.values():
            learner.acked = min(learner.acked, committed)

    def rewind(self, peer: NodeId) -> None:
        """What was on its way may be lost."""
        learner = self.known[peer]
        learner.sent = learner.acked

    def outgoing(self, peer: NodeId, committed: int, tail: Sequence[Entry]) -> list[Entry]:
        """The entries to send to a joined learner at this moment; ``tail`` is what follows the committed ones."""
        learner = self.known[peer]
        room = WINDOW_BYTES - sum(len(entry.body) for entry in self._run(learner.acked, learner.sent, committed, tail))
        out: list[Entry] = []
        for entry in self._run(learner.sent, learner.acked + WINDOW_ENTRIES, committed, tail):
            if room <= 0:
                break
            room -= len(entry.body)
            out.append(entry)
        learner.sent += len(out)
        return out

    def keep(self, committed: Sequence[Entry]) -> None:
        """Entries became committed."""
        if self.known:
            self.retained += committed
            self.retained_bytes += sum(len(entry.body) for entry in committed)
            self._release()

    def too_slow(self) -> NodeId | None:
        """The learner to be forgotten because more would be kept for it than may be."""
        if len(self.retained) <= LEARNER_ENTRIES and self.retained_bytes <= LEARNER_BYTES:
            return None
        return min(self.known, key=lambda peer: self.known[peer].acked)

    def check(self, committed: int) -> None:
        first = committed - len(self.retained) + 1
        ends = [self.retained[0].index, self.retained[-1].index] if self.retained else [first, committed]
        require(ends == [first, committed], "entries kept for learners have a hole")
        require(not self.retained or bool(self.known), "entries are kept for nobody")
        for peer, learner in self.known.items():
            require(learner.acked + 1 >= first, f"entry {learner.acked + 1} is not kept for {peer}")
            require(learner.acked <= learner.sent, f"{peer} has acknowledged what was not sent")

    def _run(self, after: int, through: int, committed: int, tail: Sequence[Entry]) -> list[Entry]:
        """Entries ``after + 1`` to ``through``, as far as there are any."""
        before = committed - len(self.retained)
        kept = self.retained[after - before : max(0, through - before)]
        return [*kept, *tail[max(0, after - committed) : max(0, through - committed)]]

    def _release(self) -> None:
        """Drop the entries that every learner has."""
        if not self.retained:
            return
        needed = min((learner.acked for learner in self.known.values()), default=self.retained[-1].index)
        count = max(0, needed - self.retained[0].index + 1)
        self.retained_bytes -= sum(len(entry.body) for entry in self.retained[:count])
        del self.retained[:count]
