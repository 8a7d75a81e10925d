"""Cuts: which units belong to a micro-batch, and the gate that releases one cut per trigger round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from unbroken.errors import require
from unbroken.protocol.ids import StreamId
from unbroken.protocol.inbox import Inbox

Cut = Mapping[StreamId, int]
"""For one micro-batch: the last unit of each input stream that belongs to it."""


class Ordering(Protocol):
    """Decides cuts. Every replica of a shard must get the same answer for the same number."""

    def cut(self, number: int) -> Cut | None:
        """The cut of micro-batch ``number``, or None while it is not agreed or not complete here."""

    def next(self, start: int) -> int | None:
        """The number of the micro-batch that follows ``start``, or None while there is none to run."""


@dataclass
class PulseCuts:
    """Micro-batch b takes unit b of every input stream: nobody has to be asked.

    The units of a pulse-ordered producer are numbered by the pulse they complete, so agreement follows
    from the numbers alone; completeness is the only thing to wait for. And ``generation``: a unit for which results of
    a later one count waits until the node has heard whether this replica's are among them.

    Units up to ``joined`` may be taken together, as many as there are: they only build a state again whose results are
    for nobody yet, and agreement is about results.
    """

    inboxes: Mapping[StreamId, Inbox]
    generation: int = 1
    joined: int = 0

    def cut(self, number: int) -> Cut | None:
        if all(self._ready(inbox, number) for inbox in self.inboxes.values()):
            return dict.fromkeys(self.inboxes, number)
        return None

    def next(self, start: int) -> int | None:
        if self.cut(start + 1) is None:
            return None
        number = start + 1
        while number < self.joined and self.cut(number + 1) is not None:
            number += 1
        return number

    def _ready(self, inbox: Inbox, number: int) -> bool:
        header = inbox.headers.get(number)
        return inbox.available >= number and (header is None or header.generation <= self.generation)


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
