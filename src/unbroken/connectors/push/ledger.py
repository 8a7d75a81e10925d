"""Recognises pushed batches that were sent again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Literal

from unbroken.errors import require

LedgerVerdict = Literal["new", "gap-ok", "duplicate"]
OfferVerdict = Literal["new", "gap-ok", "duplicate", "pending", "out-of-order"]


class PushLedger:
    """The last sequence number of every producer that is in the ingress log.

    A producer sends one batch at a time, with increasing sequence numbers, and sends a batch again until it is
    acknowledged. So a number that is not above its last one has been logged.

    Two sides use it. Every member calls `accept` for every committed entry, in the order of the log, and feeds
    only what is not a duplicate to the source: what the ledger knows is then a function of the log alone, the
    same on all members, whoever appended an entry twice. The leader asks `offer` before it appends, so that a
    resend usually need not be logged, and tracks with `begin` what is appended but not yet committed, so that a
    resend meanwhile waits for the same commit. A member that becomes leader calls `reset_pending` with the
    uncommitted tail of its log.

    Invariants
    ----------
    - At most ``max_producers`` are known; the one whose last entry is oldest in the log is forgotten first. Its
      next batch counts as new.
    - Pending numbers of a producer are above its last accepted one.
    """

    def __init__(self, max_producers: int = 100_000) -> None:
        self.max_producers = max_producers
        self._last: OrderedDict[str, int] = OrderedDict()
        self._pending: dict[str, set[int]] = {}

    def accept(self, producer: str, sequence: int) -> LedgerVerdict:
        """A committed entry: whether its rows count. ``gap-ok``: they do, and numbers before it were skipped."""
        self._settle(producer, sequence)
        last = self._last.get(producer)
        if last is not None and sequence <= last:
            return "duplicate"
        self._last[producer] = sequence
        self._last.move_to_end(producer)
        if len(self._last) > self.max_producers:
            self._last.popitem(last=False)
        return "new" if last is None or sequence == last + 1 else "gap-ok"

    def offer(self, producer: str, sequence: int) -> OfferVerdict:
        """A batch has arrived: ``new`` or ``gap-ok`` must be logged, ``duplicate`` is only acknowledged again.

        ``pending`` waits for the commit of the entry that is on its way. ``out-of-order`` is refused: a later
        batch of the producer is on its way, so whether this one is in the log could not be told afterwards.
        """
        last = self._last.get(producer)
        if last is not None and sequence <= last:
            return "duplicate"
        pending = self._pending.get(producer, set())
        if sequence in pending:
            return "pending"
        newest = max(pending, default=last)
        if newest is not None and sequence < newest:
            return "out-of-order"
        return "new" if newest is None or sequence == newest + 1 else "gap-ok"

    def begin(self, producer: str, sequence: int) -> None:
        """The leader has appended an entry with this batch."""
        self._pending.setdefault(producer, set()).add(sequence)

    def reset_pending(self, tail: list[tuple[str, int]]) -> None:
        """What is appended but not committed is exactly ``tail``, because the leader has changed."""
        self._pending = {}
        for producer, sequence in tail:
            self.begin(producer, sequence)

    def last(self, producer: str) -> int | None:
        """The last sequence number of the producer in the log; None if it is not known."""
        return self._last.get(producer)

    def known(self) -> tuple[tuple[str, int], ...]:
        """What the log up to here says, for a member that starts from a later point of it."""
        return tuple(self._last.items())

    @classmethod
    def of(cls, known: Iterable[tuple[str, int]], max_producers: int = 100_000) -> PushLedger:
        ledger = cls(max_producers)
        ledger._last = OrderedDict(known)
        return ledger

    def check(self) -> None:
        require(len(self._last) <= self.max_producers, "push ledger knows more producers than its bound")
        for producer, pending in self._pending.items():
            require(bool(pending), f"push ledger keeps an empty entry for {producer}")
            low = self._last.get(producer)
            require(low is None or min(pending) > low, f"push of {producer} is pending and committed at once")

    def _settle(self, producer: str, sequence: int) -> None:
        """Committing a number decides all smaller ones of the producer as well."""
        left = {other for other in self._pending.pop(producer, ()) if other > sequence}
        if left:
            self._pending[producer] = left
