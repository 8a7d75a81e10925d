"""One replica as a running Structured Streaming query."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from unbroken.data.hashed_rows import HashedRows
from unbroken.data.schema import check_names
from unbroken.data.unit_store import UnitStore, unit_parts
from unbroken.flow.dataflow import Segment
from unbroken.flow.program import Consumer
from unbroken.protocol.values.cuts import BatchCut
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import UnitHeader
from unbroken.security.certificates import credentials
from unbroken.spark.analysis.analysis import input_schema
from unbroken.spark.checkpoints import offset_at, watermark_before
from unbroken.spark.offsets import cut_from
from unbroken.spark.one_task import as_one_task
from unbroken.spark.segment_call import call, start_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

REASON_LIMIT = 500

STATE_FILES = "rocksdbSstFileSize"
"""Spark's name for the size of the files of a state, as of the last snapshot."""

_BESIDE_THE_POINT = re.compile(r"at |File |Caused by|JVM stack|===|If you want to force|\.\.\. ")
"""Lines that follow the message of an error: the stack, and Spark's advice to switch its check of the state off."""


@dataclass(frozen=True)
class BatchProgress:
    """A micro-batch as Spark reports it when it is done; ``cut`` is None if Spark has asked for input in vain."""

    batch: int
    cut: int | None
    duration_ms: Mapping[str, float]
    input_rows: int
    state_rows_updated: int
    state_memory_bytes: int
    state_file_bytes: int


@dataclass(frozen=True)
class SegmentCode:
    """What a replica's query is made from: the segment, and for each input its schema and the streams it comes by."""

    segment: Segment
    schemas: Mapping[str, StructType]
    streams: Mapping[str, tuple[StreamId, ...]]


@dataclass(frozen=True)
class QuerySurroundings:
    """What a replica's query needs from its node."""

    session: SparkSession
    store: UnitStore
    gate: str
    token: str
    checkpoint: Callable[[ReplicaId], Path]
    base: Callable[[ReplicaId], int]
    cut_header: Callable[[ReplicaId, int, BatchCut], UnitHeader]
    """What the output units of a micro-batch take over from its input: the header of the newest input unit."""
    produced: Callable[[ReplicaId, int, tuple[UnitHeader, ...], float], None]
    consumers: Callable[[str], tuple[Consumer, ...]]


