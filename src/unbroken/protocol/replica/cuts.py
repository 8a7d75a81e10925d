"""Cuts: which units belong to a micro-batch, and the gate that releases one cut per trigger round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from unbroken.errors import require
from unbroken.protocol.leader.orders import Order
from unbroken.protocol.replica.inbox import Inbox
from unbroken.protocol.values.ids import StreamId

FOLDED = 64
"""Most pulses that one tentative micro-batch takes. They need not be those that anybody else takes together, so a fork
that begins late catches up at once."""


TOGETHER = 16
"""Most pulses that a stable micro-batch takes. All inputs must have all of them, so if another one is away, results of
so many pulses may wait for it."""


@dataclass(frozen=True)
class Reach:
    """How far a stream is taken: up to ``unit``, which completes ``pulse``, cut at ``cut_ms``; ``final`` if none will
    follow."""

    unit: int = 0
    pulse: int = 0
    cut_ms: int = 0
    final: bool = False

    def to_json(self) -> list[Any]:
        return [self.unit, self.pulse, self.cut_ms, int(self.final)]

    @classmethod
    def from_json(cls, value: list[Any]) -> Reach:
        return cls(int(value[0]), int(value[1]), int(value[2]), bool(value[3]))

    @classmethod
    def of(cls, inbox: Inbox, unit: int) -> Reach:
        """The reach of a unit that is in the inbox, or was the last to be taken from it."""
        header = inbox.headers.get(unit)
        if header is None:
            return cls(inbox.consumed, inbox.pulse, inbox.cut_ms, inbox.ended)
        return cls(unit, header.pulse, header.cut_ms, header.final)


Cut = Mapping[StreamId, Reach]
"""For one micro-batch: how far it takes each input stream."""


class Ordering(Protocol):
    """Decides cuts. Every replica of a shard must get the same answer for the same number."""

    def cut(self, number: int) -> Cut | None:
        """The cut of micro-batch ``number``, or None while it is not agreed or not complete here."""

    def next(self, start: int) -> int | None:
        """The number of the micro-batch that follows ``start``, or None while there is none to run."""

    def lacking(self, number: int) -> list[StreamId]:
        """The streams of which micro-batch ``number`` lacks something that has been agreed on."""

    def forget(self, through: int) -> None:
        """Micro-batches up to ``through`` are committed."""


@dataclass
class PulseCuts:
    """Micro-batch b takes every input stream to the first unit that completes pulse b: nobody has to be asked.

    The units of sources and of pulse-ordered producers are numbered by the pulse they complete, so that this is unit b.
    A leader-ordered producer makes units as it likes, and says with each which pulse it completes; it may be that one
    unit completes several pulses, or that several are needed for one. Agreement follows from the units alone;
    completeness is the only thing to wait for. And ``generation``: a unit for which results of a later one count waits
    until the node has heard whether this replica's are among them.

    Units up to ``joined`` may be taken together, as many as there are: they only build a state again whose results are
    for nobody yet, and agreement is about results.
    """

    inboxes: Mapping[StreamId, Inbox]
    generation: int = 1
    joined: int = 0

    def cut(self, number: int) -> Cut | None:
        out: dict[StreamId, Reach] = {}
        ended = True
        for stream, inbox in self.inboxes.items():
            unit = inbox.completing(number)
            if unit is None or not self._known(inbox, unit):
                return None
            ended = ended and inbox.ended
            out[stream] = Reach.of(inbox, unit)
        return None if ended else out

    def next(self, start: int) -> int | None:
        number = self.together(start + 1)
        if number is None or (number > start + 1 and self.cut(number) is None):
            return None
        while number < self.joined and self.cut(number + 1) is not None:
            number += 1
        return number

    def together(self, number: int) -> int | None:
        """The pulse up to which one micro-batch goes that begins with ``number``; None while that cannot be told.

        Pulses that the last of the inputs has closed at once are taken together: it was away for a while, or the flow
        was behind, and one large micro-batch is done much sooner than many small ones. All of that is in the units.
        """
        if self.cut(number) is None:
            return None
        headers = [header for inbox in self.inboxes.values() if (header := inbox.headers.get(number)) is not None]
        latest = max((header.cut_ms for header in headers), default=0)
        fold = min((header.fold for header in headers if header.cut_ms == latest), default=0)
        return max(number, min(fold, number + TOGETHER - 1))

    def lacking(self, number: int) -> list[StreamId]:
        wanted = self.together(number) or number
        return [stream for stream, inbox in self.inboxes.items() if inbox.completing(wanted) is None]

    def forget(self, through: int) -> None:
        """There is nothing to forget: cuts follow from the inboxes."""

    def _known(self, inbox: Inbox, unit: int) -> bool:
        header = inbox.headers.get(unit)
        return header is None or header.generation <= self.generation


@dataclass
class LeaderCuts:
    """Micro-batch b takes what order b says, once all of it is here.

    Invariant: ``orders`` are those after the last committed micro-batch, without a hole.
    """

    inboxes: Mapping[StreamId, Inbox]
    orders: dict[int, Order] = field(default_factory=dict)
    generation: int = 1
    joined: int = 0

    def cut(self, number: int) -> Cut | None:
        order = self.orders.get(number)
        if order is None or self.lacking(number):
            return None
        return {
            stream: Reach.of(inbox, order.cut.get(stream, inbox.consumed)) for stream, inbox in self.inboxes.items()
        }

    def next(self, start: int) -> int | None:
        return None if self.cut(start + 1) is None else start + 1

    def lacking(self, number: int) -> list[StreamId]:
        order = self.orders.get(number)
        if order is None:
            return []
        return [stream for stream, inbox in self.inboxes.items() if inbox.available < order.cut.get(stream, 0)]

    def forget(self, through: int) -> None:
        self.orders = {number: order for number, order in self.orders.items() if number > through}


@dataclass
class ForkCuts:
    """A micro-batch takes everything up to the last pulse that is complete in all inputs but the ``missing`` ones.

    Nobody else has to agree. ``done`` is the pulse up to which input is taken; ``held`` stops the fork. Results up to
    pulse ``known`` were given out by another one: they are not put together with those that follow, as nobody should
    get them twice.
    """

    inboxes: Mapping[StreamId, Inbox]
    done: int
    missing: frozenset[StreamId] = frozenset()
    held: bool = False
    known: int = 0
    generation: int = 1
    joined: int = 0

    def reach(self) -> int:
        """The pulse up to which there is input."""
        reaches = {stream: inbox.reach for stream, inbox in self.inboxes.items()}
        there = [reach for stream, reach in reaches.items() if stream not in self.missing]
        return min(there) if there else max(reaches.values())

    def target(self) -> int:
        """The pulse up to which the next micro-batch goes; not beyond ``done`` if there is none."""
        most = self.done + FOLDED
        # What is complete comes first, by itself: its results are as good as stable ones, and need not be shown.
        whole = min(inbox.reach for inbox in self.inboxes.values())
        marks = [mark for mark in (self.known, whole) if mark > self.done]
        reach = self.reach()
        target = min(reach, most, *marks)
        # Units that cover several pulses may all reach beyond that; then the first of them is taken, or nothing yet.
        waiting = [inbox for inbox in self.inboxes.values() if inbox.available > inbox.consumed]
        first = min((inbox.headers[inbox.consumed + 1].pulse for inbox in waiting), default=reach + 1)
        if first <= target:
            return target
        return first if first <= reach else self.done

    def cut(self, number: int) -> Cut | None:
        target = self.target()
        if self.held or target <= self.done:
            return None
        return {stream: Reach.of(inbox, _upto(inbox, target)) for stream, inbox in self.inboxes.items()}

    def next(self, start: int) -> int | None:
        return None if self.cut(start + 1) is None else start + 1

    def lacking(self, number: int) -> list[StreamId]:
        return [stream for stream, inbox in self.inboxes.items() if inbox.reach <= self.done]

    def forget(self, through: int) -> None:
        """There is nothing to forget."""


def _upto(inbox: Inbox, pulse: int) -> int:
    """The last unit that completes nothing beyond a pulse."""
    unit = inbox.consumed
    while unit < inbox.available and inbox.headers[unit + 1].pulse <= pulse:
        unit += 1
    return unit


@dataclass
class Gate:
    """One answer per trigger round for all source instances of one query.

    Spark asks the instances of a query one after another within a trigger. If one were told "nothing yet"
    and the next "one further", the micro-batch would hold half a cut. The answer of a round is therefore
    fixed when its first instance is answered; a round ends when an instance asks again.

    Invariant: within a round all instances get the same answer, and an answer is the start of the round or what the
    ordering has after it.
    """

    ordering: Ordering
    asked: set[str] = field(default_factory=set)
    start: int | None = None
    answer: int | None = None

    def ask(self, instance: str, start: int, *, give_up: bool = False) -> int | None:
        """The offset to advance to, or None while the caller should wait.

        ``give_up`` answers with ``start`` ("no data yet") when the cut is still incomplete, so that no call
        from Spark waits for long.
        """
        if self.answer is None or instance in self.asked or start != self.start:
            self._new_round(start)
        if self.answer is None:
            self.answer = self.ordering.next(start)
        if self.answer is None and give_up:
            self.answer = start
        if self.answer is None:
            return None
        self.asked.add(instance)
        return self.answer

    def check(self) -> None:
        if self.answer is not None:
            require(self.start is not None and self.answer >= self.start, "the gate went back")

    def _new_round(self, start: int) -> None:
        self.asked.clear()
        self.start = start
        self.answer = None
