"""The feeder of a flow whose units are buckets of event time: every source goes its own way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import pyarrow as pa

from unbroken.codecs.codec import Codec
from unbroken.connectors.base import Cut
from unbroken.data.schema import arrow_schema
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.ordering import bucketed
from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.entries import PulseRecord
from unbroken.node.ingress.feeder import Feeder, Pending, PulseRead
from unbroken.node.ingress.lanes import Closing
from unbroken.node.ingress.pulse_end import PulseEnd
from unbroken.node.policies.bucket.lane import BucketLane
from unbroken.node.policies.bucket.rule import BucketState, BucketStep, rules_of
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.values.units import UnitHeader


@dataclass(frozen=True)
class BucketCut:
    """What the record of a pulse says besides: the sources that are ``exhausted`` have no more rows, and ``closed`` is
    how far each source had come before. Those that are ``behind`` may have come further: rows were still to be read."""

    exhausted: tuple[str, ...] = ()
    closed: Mapping[str, int] = field(default_factory=dict)
    behind: tuple[str, ...] = ()


BUCKET_CUT = Codec(BucketCut, "bucket-cut")


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

    @classmethod
    def suits(cls, flow: Dataflow) -> bool:
        return bucketed(flow)

    def _open_lanes(self, base: IngressBase) -> Mapping[str, BucketLane]:
        rules = rules_of(self._flow)
        self._base_rows = (0, 0)  # the states of the lanes have them
        lanes: dict[str, BucketLane] = {}
        for name, source in self._flow.sources.items():
            assert source.event_time is not None, f"source {name} has no event time"
            schema = arrow_schema(source.connector.schema)
            kept = base.lanes.get(name)
            state = None if kept is None else BucketState.of(kept)
            reader = self._readers[name]
            calls = self._calls(name, reader)
            lanes[name] = BucketLane(reader, schema, source.event_time, rules[name], calls, state, base.pulse)
        return lanes

    def _recorded(self, record: PulseRecord, cuts: Mapping[str, Cut]) -> PulseRecord:
        exhausted = tuple(name for name, cut in cuts.items() if cut.exhausted)
        closed = {name: lane.closed for name, lane in self._lanes.items()}
        waiting = bool(self._marks[1:])  # pulses that no lane has been given yet
        behind = tuple(name for name, lane in self._lanes.items() if waiting or lane.steps)
        return replace(record, more=BUCKET_CUT.encode(BucketCut(exhausted, closed, behind)))

    def _step(self, entry: Entry, mark: PulseEnd, name: str, record: PulseRecord) -> BucketStep:
        step, cut = super()._step(entry, mark, name, record), BUCKET_CUT.decode(record.more)
        facts = {each.name: getattr(step, each.name) for each in fields(step)}
        others = tuple(closed for other, closed in cut.closed.items() if other != name)
        settled = not set(cut.behind) - {name}
        return BucketStep(**facts, exhausted=name in cut.exhausted, others=others, settled=settled)

    def _write_unit(
        self, name: str, unit: int, table: pa.Table, pending: Pending, closing: Closing
    ) -> list[UnitHeader]:
        assert isinstance(closing.step, BucketStep)
        fold = closing.step.together(unit, closing.units[-1][0])
        return self._units.write(name, unit, pending.mark, table, final=False, fold=fold, anew=closing.spoiled)

    def _finish(self, pending: Pending) -> None:
        """All sources have ended: they get one more bucket, the same for all, which says so."""
        last = max(lane.closed for lane in self._lanes.values()) + 1
        headers: list[UnitHeader] = []
        states: dict[str, BucketState] = {}
        for name, lane in self._lanes.items():
            states[name], units = lane.finish(last)
            for unit, table in units:
                headers += self._units.write(name, unit, pending.mark, table, final=unit == last)
        pending.states.update(states)
        for name, lane in self._lanes.items():
            lane.state = states[name]
        self._ready += headers

    def base_after(self, units: Mapping[str, int]) -> IngressBase | None:
        done: PulseRead | None = None
        while self._produced and all(lane.unit <= units[name] for name, lane in self._produced[0].lanes.items()):
            done = self._produced.popleft()
        return None if done is None else self._base(done)

    def base_at(self, pulse: int) -> IngressBase | None:
        raise NotImplementedError("units of a bucketed flow are not numbered by pulses")
