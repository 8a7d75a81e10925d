"""The cuts of a fork."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unbroken.protocol.replica.cuts import reach_of
from unbroken.protocol.replica.inbox import Inbox
from unbroken.protocol.values.cuts import BatchCut
from unbroken.protocol.values.ids import StreamId

FOLDED = 64
"""Most pulses that one tentative micro-batch takes. They need not be those that anybody else takes together, so a fork
that begins late catches up at once."""


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

    def cut(self, number: int) -> BatchCut | None:
        target = self.target()
        if self.held or target <= self.done:
            return None
        return {stream: reach_of(inbox, _upto(inbox, target)) for stream, inbox in self.inboxes.items()}

    def next(self, start: int) -> int | None:
        return None if self.cut(start + 1) is None else start + 1

    def lacking(self, number: int) -> list[StreamId]:
        return [stream for stream, inbox in self.inboxes.items() if inbox.reach <= self.done]

    def forget(self, through: int) -> None:
        """There is nothing to forget."""

    @property
    def numbered(self) -> bool:
        return False

    def completes(self, cut: BatchCut, number: int) -> int:
        return number

    def awaited(self, start: int) -> list[StreamId]:
        return self.lacking(start + 1)

    def folds(self, start: int, number: int) -> bool:
        return False


def _upto(inbox: Inbox, pulse: int) -> int:
    """The last unit that completes nothing beyond a pulse."""
    unit = inbox.consumed
    while unit < inbox.available and inbox.headers[unit + 1].pulse <= pulse:
        unit += 1
    return unit
