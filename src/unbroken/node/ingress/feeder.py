"""Turns agreed pulses into units: reads every source as the ingress log says, splits, and writes the outboxes."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from unbroken.connectors.base import Cut, SourceReader
from unbroken.connectors.dead_letters import DeadLetters
from unbroken.connectors.push.ledger import PushLedger
from unbroken.connectors.push.source import MOST_HEARD, PushBatch, PushReader
from unbroken.data.digest import arrow_digest
from unbroken.data.schema import arrow_schema
from unbroken.data.sharding import split
from unbroken.data.unit_store import UnitStore, encode_unit
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.program import Consumer
from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.buckets import BucketState, Step
from unbroken.node.ingress.calls import Calls, Inline, Worker
from unbroken.node.ingress.lanes import Closing, Deadline, Lane, PulseLane, State
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.ingress.quarantine import is_passing
from unbroken.protocol.ingress.skip import Wish
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.units import UnitHeader
from unbroken.security.secret import masked

log = logging.getLogger(__name__)

CUT_S = 1.5
"""How long sources are waited for that have yet to say how far they can be read. Longer than Kafka itself waits for its
servers when they answered last time; one that is late once is not waited for again until it has answered."""

READ_S = 0.25
"""How long the rows of one source may hold up the others. Reads that take longer continue while others are written."""

BASES = 512
"""Pulses that a base can be made of. If consumers wait for a source that has failed, there are more, and only some of
them are remembered: a base is then a bit older than it could be."""


def calls_for(name: str, reader: SourceReader) -> Calls:
    """Pushed rows are in memory; a call to any other source may take as long as it likes."""
    return Inline() if isinstance(reader, PushReader) else Worker(f"source-{name}")


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
class Stuck:
    """A pulse of a source that is committed and not in a unit yet; ``held`` is the entry of the log that holds it."""

    pulse: int
    seconds: float
    trouble: str = ""
    held: int = 0
    hangs: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Taken:
    """A pushed batch that counts, or a leave: its place in the log, and what the ledger is to know of it."""

    index: int
    source: str
    producer: str
    sequence: int
    leaves: bool = False


@dataclass
class Pending:
    """A pulse that some lanes have yet to take; ``states`` are those of lanes that have."""

    mark: Mark
    final: bool
    states: dict[str, State] = field(default_factory=dict)


class Feeder:
    """The sources of one ingress node.

    ``poll`` is called on the node that leads the ingress, ``produce`` on every ingress node for every
    committed pulse in order. Both run on one thread. Given the same log all ingress nodes write the same
    units: a pulse says for each source where it starts and ends, and nothing else decides what is read.

    A feeder that starts from a ``base`` (with the pushes that wait before it) and is given the entries after it does
    exactly what the one did that was there from the first entry on. Units that are written already stay as they are.

    Each source has a lane of its own: one that cannot be asked, or not be read, holds up no other. Its cuts are empty
    meanwhile, the units of the others are written and given out, and its own units follow when it can be read.

    Invariants
    ----------
    - ``_pending`` are the committed pulses that some lane has yet to take, in order.
    - Headers in ``_ready`` are of units that are written, and have not been given out.
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
        letters: DeadLetters,
        base: IngressBase | None = None,
        waiting: Iterable[Entry] = (),
        calls: Callable[[str, SourceReader], Calls] = calls_for,
    ) -> None:
        self._flow = flow
        self._calls = calls
        self._consumers = consumers
        self._store = store
        self._outbox_path = outbox_path
        self._letters = letters
        self._readers: dict[str, SourceReader] = {
            name: source.connector.open() for name, source in flow.sources.items()
        }
        base = base or IngressBase()
        self._base_rows = (base.rows, base.bad_rows)
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
        self._pulse = base.pulse
        self._pending: dict[int, Pending] = {}
        self._ready: list[UnitHeader] = []
        self._away_ms: dict[str, int | None] = {}
        self._lanes: Mapping[str, Lane] = self._open_lanes(base)

    def _open_lanes(self, base: IngressBase) -> Mapping[str, Lane]:
        lanes: dict[str, Lane] = {}
        for name, source in self._flow.sources.items():
            reader = self._readers[name]
            calls = Inline() if reader.paces else self._calls(name, reader)
            lanes[name] = PulseLane(reader, arrow_schema(source.connector.schema), calls, base.pulse)
        return lanes

    def ledgers(self) -> dict[str, PushLedger]:
        """The push ledgers as of the base this feeder started from: entries after it are to be accepted by them."""
        return {name: PushLedger.from_json(ledger.to_json()) for name, ledger in self._ledgers.items()}

    def persisted(self, entry: Entry) -> None:
        """An entry is in this node's log and nothing follows it: the next pulse, if cut by this node, starts there."""
        while self._marks[-1].index >= entry.index and len(self._marks) > 1:
            self._marks.pop()
        for lane in self._lanes.values():
            lane.holds.dropped(entry.index)
        if entry.pulse:
            self._marks.append(Mark.of(entry))
            return
        wish = Wish.from_bytes(entry.body)
        holder = None if wish is None else self._lanes.get(wish.source)
        if wish is not None and holder is not None and wish.pulse > holder.done:
            holder.holds.persisted(entry.index, wish)

    @property
    def last_cut_ms(self) -> int:
        """The time of the last pulse in this node's log."""
        return self._marks[-1].cut_ms

    def poll(self, now_ms: int, generation: int, layout: int = 0, *, paused: bool = False) -> tuple[bytes, bool]:
        """The record of the next pulse, cut at ``now_ms``, and whether it is the last. Generations never go back.

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
        """How far each source can be read. One that fails or does not answer in time counts as one that cannot be
        reached, and stays where it is."""
        for name, lane in self._lanes.items():
            lane.ask_cut(positions.get(name), cut_ms)
        deadline = Deadline(CUT_S)
        return {name: lane.cut(positions.get(name), deadline) for name, lane in self._lanes.items()}

    def _stay(self, positions: Mapping[str, Any]) -> dict[str, Cut]:
        """The end of the pulse before; that of pushed rows is an entry of the log, also before the first of them."""
        first = dict.fromkeys(self.push_readers(), 0)
        return {name: Cut(first.get(name) if (at := positions.get(name)) is None else at) for name in self._readers}

    def _said(self, cuts: Mapping[str, Cut]) -> dict[str, Any]:
        """What else the record says of the sources."""
        return {"unreachable": [name for name, cut in cuts.items() if not cut.reachable]}

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

    # --- producing ------------------------------------------------------------------------------------

    def produce(self, entry: Entry) -> tuple[UnitHeader, ...]:
        """Take a committed pulse, and write the units that are whole with it or with earlier ones."""
        if entry.pulse > self._pulse:
            self._pulse = entry.pulse
            record = json.loads(entry.body)
            mark = Mark.of(entry)
            self._marks = [mark, *(later for later in self._marks if later.index > entry.index)]
            self._pending[entry.pulse] = Pending(mark, entry.final)
            for name, lane in self._lanes.items():
                step = self._step(entry, mark, name, record)
                lane.add(step)
                self._away_ms[name] = None if step.reachable else self._away_ms.get(name) or mark.cut_ms
        return self.collect()

    def _step(self, entry: Entry, mark: Mark, name: str, record: Mapping[str, Any]) -> Step:
        start, end = record["spans"][name]
        return Step(entry.pulse, mark.cut_ms, start, end, name not in record["unreachable"], final=entry.final)

    def collect(self) -> tuple[UnitHeader, ...]:
        """Write the units of committed pulses whose rows can be had at this moment, and give out their headers."""
        for lane in self._lanes.values():
            lane.ask_rows()
        deadline = Deadline(READ_S)
        for name, lane in self._lanes.items():
            while (closing := lane.closing(deadline)) is not None:
                if not self._settle(name, lane, closing) or not deadline.left_s:
                    break  # others have rows to be written, too
        self._advance()
        self._count()
        ready, self._ready = tuple(self._ready), []
        return ready

    def _settle(self, name: str, lane: Lane, closing: Closing) -> bool:
        """Write what a step makes of a lane; False if its rows cannot be made into units."""
        pending = self._pending[closing.step.pulse]
        headers: list[UnitHeader] = []
        try:
            for unit, table in closing.units:
                headers += self._write_unit(name, unit, table, pending, closing)
        except Exception as error:
            if is_passing(error):
                raise
            lane.refuse(error)
            return False
        if closing.bad:
            self._letters.write(name, closing.step.pulse, closing.bad)
        lane.settle(closing)
        self._ready += headers
        pending.states[name] = closing.state
        if isinstance(lane.reader, PushReader):
            lane.reader.forget(pending.mark.positions[name] or 0)
        return True

    def _write_unit(
        self, name: str, unit: int, table: pa.Table, pending: Pending, closing: Closing
    ) -> list[UnitHeader]:
        return self._write(name, unit, pending.mark, table, final=pending.final, anew=closing.spoiled)

    def _advance(self) -> None:
        """Remember the pulses that all lanes have taken, as what a base can be made of."""
        for pulse, pending in list(self._pending.items()):
            if len(pending.states) < len(self._lanes):
                return
            if pending.final:
                self._finish(pending)
            del self._pending[pulse]
            rows, bad_rows = self._totals(pending.states)
            buckets = {name: state for name, state in pending.states.items() if isinstance(state, BucketState)}
            self._produced.append(Produced(pulse, pending.mark, rows, bad_rows, pending.final, buckets))
            if len(self._produced) > BASES:
                kept = [*islice(self._produced, 1, None, 2)]
                self._produced.clear()
                self._produced.extend(kept)

    def _finish(self, pending: Pending) -> None:
        """The last pulse is taken by all lanes."""

    def _totals(self, states: Mapping[str, State]) -> tuple[int, int]:
        """Rows that were taken, and bad ones, since the flow began."""
        rows, bad_rows = self._base_rows
        return (
            rows + sum(state.rows for state in states.values()),
            bad_rows + sum(state.bad_rows for state in states.values()),
        )

    def _count(self) -> None:
        states = {name: lane.tally for name, lane in self._lanes.items() if lane.tally is not None}
        self.rows, self.bad_rows = self._totals(states)
        self.late_rows = sum(state.late_rows for state in states.values())

    # --- how the sources are ----------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether there is more to be had from `collect`, now or after a while."""
        return any(lane.steps for lane in self._lanes.values())

    @property
    def failing(self) -> bool:
        """Whether a source that is to be read has failed, and not only taken long."""
        return any(lane.failed for lane in self._lanes.values() if lane.steps)

    @property
    def troubles(self) -> Mapping[str, str]:
        """Why sources cannot be read at this moment, while others are."""
        return {name: masked(lane.trouble) for name, lane in self._lanes.items() if lane.trouble}

    def unreached_ms(self) -> Mapping[str, int]:
        """For how long sources could not be asked, by the clock of the log, while others were."""
        newest = self._marks[0].cut_ms
        return {name: newest - since for name, since in dict(self._away_ms).items() if since is not None}

    def asking_s(self) -> dict[str, float]:
        """For how long sources that are asked how far they can be read have not answered. Any thread may call it."""
        return {name: age_s for name, lane in self._lanes.items() if (age_s := round(lane.asking_s, 1))}

    def stuck(self) -> dict[str, Stuck]:
        """The sources that have a committed pulse to be read, the first such pulse of each, for how long, and why.

        May be called by any thread.
        """
        found: dict[str, Stuck] = {}
        for name, lane in self._lanes.items():
            try:
                step = lane.steps[0]
            except IndexError:
                continue
            # One that is committed is on the disks of all members, and outlives a restart of each of them.
            held = lane.holds.agreed.get(step.pulse, 0)
            found[name] = Stuck(step.pulse, round(lane.stuck_s, 1), masked(lane.trouble), held, lane.hangs)
        return found

    def take_wish(self, index: int, wish: Wish) -> str | None:
        """A wish about a source is committed; what is to be told of it."""
        lane = self._lanes.get(wish.source)
        if lane is None or wish.pulse <= lane.done:
            return None  # it is older than the base, or was refused
        before = len(lane.holds.skipped)
        lane.holds.committed(index, wish)
        if len(lane.holds.skipped) == before:
            return None
        if lane.hangs:
            # A call that never comes back would keep all that is asked after it waiting.
            reader = self._flow.sources[wish.source].connector.open()
            self._readers[wish.source] = reader
            lane.renew(reader, self._calls(wish.source, reader))
        trouble = masked(lane.trouble)
        return f"rows of source {wish.source} in pulse {wish.pulse} are skipped, see its dead letters: {trouble}"

    def holds(self) -> dict[tuple[str, int], int]:
        """The pulses that are held at this moment, by source, with the entry that holds them."""
        return {(name, pulse): at for name, lane in self._lanes.items() for pulse, at in lane.holds.agreed.items()}

    def set_aside(self) -> list[str]:
        """What is to be told about rows that were set aside since this was asked last."""
        out: list[str] = []
        for name, lane in self._lanes.items():
            reasons, lane.aside = lane.aside, []
            for reason in reasons:
                out.append(f"rows of source {name} are set aside, see its dead letters: {reason}")
        return out

    # --- the base ---------------------------------------------------------------------------------------

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
        self._waiting = [batch for batch in self._waiting if batch.index > (done.mark.positions[batch.source] or 0)]
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
        for lane in self._lanes.values():
            lane.close()

    def push_readers(self) -> Mapping[str, PushReader]:
        return {name: reader for name, reader in self._readers.items() if isinstance(reader, PushReader)}

    def _write(
        self,
        source: str,
        number: int,
        mark: Mark,
        table: pa.Table,
        *,
        final: bool,
        fold: int = 0,
        anew: bool = False,
    ) -> list[UnitHeader]:
        """Write one unit of a source, split for its consumers; the entry of ``mark`` makes it whole, and with it those
        up to ``fold``. With ``anew``, files of it that are there count for nothing."""
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
                if anew or not path.exists():
                    self._store.write(path, encode_unit(header, piece))
                out.append(header)
        return out
