"""Cuts: which units belong to a micro-batch, and the gate that releases one cut per trigger round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from unbroken.errors import require
from unbroken.protocol.replica.inbox import Inbox
from unbroken.protocol.values.cuts import BatchCut, Reach
from unbroken.protocol.values.ids import StreamId

TOGETHER = 16
"""Most pulses that a stable micro-batch takes. All inputs must have all of them, so if another one is away, results of
so many pulses may wait for it. A micro-batch ends with a multiple of it at the latest, so that where it ends does not
depend on where it began: a replica that is rebuilt may begin in the middle of what others have taken together."""


def reach_of(inbox: Inbox, unit: int) -> Reach:
    """The reach of a unit that is in the inbox, or was the last to be taken from it."""
    header = inbox.headers.get(unit)
    if header is None:
        return Reach(inbox.consumed, inbox.pulse, inbox.cut_ms, inbox.ended)
    return Reach(unit, header.pulse, header.cut_ms, header.final)


class Ordering(Protocol):
    """Decides cuts. Every replica of a shard must get the same answer for the same number.

    ``numbered``: micro-batch b completes pulse b. A unit for which results of a generation later than ``generation``
    count waits. Units up to ``joined`` may be taken together.
    """

    generation: int
    joined: int

    @property
    def numbered(self) -> bool: ...

    def cut(self, number: int) -> BatchCut | None:
        """The cut of micro-batch ``number``, or None while it is not agreed or not complete here."""

    def next(self, start: int) -> int | None:
        """The number of the micro-batch that follows ``start``, or None while there is none to run."""

    def lacking(self, number: int) -> list[StreamId]:
        """The streams of which micro-batch ``number`` lacks something that has been agreed on."""

    def forget(self, through: int) -> None:
        """Micro-batches up to ``through`` are committed."""

    def completes(self, cut: BatchCut, number: int) -> int:
        """The pulse that the output of a micro-batch with this cut completes."""

    def awaited(self, start: int) -> list[StreamId]:
        """The streams that the micro-batch after ``start`` waits for a unit of."""

    def folds(self, start: int, number: int) -> bool:
        """Whether a micro-batch after ``start`` folds pulses up to ``number`` whose results count one by one."""


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

    def cut(self, number: int) -> BatchCut | None:
        out: dict[StreamId, Reach] = {}
        ended = True
        for stream, inbox in self.inboxes.items():
            unit = inbox.completing(number)
            if unit is None or not self._known(inbox, unit):
                return None
            ended = ended and inbox.ended
            out[stream] = reach_of(inbox, unit)
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
        was behind, and one large micro-batch is done much sooner than many small ones. All of that is in the units,
        also that nobody has to wait for it: the last input says how far those had come by then that had this pulse
        before, and of those that came with it the least counts.
        """
        if self.cut(number) is None:
            return None
        headers = [header for inbox in self.inboxes.values() if (header := inbox.headers.get(number)) is not None]
        latest = max((header.cut_ms for header in headers), default=0)
        fold = min((header.fold for header in headers if header.cut_ms == latest), default=0)
        return max(number, min(fold, number + -number % TOGETHER))

    def lacking(self, number: int) -> list[StreamId]:
        wanted = self.together(number) or number
        return [stream for stream, inbox in self.inboxes.items() if inbox.completing(wanted) is None]

    def forget(self, through: int) -> None:
        """There is nothing to forget: cuts follow from the inboxes."""

    @property
    def numbered(self) -> bool:
        return True

    def completes(self, cut: BatchCut, number: int) -> int:
        return number

    def awaited(self, start: int) -> list[StreamId]:
        return self.lacking(start + 1)

    def folds(self, start: int, number: int) -> bool:
        return number > max(start + 1, self.joined) and self.together(start + 1) == number

    def _known(self, inbox: Inbox, unit: int) -> bool:
        header = inbox.headers.get(unit)
        return header is None or header.generation <= self.generation


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