class QueryRunner:
    """Builds and runs the query of one replica.

    ``foreachBatch`` computes each output row once, takes the rows out of Spark once, and writes one unit per
    output stream to the outbox before it returns, so before Spark commits the micro-batch. A micro-batch
    that runs again after a crash finds its units written and leaves them as they are.
    """

    def __init__(self, replica: ReplicaId, code: SegmentCode, around: QuerySurroundings) -> None:
        self.replica = replica
        self.segment = code.segment
        self.checkpoint = around.checkpoint(replica)
        self._around = around
        self._code = code
        self._consumers: tuple[Consumer, ...] = ()
        self._query: StreamingQuery | None = None
        self._base = 0

    def start(self) -> None:
        self._base = self._around.base(self.replica)
        frame = as_one_task(call(self.segment, [self._input(name) for name in self.segment.inputs]))
        check_names(frame.schema)
        writer = frame.writeStream.outputMode(self.segment.output_mode).foreachBatch(self._micro_batch)
        # With a scheme: where Hadoop is configured for a cluster, its default file system is not the local one.
        writer = writer.option("checkpointLocation", f"file://{self.checkpoint.absolute()}")
        self._query = start_query(writer, str(self.replica))

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def failure(self) -> str | None:
        """Why the query ended by itself, or None while it runs."""
        query = self._query
        if query is None or query.isActive:
            return None
        error = query.exception()
        return "the query ended" if error is None else root_cause(str(error))

    def progress(self) -> BatchProgress | None:
        """Where the last micro-batch spent its time, and how large the state is since; None before the first."""
        last = None if self._query is None else self._query.lastProgress
        if last is None:
            return None
        return BatchProgress(
            batch=last.batchId,
            cut=_cut_of(last),
            duration_ms=dict(last.durationMs),
            input_rows=last.numInputRows,
            # How many rows there are in all is not known: RocksDB would have to look for each one it is given.
            state_rows_updated=sum(operator.numRowsUpdated for operator in last.stateOperators),
            state_memory_bytes=sum(operator.memoryUsedBytes for operator in last.stateOperators),
            state_file_bytes=sum(operator.customMetrics.get(STATE_FILES, 0) for operator in last.stateOperators),
        )

    def _input(self, name: str) -> DataFrame:
        around = self._around
        reader = around.session.readStream.format("unbroken")
        reader = reader.schema(input_schema(self._code.schemas[name], self.segment.cut_time))
        return reader.options(
            gate=around.gate,
            secret=credentials(around.token).to_text(),
            replica=str(self.replica),
            inbox=str(around.store.inbox_dir(self.replica)),
            streams=",".join(str(stream) for stream in self._code.streams[name]),
            base=str(self._base),
            cuttime=self.segment.cut_time or "",
        ).load()

    def _micro_batch(self, frame: DataFrame, batch: int) -> None:
        offset = offset_at(self.checkpoint, batch)
        number = int(offset["cut"])
        cut = self._around.cut_header(self.replica, number, cut_from(offset))
        # Who reads the rows may change between micro-batches, when other code comes to run next to this.
        self._consumers = self._around.consumers(self.replica.shard.part)
        # One action: Spark runs the micro-batch again for every further one.
        keys = [consumer.keys for consumer in self._consumers if consumer.shards > 1]
        table = HashedRows.of(frame.toArrow(), keys, computed=True)
        headers = self._passed_over(table, batch, number, cut) if cut.fold else []
        for consumer in self._consumers:
            for shard, piece in enumerate(table.split(consumer.keys, consumer.shards)):
                stream = StreamId(self.replica.shard, ShardId(consumer.part, shard))
                headers.append(self._write(stream, number, piece, cut))
        self._around.produced(self.replica, number, tuple(headers), watermark_before(self.checkpoint, batch))

    def _passed_over(self, table: HashedRows, batch: int, number: int, cut: UnitHeader) -> list[UnitHeader]:
        """The units before the last one of a micro-batch that takes several: all results are in the last."""
        before = int(offset_at(self.checkpoint, batch - 1)["cut"]) if batch else self._base
        headers: list[UnitHeader] = []
        none = table.none()
        for between in range(before + 1, number):
            passed = replace(cut, pulse=between, final=False)
            for consumer in self._consumers:
                for shard, piece in enumerate(none.split(consumer.keys, consumer.shards)):
                    stream = StreamId(self.replica.shard, ShardId(consumer.part, shard))
                    headers.append(self._write(stream, between, piece, passed))
        return headers

    def _write(self, stream: StreamId, number: int, piece: HashedRows, cut: UnitHeader) -> UnitHeader:
        header = replace(cut, stream=stream, number=number, digest=piece.digest(), size=piece.table.nbytes)
        path = self._around.store.outbox_path(self.replica, stream, number)
        if not os.path.exists(path):
            self._around.store.write(path, *unit_parts(header, piece.table))
        return header


def _cut_of(progress: StreamingQueryProgress) -> int | None:
    """The cut that a micro-batch took; None if Spark has looked for one in vain, which it reports as well."""
    source = progress.sources[0]
    return None if source.startOffset == source.endOffset else int(json.loads(source.endOffset)["cut"])


def root_cause(trace: str) -> str:
    """The lines of a Spark error that say what happened: of nested errors the innermost, without its stack."""
    lines = [line.strip() for line in trace.splitlines()]
    telling = [i for i, line in enumerate(lines) if re.match(r"(Caused by: )?[\w.$]+(Error|Exception): ", line)]
    start = telling[-1] if telling else 0
    more = itertools.takewhile(lambda line: line and not _BESIDE_THE_POINT.match(line), lines[start + 1 :])
    return " ".join([lines[start].removeprefix("Caused by: "), *more])[:REASON_LIMIT]
