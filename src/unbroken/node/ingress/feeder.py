"""Turns agreed pulses into units: reads every source as the ingress log says, splits, and writes the outboxes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa

from unbroken.connectors.base import Cut, SourceReader
from unbroken.connectors.dead_letters import DeadLetters
from unbroken.connectors.failures import is_passing
from unbroken.connectors.push.ledger import PushLedger
from unbroken.connectors.push.source import PushBatch, PushReader
from unbroken.data.schema import arrow_schema
from unbroken.flow.dataflow import Dataflow
from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.calls import Calls, CallsOf, Inline, ThreadedCalls
from unbroken.node.ingress.entries import PULSE, PulseRecord, wish_of
from unbroken.node.ingress.lanes import Closing, Deadline, Lane, PulseLane
from unbroken.node.ingress.pulse_end import PulseEnd
from unbroken.node.ingress.push_account import PushAccount, TakenPush
from unbroken.node.ingress.source_health import SourceHealth
from unbroken.node.ingress.steps import LaneBase, Step, Tally
from unbroken.node.ingress.unit_writer import SourceUnits
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.registry import offered
from unbroken.protocol.values.units import UnitHeader

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
    return Inline() if isinstance(reader, PushReader) else ThreadedCalls(f"source-{name}")


@dataclass(frozen=True)
class PulseRead:
    """What is true after a pulse whose rows are in units that are written, or wait for theirs in a lane."""

    pulse: int
    mark: PulseEnd
    rows: int
    bad_rows: int
    final: bool
    lanes: Mapping[str, LaneBase] = field(default_factory=dict)


@dataclass
class Pending:
    """A pulse that some lanes have yet to take; ``states`` are those of lanes that have."""

    mark: PulseEnd
    final: bool
    states: dict[str, Tally] = field(default_factory=dict)


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
    """

    @classmethod
    def suits(cls, flow: Dataflow) -> bool:
        """Whether the sources of this flow are fed this way."""
        return True

    def __init__(
        self,
        flow: Dataflow,
        units: SourceUnits,
        letters: DeadLetters,
        base: IngressBase | None = None,
        waiting: Iterable[Entry] = (),
        calls: CallsOf = calls_for,
    ) -> None:
        self._flow = flow
        self._calls = calls
        self._units = units
        self._letters = letters
        self._readers: dict[str, SourceReader] = {
            name: source.connector.open() for name, source in flow.sources.items()
        }
        base = base or IngressBase()
        self._base_rows = (base.rows, base.bad_rows)
        self._marks = [PulseEnd(base.index, base.positions, base.last_cut_ms, base.generation)]
        self._produced: deque[PulseRead] = deque()
        self.rows = base.rows
        self.bad_rows = base.bad_rows
        self.late_rows = 0
        for name, reader in self.push_readers().items():
            reader.forget(int(base.positions.get(name) or 0))
        ledgers = {name: base.ledger(name) for name in self.push_readers()}
        self._pushes = PushAccount(ledgers, [push for entry in waiting for push in self._take(entry, None)[1]])
        heeding = {name: reader for name, reader in self.push_readers().items() if reader.heeds}
        self._pushes.producers = {name: dict.fromkeys(base.producers.get(name, ())) for name in heeding}
        for name in heeding.keys() & base.producers.keys():
            # They were heard by then, not just now: one that has failed is not back because this node has restarted.
            heeding[name].expect(base.producers[name], base.last_cut_ms)
        self._pulse = base.pulse
        self._pending: dict[int, Pending] = {}
        self._ready: list[UnitHeader] = []
        self._lanes: Mapping[str, Lane] = self._open_lanes(base)
        self.health = SourceHealth(self._lanes, self._renew)

    def _open_lanes(self, base: IngressBase) -> Mapping[str, Lane]:
        lanes: dict[str, Lane] = {}
        for name, source in self._flow.sources.items():
            reader = self._readers[name]
            calls = Inline() if reader.paces else self._calls(name, reader)
            lanes[name] = PulseLane(reader, arrow_schema(source.connector.schema), calls, base.pulse)
        return lanes

    def ledgers(self) -> dict[str, PushLedger]:
        """The push ledgers as of the base this feeder started from: entries after it are to be accepted by them."""
        return {name: PushLedger.of(ledger.known()) for name, ledger in self._pushes.ledgers.items()}

    def persisted(self, entry: Entry) -> None:
        """An entry is in this node's log and nothing follows it: the next pulse, if cut by this node, starts there."""
        while self._marks[-1].index >= entry.index and len(self._marks) > 1:
            self._marks.pop()
        for lane in self._lanes.values():
            lane.holds.dropped(entry.index)
        if entry.pulse:
            self._marks.append(PulseEnd.of(entry))
            return
        wish = wish_of(entry.body)
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
        spans = {name: (last.positions.get(name), cut.position) for name, cut in cuts.items()}
        away = tuple(name for name, cut in cuts.items() if not cut.reachable)
        record = PulseRecord(cut_ms, spans, max(generation, last.generation), layout, away)
        return PULSE.encode(self._recorded(record, cuts)), all(cut.exhausted for cut in cuts.values())

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

    def _recorded(self, record: PulseRecord, cuts: Mapping[str, Cut]) -> PulseRecord:
        """The record with what else it says of the sources."""
        return record

    def take_push(self, entry: Entry, now_ms: int | None = None) -> PushBatch:
        """Rows pushed to a source became part of the log, and are no duplicate.

        ``now_ms`` is given for those that have come just now. When others came is told by the pulses around them, so
        that one who was heard last before a restart is not taken for one who is there.
        """
        batch, pushes = self._take(entry, now_ms)
        for push in pushes:
            self._pushes.take(push)
        return batch

    def _take(self, entry: Entry, now_ms: int | None) -> tuple[PushBatch, list[TakenPush]]:
        batch = PushBatch.from_bytes(entry.body)
        reader = self._readers.get(batch.source)
        if not isinstance(reader, PushReader):
            return batch, []
        reader.take(entry.index, batch, self._came_ms(entry) if now_ms is None else now_ms)
        return batch, [TakenPush.of(entry, batch)]

    def _came_ms(self, entry: Entry) -> int:
        """When an entry came, by the cut that follows it in the log; if none does, by the last one before it."""
        return next((mark.cut_ms for mark in self._marks if mark.index > entry.index), self._marks[-1].cut_ms)

    # --- producing ------------------------------------------------------------------------------------

    def produce(self, entry: Entry) -> tuple[UnitHeader, ...]:
        """Take a committed pulse, and write the units that are whole with it or with earlier ones."""
        if entry.pulse > self._pulse:
            self._pulse = entry.pulse
            record = PULSE.decode(entry.body)
            mark = PulseEnd.of(entry)
            self._marks = [mark, *(later for later in self._marks if later.index > entry.index)]
            self._pending[entry.pulse] = Pending(mark, entry.final)
            for name, lane in self._lanes.items():
                step = self._step(entry, mark, name, record)
                lane.add(step)
                self.health.reached(name, step.reachable, mark.cut_ms)
        return self.collect()

    def _step(self, entry: Entry, mark: PulseEnd, name: str, record: PulseRecord) -> Step:
        start, end = record.spans[name]
        return Step(entry.pulse, mark.cut_ms, start, end, name not in record.unreachable, final=entry.final)

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
        return self._units.write(name, unit, pending.mark, table, final=pending.final, anew=closing.spoiled)

    def _advance(self) -> None:
        """Remember the pulses that all lanes have taken, as what a base can be made of."""
        for pulse, pending in list(self._pending.items()):
            if len(pending.states) < len(self._lanes):
                return
            if pending.final:
                self._finish(pending)
            del self._pending[pulse]
            rows, bad_rows = self._totals(pending.states)
            lanes = {name: base for name, state in pending.states.items() if (base := state.base()) is not None}
            self._produced.append(PulseRead(pulse, pending.mark, rows, bad_rows, pending.final, lanes))
            if len(self._produced) > BASES:
                kept = [*islice(self._produced, 1, None, 2)]
                self._produced.clear()
                self._produced.extend(kept)

    def _finish(self, pending: Pending) -> None:
        """The last pulse is taken by all lanes."""

    def _totals(self, states: Mapping[str, Tally]) -> tuple[int, int]:
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

    def unreached_ms(self) -> Mapping[str, int]:
        """For how long sources could not be asked, by the clock of the log, while others were."""
        return self.health.unreached_ms(self._marks[0].cut_ms)

    def _renew(self, name: str) -> None:
        """Read a source with another reader from now on."""
        reader = self._flow.sources[name].connector.open()
        self._readers[name] = reader
        self._lanes[name].renew(reader, self._calls(name, reader))

    # --- the base ---------------------------------------------------------------------------------------

    def base_after(self, units: Mapping[str, int]) -> IngressBase | None:
        """The base if every unit of each source up to the given one is with its consumers, as `base_at`."""
        return self.base_at(min(units.values()))

    def base_at(self, pulse: int) -> IngressBase | None:
        """The base if every unit up to ``pulse`` is with its consumers; None if it is the same as before.

        It is that of the last pulse produced here, if this node is behind. Earlier ones cannot be had any more.
        """
        done: PulseRead | None = None
        while self._produced and self._produced[0].pulse <= pulse:
            done = self._produced.popleft()
        return None if done is None else self._base(done)

    def _base(self, done: PulseRead) -> IngressBase:
        pushes = self._pushes
        pushes.advance(done.mark.index, done.mark.positions)
        return IngressBase(
            done.mark.index,
            done.pulse,
            done.mark.positions,
            done.mark.cut_ms,
            pushes.waiting(),
            {name: ledger.known() for name, ledger in pushes.ledgers.items()},
            done.rows,
            done.bad_rows,
            done.final,
            done.mark.generation,
            done.lanes,
            {name: tuple(producers) for name, producers in pushes.producers.items()},
        )

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    def push_readers(self) -> Mapping[str, PushReader]:
        return {name: reader for name, reader in self._readers.items() if isinstance(reader, PushReader)}


def open_feeder(
    flow: Dataflow,
    units: SourceUnits,
    letters: DeadLetters,
    base: IngressBase | None = None,
    waiting: Iterable[Entry] = (),
    calls: CallsOf = calls_for,
) -> Feeder:
    """The sources of one ingress node, cut by pulses unless a policy of the flow has a feeder of its own."""
    kinds: list[type[Feeder]] = offered("unbroken.node.policies", "FEEDER")
    kind = next((kind for kind in kinds if kind.suits(flow)), Feeder)
    return kind(flow, units, letters, base, waiting, calls)
