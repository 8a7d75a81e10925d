"""Turns agreed pulses into units: reads every source as the ingress log says, splits, and writes the outboxes."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from unbroken.connectors.base import Cut, Rows, SourceReader
from unbroken.connectors.deadletter import DeadLetters
from unbroken.connectors.push import MOST_HEARD, PushBatch, PushReader
from unbroken.connectors.push_ledger import PushLedger
from unbroken.digest import arrow_digest
from unbroken.flow import Dataflow
from unbroken.ingress.base import IngressBase
from unbroken.ingress.buckets import BucketState
from unbroken.program import Consumer
from unbroken.protocol.ids import ShardId, StreamId
from unbroken.protocol.ingress import Entry
from unbroken.protocol.units import UnitHeader
from unbroken.sharding import split
from unbroken.spark.types import arrow_schema
from unbroken.transport.store import UnitStore, encode_unit

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mark:
    """Where a pulse in the log ends, the generation of the code whose results count for it, and the layout by which
    they are delivered."""

    index: int
    positions: Mapping[str, Any]
    cut_ms: int
    generation: int
    layout: int = 0

    @classmethod
    def of(cls, entry: Entry) -> Mark:
        record = json.loads(entry.body)
        positions = {name: span[1] for name, span in record["spans"].items()}
        numbers = (int(record["cut_ms"]), int(record["generation"]), int(record.get("layout", 0)))
        return cls(entry.index, positions, *numbers)


@dataclass(frozen=True)
class Produced:
    """What is true after a pulse whose rows are in units that are written, or wait for theirs in a lane."""

    pulse: int
    mark: Mark
    rows: int
    bad_rows: int
    final: bool
    lanes: Mapping[str, BucketState] = field(default_factory=dict)


@dataclass(frozen=True)
class _Taken:
    """A pushed batch that counts, or a leave: its place in the log, and what the ledger is to know of it."""

    index: int
    source: str
    producer: str
    sequence: int
    leaves: bool = False


class Feeder:
    """The sources of one ingress node.

    ``poll`` is called on the node that leads the ingress, ``produce`` on every ingress node for every
    committed pulse in order. Both run on one thread. Given the same log all ingress nodes write the same
    units: a pulse says for each source where it starts and ends, and nothing else decides what is read.

    A feeder that starts from a ``base`` (with the pushes that wait before it) and is given the entries after it does
    exactly what the one did that was there from the first entry on. Units that are written already stay as they are.

    Invariants
    ----------
    - ``_marks`` are the pulses in the log after the last produced one, in order, after a mark for that one.
    - ``_produced`` are the pulses that a base may still be asked for; the bound on pulses in flight bounds them.
    - ``_ledgers`` are as of the last base; ``_taken`` are the batches after it, ``_waiting`` those before it that are
      cut by a later pulse.
    - ``_producers`` are as of the last base, too: those that have pushed and not left, who was heard last at the end.
    """

    def __init__(
        self,
        flow: Dataflow,
        consumers: Callable[[str], tuple[Consumer, ...]],
        store: UnitStore,
        outbox_path: Callable[[StreamId, int], Path],
        dead_letters: Path,
        base: IngressBase | None = None,
        waiting: Iterable[Entry] = (),
    ) -> None:
        self._consumers = consumers
        self._store = store
        self._outbox_path = outbox_path
        self._letters = DeadLetters(dead_letters)
        self._readers: dict[str, SourceReader] = {
            name: source.connector.open() for name, source in flow.sources.items()
        }
        self._empty = {
            name: Rows(arrow_schema(source.connector.schema).empty_table()) for name, source in flow.sources.items()
        }
        base = base or IngressBase()
        self._marks = [Mark(base.index, base.positions, base.last_cut_ms, base.generation)]
        self._produced: deque[Produced] = deque()
        self._ledgers = {name: base.ledger(name) for name in self.push_readers()}
        self._taken: deque[_Taken] = deque()
        self._waiting: list[_Taken] = []
        self.rows = base.rows
        self.bad_rows = base.bad_rows
        self.late_rows = 0
        for name, reader in self.push_readers().items():
            reader.forget(int(base.positions.get(name) or 0))
        for entry in waiting:
            self.take_push(entry)
        self._waiting, self._taken = list(self._taken), deque()
        heeding = {name: reader for name, reader in self.push_readers().items() if reader.heeds}
        self._producers = {name: dict.fromkeys(base.producers.get(name, ())) for name in heeding}
        for name in heeding.keys() & base.producers.keys():
            # They were heard by then, not just now: one that has failed is not back because this node has restarted.
            heeding[name].expect(base.producers[name], base.last_cut_ms)

    def ledgers(self) -> dict[str, PushLedger]:
        """The push ledgers as of the base this feeder started from: entries after it are to be accepted by them."""
        return {name: PushLedger.from_json(ledger.to_json()) for name, ledger in self._ledgers.items()}

    def persisted(self, entry: Entry) -> None:
        """An entry is in this node's log and nothing follows it: the next pulse, if cut by this node, starts there."""
        while self._marks[-1].index >= entry.index and len(self._marks) > 1:
            self._marks.pop()
        if entry.pulse:
            self._marks.append(Mark.of(entry))

    def poll(self, now_ms: int, generation: int, layout: int = 0, *, paused: bool = False) -> tuple[bytes, bool]:
        """The record of the next pulse, and whether it is the last. Generations never go back.

        While the flow is ``paused``, no source is asked, and all of them stay where they are.
        """
        last = self._marks[-1]
        cut_ms = max(now_ms, last.cut_ms + 1)
        cuts = self._stay(last.positions) if paused else self._cuts(last.positions, cut_ms)
        record = {
            "cut_ms": cut_ms,
            "spans": {name: [last.positions.get(name), cut.position] for name, cut in cuts.items()},
            "generation": max(generation, last.generation),
            "layout": layout,
            **self._said(cuts),
        }
        return json.dumps(record, separators=(",", ":")).encode(), all(cut.exhausted for cut in cuts.values())

    def _cuts(self, positions: Mapping[str, Any], cut_ms: int) -> dict[str, Cut]:
        """How far each source can be read."""
        return {name: reader.poll(positions.get(name), cut_ms) for name, reader in self._readers.items()}

    def _stay(self, positions: Mapping[str, Any]) -> dict[str, Cut]:
        """The end of the pulse before; that of pushed rows is an entry of the log, also before the first of them."""
        first = dict.fromkeys(self.push_readers(), 0)
        return {name: Cut(first.get(name) if (at := positions.get(name)) is None else at) for name in self._readers}

    def _said(self, cuts: Mapping[str, Cut]) -> dict[str, Any]:
        """What else the record says of the sources."""
        return {}

    def take_push(self, entry: Entry, now_ms: int | None = None) -> PushBatch:
        """Rows pushed to a source became part of the log, and are no duplicate.

        ``now_ms`` is given for those that have come just now. When others came is told by the pulses around them, so
        that one who was heard last before a restart is not taken for one who is there.
        """
        batch = PushBatch.from_bytes(entry.body)
        reader = self._readers.get(batch.source)
        if isinstance(reader, PushReader):
            reader.take(entry.index, batch, self._came_ms(entry) if now_ms is None else now_ms)
            leaves = batch.sign == "leaving"
            self._taken.append(_Taken(entry.index, batch.source, batch.producer, batch.sequence, leaves))
        return batch

    def _came_ms(self, entry: Entry) -> int:
        """When an entry came, by the cut that follows it in the log; if none does, by the last one before it."""
        return next((mark.cut_ms for mark in self._marks if mark.index > entry.index), self._marks[-1].cut_ms)

    def produce(self, entry: Entry) -> tuple[UnitHeader, ...]:
        """Write the units of a committed pulse."""
        record = json.loads(entry.body)
        mark = Mark.of(entry)
        headers: list[UnitHeader] = []
        rows_taken = bad_rows = 0
        for name, (start, end) in record["spans"].items():
            # A source that cannot be reached, or is not to be read, holds nobody up if nothing is wanted of it.
            rows = self._empty[name] if start == end else self._readers[name].read(start, end)
            if rows.bad:
                self._letters.write(name, entry.pulse, rows.bad)
            bad_rows += len(rows.bad)
            rows_taken += rows.table.num_rows
            headers += self._write(name, entry.pulse, mark, rows.table, final=entry.final)
        # Only when the pulse is whole: if a source fails, the pulse is read again from the start.
        self.rows += rows_taken
        self.bad_rows += bad_rows
        for name, reader in self.push_readers().items():
            reader.forget(mark.positions[name])
        self._marks = [mark, *(later for later in self._marks if later.index > entry.index)]
        self._produced.append(Produced(entry.pulse, mark, self.rows, self.bad_rows, entry.final))
        return tuple(headers)

    @property
    def behind(self) -> bool:
        """Whether there is more to be had from `collect`, now or after a while."""
        return False

    @property
    def failing(self) -> bool:
        """Whether a source that is to be read has failed, and not only taken long."""
        return False

    @property
    def troubles(self) -> Mapping[str, str]:
        """Why sources cannot be read at this moment, if others go on meanwhile."""
        return {}

    def unreached_ms(self) -> Mapping[str, int]:
        """For how long sources could not be asked, by the clock of the log, if others go on meanwhile."""
        return {}

    def collect(self) -> tuple[UnitHeader, ...]:
        """Write the units of pulses that were committed earlier and could not be read then."""
        return ()

    def base_after(self, units: Mapping[str, int]) -> IngressBase | None:
        """The base if every unit of each source up to the given one is with its consumers, as `base_at`."""
        return self.base_at(min(units.values()))

    def base_at(self, pulse: int) -> IngressBase | None:
        """The base if every unit up to ``pulse`` is with its consumers; None if it is the same as before.

        It is that of the last pulse produced here, if this node is behind. Earlier ones cannot be had any more.
        """
        done: Produced | None = None
        while self._produced and self._produced[0].pulse <= pulse:
            done = self._produced.popleft()
        return None if done is None else self._base(done)

    def _base(self, done: Produced) -> IngressBase:
        while self._taken and self._taken[0].index <= done.mark.index:
            batch = self._taken.popleft()
            self._heed(batch)
            if not batch.leaves:
                self._ledgers[batch.source].accept(batch.producer, batch.sequence)
                self._waiting.append(batch)
        self._waiting = [batch for batch in self._waiting if batch.index > done.mark.positions[batch.source]]
        waiting = {name: tuple(b.index for b in self._waiting if b.source == name) for name in self._ledgers}
        return IngressBase(
            done.mark.index,
            done.pulse,
            done.mark.positions,
            done.mark.cut_ms,
            waiting,
            {name: ledger.to_json() for name, ledger in self._ledgers.items()},
            done.rows,
            done.bad_rows,
            done.final,
            done.mark.generation,
            {name: state.to_json() for name, state in done.lanes.items()},
            {name: tuple(producers) for name, producers in self._producers.items()},
        )

    def _heed(self, batch: _Taken) -> None:
        producers = self._producers.get(batch.source)
        if producers is None:
            return
        producers.pop(batch.producer, None)
        if not batch.leaves:
            producers[batch.producer] = None
        if len(producers) > MOST_HEARD:
            del producers[next(iter(producers))]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def push_readers(self) -> Mapping[str, PushReader]:
        return {name: reader for name, reader in self._readers.items() if isinstance(reader, PushReader)}

    def _write(
        self, source: str, number: int, mark: Mark, table: pa.Table, *, final: bool, fold: int = 0
    ) -> list[UnitHeader]:
        """Write one unit of a source, split for its consumers; the entry of ``mark`` makes it whole, and with it those
        up to ``fold``."""
        out: list[UnitHeader] = []
        for consumer in self._consumers(source):
            for index, piece in enumerate(split(table, consumer.keys, consumer.shards)):
                stream = StreamId(ShardId(source, 0), ShardId(consumer.part, index))
                header = UnitHeader(
                    stream,
                    number,
                    number,
                    mark.cut_ms,
                    arrow_digest(piece),
                    piece.nbytes,
                    final=final,
                    generation=mark.generation,
                    layout=mark.layout,
                    fold=fold,
                )
                path = self._outbox_path(stream, number)
                if not path.exists():
                    self._store.write(path, encode_unit(header, piece))
                out.append(header)
        return out
