"""What a run had to give, computed by plain Spark: one session, one query after the other, no Unbroken in between.

Structured Streaming is deterministic if it is given the same micro-batches. So every shard of every segment is run as
an ordinary streaming query over files, one file of each input per micro-batch: the rows that the sources were cut into
in the run, and behind them what the segments before have given. Only how rows are split among shards is Unbroken's own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from unbroken.data.hashed_rows import split
from unbroken.data.schema import arrow_schema
from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Segment
from unbroken.flow.plan import build_topology
from unbroken.spark.analysis.analysis import Analysis, analyse, input_schema
from unbroken.spark.segment_call import call, start_query
from unbroken.testing.input.files import RunFiles
from unbroken.testing.input.substitution import load_substituted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNIT = "__unbroken_unit"
"""The column of a result's file that says which unit a row belongs to."""

QUERY_DEADLINE_S = 300.0
FIRST_FILE_S = 1_600_000_000
"""Spark takes files in the order of their times, so each is made a second younger than the one before it."""

Units = Sequence[pa.Table]
"""The rows of one shard, unit by unit."""


@dataclass(frozen=True)
class ReferenceJob:
    """What is to be computed: the rows of each unit, by source, and when each unit was cut."""

    cuts: Mapping[str, Sequence[tuple[int, int]]]
    cut_ms: Sequence[int]

    @property
    def units(self) -> int:
        return max((len(cuts) for cuts in self.cuts.values()), default=0)

    def write(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "job.json").write_text(json.dumps({"cuts": dict(self.cuts), "cut_ms": list(self.cut_ms)}))

    @classmethod
    def read(cls, out: Path) -> ReferenceJob:
        value = json.loads((out / "job.json").read_text())
        cuts = {source: [(int(a), int(b)) for a, b in spans] for source, spans in value["cuts"].items()}
        return cls(cuts, [int(moment) for moment in value["cut_ms"]])


def compute(root: Path, out: Path, session: SparkSession) -> None:
    """Compute what the run in ``root`` had to give, as the job in ``out`` says; the results go there, too."""
    flow = load_substituted(root)
    topology = build_topology(flow)
    analysis = analyse(flow, tuple(topology.segments), session)
    job = ReferenceJob.read(out)
    given: dict[str, list[Units]] = {name: [_source_units(root, name, job)] for name in flow.sources}
    for name in topology.segments:
        segment = flow.segments[name]
        segment = replace(segment, shard_by=analysis.shard_by.get(name, segment.shard_by))
        work = _SegmentWork(segment, analysis, job, session, out / "work" / name)
        given[name] = [work.run(shard, given) for shard in range(segment.shards)]
    for name, sink in flow.sinks.items():
        _write_result(result_file(out, name), given[sink.input])


def result_file(out: Path, sink: str) -> Path:
    return out / f"{sink}.arrow"


def read_result(out: Path, sink: str) -> dict[int, pa.Table]:
    """The rows that a sink had to be given, by unit; units without rows are left out."""
    with pa.OSFile(str(result_file(out, sink)), "rb") as file:
        table = pa.ipc.open_file(file).read_all()
    numbers = table.column(UNIT).to_numpy()
    rows = table.drop_columns([UNIT])
    return {int(number): rows.filter(pa.array(numbers == number)) for number in sorted(set(numbers.tolist()))}


def _source_units(root: Path, source: str, job: ReferenceJob) -> Units:
    with pa.OSFile(str(RunFiles(root).input(source)), "rb") as file:
        rows = pa.ipc.open_file(file).read_all()
    cuts = [*job.cuts[source], *[(0, 0)] * (job.units - len(job.cuts[source]))]
    return [rows.slice(start, stop - start) for start, stop in cuts]


def _write_result(path: Path, shards: Sequence[Units]) -> None:
    pieces = [
        table.append_column(UNIT, pa.array([number] * table.num_rows, pa.int64()))
        for units in shards
        for number, table in enumerate(units, 1)
    ]
    table = pa.concat_tables(pieces)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)


class _SegmentWork:
    """One segment as plain streaming queries, one for each shard."""

    def __init__(
        self, segment: Segment, analysis: Analysis, job: ReferenceJob, session: SparkSession, directory: Path
    ) -> None:
        self._segment = segment
        self._schemas = {
            name: input_schema(analysis.schemas[name], segment.cut_time) for name in dict.fromkeys(segment.inputs)
        }
        self._job = job
        self._session = session
        self._directory = directory

    def run(self, shard: int, given: Mapping[str, Sequence[Units]]) -> Units:
        """What a shard gives for each unit, if these are the units of everything before it, by shard."""
        folder = self._directory / str(shard)
        for name in self._schemas:
            self._write_input(folder / name, name, shard, given[name])
        produced: dict[int, pa.Table] = {}

        def keep(frame: DataFrame, batch: int) -> None:
            produced[batch] = frame.toArrow()

        frame = call(self._segment, [self._read(folder / name, name) for name in self._segment.inputs])
        writer = frame.writeStream.outputMode(self._segment.output_mode).foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        query = start_query(writer, f"{self._segment.name}.{shard}")
        try:
            ended = query.awaitTermination(int(QUERY_DEADLINE_S))
        finally:
            query.stop()
        if not ended or sorted(produced) != list(range(self._job.units)):
            what = f"the fault-free run of segment {self._segment.name} made {len(produced)} of {self._job.units} units"
            raise UnbrokenError(f"{what} within {QUERY_DEADLINE_S:g} s")
        return [produced[batch] for batch in sorted(produced)]

    def _read(self, folder: Path, name: str) -> DataFrame:
        reader = self._session.readStream.schema(self._schemas[name]).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(folder))

    def _write_input(self, folder: Path, name: str, shard: int, producers: Sequence[Units]) -> None:
        folder.mkdir(parents=True)
        columns = arrow_schema(self._schemas[name])
        keys = self._segment.shard_by.get(name, ())
        for number in range(1, self._job.units + 1):
            pieces = [split(units[number - 1], keys, self._segment.shards)[shard] for units in producers]
            rows = self._with_cut_time(pa.concat_tables(pieces), number).cast(columns)
            path = folder / f"{number:08d}.parquet"
            pq.write_table(rows, path)
            os.utime(path, (FIRST_FILE_S + number, FIRST_FILE_S + number))

    def _with_cut_time(self, rows: pa.Table, number: int) -> pa.Table:
        name = self._segment.cut_time
        if name is None:
            return rows
        moments: Any = pa.array([self._job.cut_ms[number - 1] * 1000] * rows.num_rows, pa.int64())
        return rows.append_column(name, moments.cast(pa.timestamp("us", tz="UTC")))
