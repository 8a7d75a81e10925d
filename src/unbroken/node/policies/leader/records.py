"""What an order log made of plain records means: the same to everybody who reads it, from wherever.

A log that cannot refuse a record (Kafka takes everything) is fenced by its readers: each applies one rule to one
sequence of records. A term belongs to the node whose record of it comes first and is of a later term than all before;
an order counts if the leader of the term in force at its place wrote it, in that term, and its number is the next one.
Everything else, such as what an old leader sent before it was frozen, is passed over by all readers alike.

The rule needs to know how things stood before, and nobody can read a long log from its beginning. So every record has
an `OrderLogMark`: how things stood at a place its writer had read up to. A mark is a fact about the part of the log
before it, and facts of that kind never change; it may be believed even if the record that has it does not count. Only
of a writer of this flow, though: what others put into the log is no record, see `unbroken.node.policies.leader.seal`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.node.policies.leader.log import Delivery, Standing
from unbroken.protocol.policies.leader.orders import Order
from unbroken.protocol.values.ids import NodeId

log = logging.getLogger(__name__)

WINDOW = 64
"""Records looked at in one place when a start is searched."""

NEAR = 1_000
"""A start is good if it is at most this many records before the wanted one; they are read in a few milliseconds."""


MOST_NAME_CHARS = 1_000
MOST = 1 << 63
"""Numbers of a record are smaller, and not negative."""


@dataclass(frozen=True)
class OrderLogMark:
    """How things stand in a log before the record at ``offset``."""

    offset: int = 0
    standing: Standing = field(default_factory=Standing)


@dataclass(frozen=True)
class OrderRecord:
    """One record of a log: an order, or without one the beginning of a term.

    ``writer`` tells processes apart that have the same node's name one after the other.
    """

    node: NodeId
    writer: str
    mark: OrderLogMark
    term: int
    order: Order | None = None

    def to_bytes(self) -> bytes:
        return RECORD.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes | None) -> OrderRecord | None:
        """None if this is no record of an order log, whatever it is: all readers pass over it alike.

        What is no record does not depend on the stack below the reader: the codec reads nothing that is nested deeper
        than the fields of a record.
        """
        try:
            found = RECORD.decode(data or b"")
        except Undecodable:
            return None
        standing, order = found.mark.standing, found.order
        numbers = [found.term, found.mark.offset, standing.term, standing.before, standing.last]
        if order is not None:
            numbers += [order.number, order.term, *order.cut.values()]
        sound = all(0 <= number < MOST for number in numbers)
        return found if sound and all(map(_is_name, (found.node, found.writer, standing.leader))) else None


RECORD = Codec(OrderRecord, "order-record", readable=True)

Reading = Callable[[bytes | None], OrderRecord | None]
"""What the bytes of a record say; None for all that is none. It never raises, and says the same to all readers."""


def _is_name(value: str) -> bool:
    return len(value) <= MOST_NAME_CHARS and value.isprintable()


def judge(standing: Standing, record: OrderRecord) -> Standing | str:
    """How things stand behind a record that counts; or why it does not ("" if it only repeats what is there)."""
    order = record.order
    if order is None:
        if record.term > standing.term:
            return standing.begin(record.term, record.node)
        return standing.refusal(record.node, record.term) or ""
    if refusal := standing.refusal(record.node, record.term):
        return refusal
    if order.number <= standing.before:
        return f"order {order.number} was given before term {record.term}"
    if order.number <= standing.last:
        return ""
    if order.number != standing.last + 1:
        return f"order {order.number} is not the next one after {standing.last}"
    return replace(standing, last=order.number)


@dataclass(frozen=True)
class StartMissing:
    """There is no place to start from; ``first`` is the oldest order that can be read with certainty, 0 if none can."""

    first: int


class Search:
    """Looks for a late mark from which order ``after`` + 1 can be reached, in a log from ``low`` to before ``high``.

    It reads a few records at the end first. Marks that are too late say how far to go back at least, because every
    order takes a record. So the second place is nearly always the right one; if not, the steps are doubled. What is
    read is bounded by a few records in each of as many places as the length of the log has digits, whatever is in it.
    """

    def __init__(self, after: int, low: int, high: int) -> None:
        self._after = after
        self._low = low
        self._high = high
        self._bound = high
        """Order ``after`` + 1 is not behind this."""
        self._best: OrderLogMark | None = OrderLogMark() if low == 0 else None
        self._first = 0
        self._marks: list[OrderLogMark] = []
        self._step = WINDOW
        self.start = max(low, high - WINDOW)
        self.end = high
        """The records from ``start`` to before ``end`` are to be read next."""
        self._oldest = self.start == low

    def learn(self, offset: int, record: OrderRecord | None) -> None:
        """Take a record of the part that is to be read. What its mark is about may be deleted already."""
        if record is not None and self._low <= record.mark.offset <= offset:
            self._marks.append(record.mark)

    def decide(self) -> OrderLogMark | StartMissing | None:
        """Where to start, after the whole part was read; None if there is another part to read first."""
        marks, self._marks = self._marks, []
        for mark in marks:
            ahead = mark.standing.last - self._after
            if ahead > 0:
                self._bound = min(self._bound, mark.offset - ahead)
                self._first = min(self._first or mark.standing.last + 1, mark.standing.last + 1)
            elif self._best is None or mark.offset > self._best.offset:
                self._best = mark
        if self._best is not None and (self._oldest or self._best.offset >= min(self.start, self._bound - NEAR)):
            # Marks are about what is before them: further back there is none that is better.
            return self._best
        if not self._oldest:
            self.start = max(self._low, min(self._bound, self.start) - self._step)
            self.end = min(self.start + WINDOW, self._high)
            self._step *= 2
            self._oldest = self.start == self._low
        elif marks or self.end >= self._high:
            return StartMissing(self._first)
        else:
            # The marks of the oldest records are about what is deleted.
            self.start, self.end = self.end, min(self.end + WINDOW, self._high)
        return None


class Tail:
    """Reads one log record by record and gives what counts to a `Delivery`.

    ``position`` is where it wants the next record from. It goes up by one with each record, except while it searches
    for its start. ``mark`` is how things stand there, None while it searches.
    """

    def __init__(self, delivery: Delivery, writer: str, low: int, high: int, read: Reading) -> None:
        self._delivery = delivery
        self._writer = writer
        self._read = read
        self._high = high
        self._pending: list[Order] = []
        self._refused: dict[int, str] = {}
        self._begun: Standing | None = None
        """How things stood at the start, until that is posted."""
        self.mark: OrderLogMark | None = None
        self._search = Search(delivery.last, low, high)
        self.position = self._search.start
        if low == high:
            self._start(StartMissing(0) if low else OrderLogMark())

    def take(self, offset: int, data: bytes | None) -> None:
        """Take the record at ``offset``, which is not before ``position``.

        If what it leads to cannot be posted the exception is passed on, and the record is still the next one.
        """
        before = self.mark, self.position
        try:
            self._take(offset, self._read(data))
        except Exception:
            if before[0] is not None:
                self.mark, self.position = before
            raise

    def _take(self, offset: int, record: OrderRecord | None) -> None:
        if self.mark is None:
            self._look(offset, record)
            return
        self.position = offset + 1
        standing = self.mark.standing
        found = standing if record is None else judge(standing, record)
        # Before anything is posted: whoever is told that it leads may publish at once.
        self.mark = OrderLogMark(self.position, found if isinstance(found, Standing) else standing)
        if isinstance(found, str):
            if record is not None and found and record.writer == self._writer:
                self._refused[record.term] = found
        elif record is None:
            log.warning("record %d of the orders of %s has no seal of this flow", offset, self._delivery.shard)
        elif record.order is None:
            self.flush()
            self._delivery.leader(found)
        elif record.order.number > (self._pending[-1].number if self._pending else self._delivery.last):
            self._pending.append(record.order)
        self._check_length()

    def flush(self) -> None:
        """Post what was taken; called when there is no record to take at the moment."""
        if self._begun is not None:
            self._delivery.leader(self._begun)
            self._begun = None
        self._delivery.orders(self._pending)
        self._pending = []
        while self._refused:
            term, reason = next(iter(self._refused.items()))
            self._delivery.refused(term, reason)
            del self._refused[term]

    def _look(self, offset: int, record: OrderRecord | None) -> None:
        if offset < self._search.end:
            self._search.learn(offset, record)
        self.position = offset + 1
        if self.position >= self._search.end:
            found = self._search.decide()
            self.position = self._search.start
            if found is not None:
                self._start(found)

    def _start(self, found: OrderLogMark | StartMissing) -> None:
        if isinstance(found, StartMissing):
            self._delivery.lost(found.first, "the log does not go back far enough")
            return
        self.mark, self.position, self._begun = found, found.offset, found.standing
        self.flush()
        self._check_length()

    def _check_length(self) -> None:
        """A log that ends before what was read of it earlier is not the same log any more."""
        if self.mark is None or self.mark.offset < self._high or self._delivery.ended:
            return
        last = self.mark.standing.last
        if last < self._delivery.last:
            self._delivery.lost(last + 1, f"the log ends with order {last}")
