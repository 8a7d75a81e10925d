"""Measure what a flow costs on this machine: each segment runs by itself for a few seconds, by the code of a node.

The first segments get rows of the sources (``samples``), the others what the segment before them has made. Nothing is
written to the flow's own sinks, and nothing is taken from its sources.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from unbroken.data.unit_store import decode_unit, encode_unit
from unbroken.flow.dataflow import Dataflow, Segment
from unbroken.flow.settings import Settings
from unbroken.node.ingress.entries import PULSE, PulseRecord
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken.spark.analysis.analysis import Analysis, analyse, input_schema
from unbroken.spark.analysis.horizon import Unbounded, find_horizon, has_watermark
from unbroken.spark.runner import SegmentCode
from unbroken.spark.segment_call import call
from unbroken_lab.studies.calibration.calibration import Calibration, SegmentCosts, SourceCosts, StateReach
from unbroken_lab.studies.calibration.samples import SampleRows, sample_of, span_bytes
from unbroken_lab.studies.calibration.stage import OUT, CheckpointFiles, SegmentStage, Take, cut_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Say = Callable[[str], None]

COLD = 14
"""First micro-batches of a query, until Java has compiled what they do: they tell what a cold start costs."""

SMALL, USUAL = 10, 24
"""Micro-batches with a quarter of the usual rows, and with as many as usual: two points make a line."""

SMALL_SHARE = 0.25

AGAIN = 4
"""Micro-batches after the query was started again on its checkpoint."""

FIRST = COLD + SMALL + USUAL
UNITS = FIRST + AGAIN
IN_SMALL = range(COLD + 1, COLD + SMALL + 1)
IN_USUAL = range(COLD + SMALL + 1, FIRST + 1)

MOST_SPREAD = 0.5

BOOT_S = 1.5
"""What a node needs before it starts Spark: Python, and a session with ZooKeeper."""


def for_measuring(settings: Settings) -> Settings:
    """Settings of the session: snapshots of the state are to be seen in the short time, too."""
    often = {"spark.sql.streaming.stateStore.maintenanceInterval": "2s"}
    return settings.model_copy(update={"spark": {**settings.spark, **often}})


def calibrate(
    flow: Dataflow, order: Sequence[str], rate: float, session: SparkSession, session_s: float, say: Say
) -> Calibration:
    """Run every segment, in ``order``, with what ``rate`` rows per second of all sources together make of it.

    ``session_s`` is how long the session took to start.
    """
    began = time.monotonic()
    pulse_ms, share = flow.settings.pulse_start, rate / len(flow.sources)
    analysis = analyse(flow, tuple(order), session)
    samples = {name: sample_of(source.connector, share) for name, source in flow.sources.items()}
    segments: dict[str, SegmentCosts] = {}
    with tempfile.TemporaryDirectory(prefix="unbroken-plan-") as directory:
        stage = SegmentStage(Path(directory), session, pulse_ms)
        try:
            sources = {name: _feed(stage, name, sample, share, pulse_ms) for name, sample in samples.items()}
            for name in order:
                say(f"{flow.name}: measuring segment {name}")
                segments[name] = _measure(stage, flow.segments[name], analysis, session, pulse_ms)
        finally:
            stage.close()
    spans = {name: span_bytes(source.connector, pulse_ms) for name, source in flow.sources.items()}
    return Calibration(
        flow=flow.name,
        rate=rate,
        pulse_ms=pulse_ms,
        entry_bytes=_entry_bytes(spans),
        boot_ms=round((BOOT_S + session_s) * 1000),
        sources=sources,
        segments=segments,
        machine=f"{platform.machine()}, {os.cpu_count()} cores",
        took_s=round(time.monotonic() - began + session_s, 1),
    )


def _entry_bytes(spans: Mapping[str, int]) -> int:
    """The record of a pulse, as the feeder writes it."""
    frame = PULSE.encode(PulseRecord(1_700_000_000_000, {}, 1, 0))
    return len(frame) + sum(len(name) + size + 4 for name, size in spans.items())


def _sizes(usual: float) -> list[int]:
    """Rows of the units of a source, one after the other."""
    whole, small = max(1, round(usual)), max(1, round(usual * SMALL_SHARE))
    return [whole] * COLD + [small] * SMALL + [whole] * (USUAL + AGAIN)


def _feed(stage: SegmentStage, source: str, sample: SampleRows, rate: float, pulse_ms: float) -> SourceCosts:
    """Write the units of a source, and say how large they are."""
    units: list[Path] = []
    row = rows_sent = bytes_sent = empty = 0
    for number, rows in enumerate(_sizes(rate * pulse_ms / 1000), start=1):
        table = sample.rows(row, row + rows)
        row += rows
        data = _encoded(source, number, pulse_ms, table)
        units.append(stage.keep(source, number, data))
        empty = _encoded(source, number, pulse_ms, table.slice(0, 0)).size
        bytes_sent += data.size - empty
        rows_sent += rows
    stage.units[source] = units
    return SourceCosts(round(bytes_sent / rows_sent, 3), empty, sample.kind)


def _encoded(producer: str, number: int, pulse_ms: float, table: pa.Table) -> pa.Buffer:
    stream = StreamId(ShardId(producer, 0), ShardId(OUT, 0))
    facts = (number, cut_ms(number, pulse_ms), Digest(table.num_rows, 0), table.nbytes)
    return encode_unit(UnitHeader(stream, number, *facts), table)


# --- one segment --------------------------------------------------------------------------------------------


def _measure(
    stage: SegmentStage, segment: Segment, analysis: Analysis, session: SparkSession, pulse_ms: float
) -> SegmentCosts:
    replica = ReplicaId(ShardId(segment.name, 0), 0)
    streams = {name: (stage.feed(replica, name),) for name in segment.inputs}
    rows = [sum(_rows(stage, stage.units[name][place]) for name in segment.inputs) for place in range(UNITS)]
    code = SegmentCode(segment, {name: analysis.schemas[name] for name in segment.inputs}, streams)
    first, again = stage.run(code, replica, FIRST), stage.run(code, replica, UNITS)
    made = stage.units[segment.name] = stage.made(replica, UNITS)
    sent = [_rows(stage, path) for path in made]
    sizes = [path.stat().st_size for path in made]
    last = decode_unit(stage.store.read(made[-1]))[1]
    empty = _encoded(segment.name, UNITS, pulse_ms, last.slice(0, 0)).size
    usual = [number - 1 for number in IN_USUAL]
    taken, given = sum(rows[place] for place in usual), sum(sent[place] for place in usual)
    batch_ms, row_us, spread = _speed(rows, first)
    changes, per_row, snapshot = _changes(rows, first.pins)
    expected = {number: batch_ms + rows[number - 1] * row_us / 1000 for number in range(1, UNITS + 1)}
    late = {
        number: max(0.0, take.batch_ms(number) - expected[number]) for take in (first, again) for number in _of(take)
    }
    return SegmentCosts(
        batch_ms=round(batch_ms, 2),
        row_us=round(row_us, 4),
        commit_ms=round(_usual(first.commit_ms(number) for number in IN_USUAL), 2),
        spread=round(spread, 3),
        query_ms=round(again.start_ms, 1),
        first_ms=tuple(round(late[number], 1) for number in range(FIRST + 1, UNITS + 1)),
        cold_query_ms=round(first.start_ms, 1),
        cold_first_ms=tuple(round(late[number], 1) for number in range(1, COLD + 1)),
        keep=round(given / taken, 6) if taken else 0.0,
        row_bytes=round((sum(sizes) - UNITS * empty) / max(1, sum(sent)), 3),
        unit_bytes=float(empty),
        state_bytes=float(sum(size for _, size in first.pins[FIRST].values())),
        change_bytes=round(changes, 1),
        change_row_bytes=round(per_row, 4),
        snapshot_bytes=float(snapshot),
        reach=_reach(segment, analysis, session),
    )


def _of(take: Take) -> list[int]:
    return sorted(set(take.produced) & set(take.answered))


def _rows(stage: SegmentStage, path: Path) -> int:
    return decode_unit(stage.store.read(path))[0].digest.rows


def _speed(rows: Sequence[int], take: Take) -> tuple[float, float, float]:
    """Milliseconds of a micro-batch, microseconds of a row, and how much of it chance adds or takes away.

    A line through the usual time with few rows and with many.
    """
    many = [take.batch_ms(number) for number in IN_USUAL]
    few_ms, many_ms = _usual(take.batch_ms(number) for number in IN_SMALL), _usual(many)
    base, slope = _line(_mean(rows, IN_SMALL), few_ms, _mean(rows, IN_USUAL), many_ms)
    quarters = statistics.quantiles(many, n=4)
    return base, slope * 1000, min(MOST_SPREAD, (quarters[2] - quarters[0]) / max(0.1, many_ms))


def _usual(times_ms: Iterable[float]) -> float:
    """What something takes if nothing comes in between: a quarter is quicker. Whatever else a machine does makes some
    of the times longer, and none shorter."""
    return statistics.quantiles(times_ms, n=4)[0]


def _changes(rows: Sequence[int], pins: Mapping[int, CheckpointFiles]) -> tuple[float, float, int]:
    """Bytes that a micro-batch adds to a copy of the state, for each row of it, and those of a whole snapshot."""

    def added(number: int, *, snapshot: bool) -> int:
        known = {identity for identity, _ in pins.get(number - 1, {}).values()}
        found = pins[number].items()
        return sum(size for name, (identity, size) in found if identity not in known and _is_snapshot(name) == snapshot)

    few = statistics.mean(added(number, snapshot=False) for number in IN_SMALL)
    many = statistics.mean(added(number, snapshot=False) for number in IN_USUAL)
    base, slope = _line(_mean(rows, IN_SMALL), few, _mean(rows, IN_USUAL), many)
    return base, slope, max(added(number, snapshot=True) for number in (*IN_SMALL, *IN_USUAL))


def _is_snapshot(name: str) -> bool:
    return name.startswith("state/") and name.endswith((".zip", ".sst", ".snapshot"))


def _mean(rows: Sequence[int], numbers: Iterable[int]) -> float:
    return statistics.mean(rows[number - 1] for number in numbers)


def _line(x0: float, y0: float, x1: float, y1: float) -> tuple[float, float]:
    """Where a line through two points begins, and its slope; neither is negative, because costs are not."""
    slope = (y1 - y0) / (x1 - x0) if x1 > x0 else 0.0
    slope = min(max(0.0, slope), y1 / x1 if x1 else 0.0)
    return max(0.0, y1 - slope * x1), slope


def _reach(segment: Segment, analysis: Analysis, session: SparkSession) -> StateReach:
    """How far back the state of a segment reaches, as its plan shows it."""
    frame = call(segment, [_placeholder(segment, name, analysis, session) for name in segment.inputs])
    found, watermark = find_horizon(frame), has_watermark(frame)
    if isinstance(found, Unbounded):
        return StateReach(None, False, watermark, found.why, found.remedy)
    return StateReach(found.ms, found.timed, watermark)


def _placeholder(segment: Segment, name: str, analysis: Analysis, session: SparkSession) -> DataFrame:
    reader = session.readStream.format("unbroken").schema(input_schema(analysis.schemas[name], segment.cut_time))
    return reader.options(gate="", secret="", replica="", inbox="", streams="").load()
