"""What a base of the ingress has to know of pushed rows: who has pushed what, and which of it waits to be cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from unbroken.connectors.push.ledger import PushLedger
from unbroken.connectors.push.source import MOST_HEARD, PushBatch
from unbroken.protocol.ingress.log import Entry


@dataclass(frozen=True)
class TakenPush:
    """A pushed batch that counts, or a leave: its place in the log, and what the ledger is to know of it."""

    index: int
    source: str
    producer: str
    sequence: int
    leaves: bool = False

    @classmethod
    def of(cls, entry: Entry, batch: PushBatch) -> TakenPush:
        return cls(entry.index, batch.source, batch.producer, batch.sequence, batch.sign == "leaving")


class PushAccount:
    """The pushes of all sources up to a base, and those after it.

    Invariants: ``ledgers`` and ``producers`` are as of the last base; producers are those that have pushed and not
    left, who was heard last at the end. ``_taken`` are the batches after the base, ``_waiting`` those before it that
    a later pulse cuts.
    """

    def __init__(self, ledgers: Mapping[str, PushLedger], waiting: Iterable[TakenPush] = ()) -> None:
        self.ledgers = ledgers
        self.producers: dict[str, dict[str, None]] = {}
        self._taken: deque[TakenPush] = deque()
        self._waiting = list(waiting)

    def take(self, push: TakenPush) -> None:
        """A push is committed."""
        self._taken.append(push)

    def advance(self, index: int, positions: Mapping[str, Any]) -> None:
        """The base is after the entry ``index``, a pulse with these ends."""
        while self._taken and self._taken[0].index <= index:
            push = self._taken.popleft()
            self._heed(push)
            if not push.leaves:
                self.ledgers[push.source].accept(push.producer, push.sequence)
                self._waiting.append(push)
        self._waiting = [push for push in self._waiting if push.index > (positions[push.source] or 0)]

    def waiting(self) -> dict[str, tuple[int, ...]]:
        """The entries before the base that a later pulse cuts, by source."""
        return {name: tuple(push.index for push in self._waiting if push.source == name) for name in self.ledgers}

    def _heed(self, push: TakenPush) -> None:
        producers = self.producers.get(push.source)
        if producers is None:
            return
        producers.pop(push.producer, None)
        if not push.leaves:
            producers[push.producer] = None
        if len(producers) > MOST_HEARD:
            del producers[next(iter(producers))]
