"""The feeder of a flow whose units are buckets of event time: every source goes its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from unbroken.connectors.base import Cut
from unbroken.connectors.dead_letters import DeadLetters
from unbroken.data.schema import arrow_schema
from unbroken.data.unit_store import UnitStore
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.ordering import bucketed
from unbroken.flow.program import Consumer
from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.buckets import BucketState, Step, rules_of
from unbroken.node.ingress.feeder import Feeder, Mark, Pending, Produced
from unbroken.node.ingress.lanes import BucketLane, Closing
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import UnitHeader


class BucketFeeder(Feeder):
    """A feeder whose sources are not cut together: unit b of a source has its rows of the b-th bucket of event time.

    An entry of the log says how far each source is read, as ever, and which ones could not be asked; when a unit is
    whole follows from that and from the rows (`BucketRule`). With an entry a source may close several units, or none.

    A source ends with the others: when the last entry is taken by all lanes, they continue to the bucket after the last
    one that any of them has, which is empty and final.

    The base is that of the last pulse whose rows are all in units that are with their consumers, also those that had to
    wait for their unit to close after that pulse.
    """

    _lanes: Mapping[str, BucketLane]

    def _open_lanes(self, base: IngressBase) -> Mapping[str, BucketLane]:
        rules = rules_of(self._flow)
        self._base_rows = (0, 0)  # the states of the lanes have them
        lanes: dict[str, BucketLane] = {}
        for name, source in self._flow.sources.items():
            assert source.event_time is not None, f"source {name} has no event time"
            schema = arrow_schema(source.connector.schema)
            state = BucketState.from_json(base.lanes[name]) if name in base.lanes else None
            reader = self._readers[name]
            calls = self._calls(name, reader)
            lanes[name] = BucketLane(reader, schema, source.event_time, rules[name], calls, state, base.pulse)
        return lanes

    def _said(self, cuts: Mapping[str, Cut]) -> dict[str, Any]:
        return {
            **super()._said(cuts),
            "exhausted": [name for name, cut in cuts.items() if cut.exhausted],
            "front": max(lane.closed for lane in self._lanes.values()),
        }

    def _step(self, entry: Entry, mark: Mark, name: str, record: Mapping[str, Any]) -> Step:
        step = super()._step(entry, mark, name, record)
        return replace(step, exhausted=name in record["exhausted"], front=record["front"])

    def _write_unit(
        self, name: str, unit: int, table: pa.Table, pending: Pending, closing: Closing
    ) -> list[UnitHeader]:
        last = closing.units[-1][0]
        return self._write(name, unit, pending.mark, table, final=False, fold=last, anew=closing.spoiled)

    def _finish(self, pending: Pending) -> None:
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

    def base_after(self, units: Mapping[str, int]) -> IngressBase | None:
        done: Produced | None = None
        while self._produced and all(state.top <= units[name] for name, state in self._produced[0].lanes.items()):
            done = self._produced.popleft()
        return None if done is None else self._base(done)

    def base_at(self, pulse: int) -> IngressBase | None:
        raise NotImplementedError("units of a bucketed flow are not numbered by pulses")


def open_feeder(
    flow: Dataflow,
    consumers: Callable[[str], tuple[Consumer, ...]],
    store: UnitStore,
    outbox_path: Callable[[StreamId, int], Path],
    letters: DeadLetters,
    base: IngressBase | None = None,
    waiting: Iterable[Entry] = (),
) -> Feeder:
    """The sources of one ingress node, cut by pulses or by event time as the flow says."""
    kind = BucketFeeder if bucketed(flow) else Feeder
    return kind(flow, consumers, store, outbox_path, letters, base, waiting)
