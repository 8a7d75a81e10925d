"""The feeder of a flow whose units are buckets of event time: every source goes its own way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from unbroken.connectors.base import Cut, SourceReader
from unbroken.connectors.push import PushReader
from unbroken.flow import Dataflow
from unbroken.ingress.base import IngressBase
from unbroken.ingress.buckets import BucketState, Step, rules_of
from unbroken.ingress.calls import Calls, Inline, Worker
from unbroken.ingress.feeder import Feeder, Mark, Produced
from unbroken.ingress.lanes import Closing, Deadline, Lane
from unbroken.ordering import bucketed
from unbroken.program import Consumer
from unbroken.protocol.ids import StreamId
from unbroken.protocol.ingress import Entry
from unbroken.protocol.units import UnitHeader
from unbroken.spark.types import arrow_schema
from unbroken.transport.store import UnitStore

CUT_S = 1.5
"""How long sources are waited for that have yet to say how far they can be read. Longer than Kafka itself waits for its
servers when they answered last time; one that is late once is not waited for again until it has answered."""

READ_S = 0.25
"""How long the rows of one source may hold up the others. Reads that take longer go on meanwhile."""

BASES = 512
"""Pulses that a base can be made of. If consumers wait for a source that has failed, there are more, and only some of
them are remembered: a base is then a bit older than it could be."""


def calls_for(name: str, reader: SourceReader) -> Calls:
    """Pushed rows are in memory; any other source may keep whoever asks it waiting."""
    return Inline() if isinstance(reader, PushReader) else Worker(f"source-{name}")


@dataclass
class _Pending:
    """A pulse that some lanes have yet to take; ``states`` are those of lanes that have."""

    mark: Mark
    final: bool
    states: dict[str, BucketState] = field(default_factory=dict)


class BucketFeeder(Feeder):
    """A feeder whose sources are not cut together: unit b of a source has its rows of the b-th bucket of event time.

    An entry of the log says how far each source is read, as ever, and which ones could not be asked; when a unit is
    whole follows from that and from the rows (`BucketRule`). With an entry a source may close several units, or none.

    A source that cannot be asked or read holds up nobody else: the others' entries are taken, its own wait in its lane.
    It ends with the others: when the last entry is taken by all lanes, they go on to the bucket after the last one that
    any of them has, which is empty and final.

    The base is that of the last pulse whose rows are all in units that are with their consumers, also those that had to
    wait for their unit to close after that pulse.

    Invariants
    ----------
    - ``_pending`` are the committed pulses that some lane has yet to take, in order.
    - Headers in ``_ready`` are of units that are written, and have not been given out.
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
        calls: Callable[[str, SourceReader], Calls] = calls_for,
    ) -> None:
        super().__init__(flow, consumers, store, outbox_path, dead_letters, base, waiting)
        base = base or IngressBase()
        rules = rules_of(flow)
        self._lanes: dict[str, Lane] = {}
        for name, source in flow.sources.items():
            assert source.event_time is not None, f"source {name} has no event time"
            schema = arrow_schema(source.connector.schema)
            state = BucketState.from_json(base.lanes[name]) if name in base.lanes else None
            reader = self._readers[name]
            self._lanes[name] = Lane(reader, schema, source.event_time, rules[name], calls(name, reader), state)
        self._pulse = base.pulse
        self._pending: dict[int, _Pending] = {}
        self._ready: list[UnitHeader] = []
        self._away_ms: dict[str, int | None] = {}
        self._count()

    # --- cutting --------------------------------------------------------------------------------------

    def _cuts(self, positions: Mapping[str, Any], cut_ms: int) -> dict[str, Cut]:
        """A source that fails or does not answer counts as one that cannot be reached, and stays where it is."""
        for name, lane in self._lanes.items():
            lane.ask_cut(positions.get(name), cut_ms)
        deadline = Deadline(CUT_S)
        return {name: lane.cut(positions.get(name), deadline) for name, lane in self._lanes.items()}

    def _said(self, cuts: Mapping[str, Cut]) -> dict[str, Any]:
        return {
            "unreachable": [name for name, cut in cuts.items() if not cut.reachable],
            "exhausted": [name for name, cut in cuts.items() if cut.exhausted],
            "front": max(lane.closed for lane in self._lanes.values()),
        }

    # --- producing ------------------------------------------------------------------------------------

    def produce(self, entry: Entry) -> tuple[UnitHeader, ...]:
        """Take a committed pulse, and write the units that are whole with it or with earlier ones."""
        if entry.pulse > self._pulse:
            self._pulse = entry.pulse
            record = json.loads(entry.body)
            mark = Mark.of(entry)
            self._marks = [mark, *(later for later in self._marks if later.index > entry.index)]
            self._pending[entry.pulse] = _Pending(mark, entry.final)
            for name, lane in self._lanes.items():
                start, end = record["spans"][name]
                reachable, exhausted = name not in record["unreachable"], name in record["exhausted"]
                lane.steps.append(
                    Step(entry.pulse, mark.cut_ms, start, end, reachable, exhausted, record["front"], entry.final)
                )
                self._away_ms[name] = None if reachable else self._away_ms.get(name) or mark.cut_ms
        return self.collect()

    def collect(self) -> tuple[UnitHeader, ...]:
        for lane in self._lanes.values():
            lane.ask_rows()
        deadline = Deadline(READ_S)
        for name, lane in self._lanes.items():
            while (closing := lane.closing(deadline)) is not None:
                self._settle(name, lane, closing)
                if not deadline.left_s:
                    break  # others have rows to be written, too
        self._advance()
        self._count()
        ready, self._ready = tuple(self._ready), []
        return ready

    @property
    def behind(self) -> bool:
        return any(lane.steps for lane in self._lanes.values())

    @property
    def failing(self) -> bool:
        return any(lane.failed for lane in self._lanes.values() if lane.steps)

    @property
    def troubles(self) -> dict[str, str]:
        return {name: lane.trouble for name, lane in self._lanes.items() if lane.trouble}

    def unreached_ms(self) -> dict[str, int]:
        newest = self._marks[0].cut_ms
        return {name: newest - since for name, since in dict(self._away_ms).items() if since is not None}

    def _settle(self, name: str, lane: Lane, closing: Closing) -> None:
        pending = self._pending[closing.step.pulse]
        if closing.bad:
            self._letters.write(name, closing.step.pulse, closing.bad)
        headers: list[UnitHeader] = []
        last = closing.units[-1][0] if closing.units else 0
        for unit, table in closing.units:
            headers += self._write(name, unit, pending.mark, table, final=False, fold=last)
        lane.settle(closing)
        self._ready += headers
        pending.states[name] = closing.state
        if isinstance(lane.reader, PushReader):
            lane.reader.forget(pending.mark.positions[name])

    def _advance(self) -> None:
        """Remember the pulses that all lanes have taken, as what a base can be made of."""
        for pulse, pending in list(self._pending.items()):
            if len(pending.states) < len(self._lanes):
                return
            if pending.final:
                self._finish(pending)
            del self._pending[pulse]
            rows = sum(state.rows for state in pending.states.values())
            bad_rows = sum(state.bad_rows for state in pending.states.values())
            self._produced.append(Produced(pulse, pending.mark, rows, bad_rows, pending.final, pending.states))
            if len(self._produced) > BASES:
                kept = [*islice(self._produced, 1, None, 2)]
                self._produced.clear()
                self._produced.extend(kept)

    def _finish(self, pending: _Pending) -> None:
        """All sources have ended: they get one more bucket, the same for all, which says so."""
        last = max(lane.closed for lane in self._lanes.values()) + 1
        headers: list[UnitHeader] = []
        states: dict[str, BucketState] = {}
        for name, lane in self._lanes.items():
            states[name], units = lane.finish(last)
            for unit, table in units:
                headers += self._write(name, unit, pending.mark, table, final=unit == last)
        pending.states.update(states)
        for name, lane in self._lanes.items():
            lane.state = states[name]
        self._ready += headers

    # --- the base -------------------------------------------------------------------------------------

    def base_after(self, units: Mapping[str, int]) -> IngressBase | None:
        done: Produced | None = None
        while self._produced and all(state.top <= units[name] for name, state in self._produced[0].lanes.items()):
            done = self._produced.popleft()
        return None if done is None else self._base(done)

    def base_at(self, pulse: int) -> IngressBase | None:
        raise NotImplementedError("units of a bucketed flow are not numbered by pulses")

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    def _count(self) -> None:
        states = [lane.state for lane in self._lanes.values() if lane.state is not None]
        self.rows = sum(state.rows for state in states)
        self.bad_rows = sum(state.bad_rows for state in states)
        self.late_rows = sum(state.late_rows for state in states)


def open_feeder(
    flow: Dataflow,
    consumers: Callable[[str], tuple[Consumer, ...]],
    store: UnitStore,
    outbox_path: Callable[[StreamId, int], Path],
    dead_letters: Path,
    base: IngressBase | None = None,
    waiting: Iterable[Entry] = (),
) -> Feeder:
    """The sources of one ingress node, cut by pulses or by event time as the flow says."""
    kind = BucketFeeder if bucketed(flow) else Feeder
    return kind(flow, consumers, store, outbox_path, dead_letters, base, waiting)
