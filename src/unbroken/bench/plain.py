"""Plain Structured Streaming on the workload of `unbroken bench core`: one query, no replication.

Runs as a process of its own (``python -m unbroken.bench.plain RATE ROWS BATCH DEADLINE_S OUT``) and writes what it
measured to the file ``OUT`` as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from unbroken.bench import workload
from unbroken.config import Settings
from unbroken.spark.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass
class Span(InputPartition):
    start: int
    stop: int


class RowsReader(DataSourceStreamReader):
    """Makes the rows that are due, as any rate-limited source would."""

    def __init__(self, options: dict[str, str]) -> None:
        self._rate = int(options["rate"])
        self._rows = int(options["rows"])
        self._batch = int(options["batch"])
        self._began: float | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0, "cut_ms": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        now = time.time()
        if self._began is None:
            self._began = now
        due = int((now - self._began) * self._rate) if self._rate else self._rows
        row = min(due, start["row"] + self._batch, self._rows)
        # The offset says when it was cut, so that the latency of its newest row can be told from the progress.
        return {"row": row, "cut_ms": int(now * 1000)} if row > start["row"] else start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [Span(start["row"], end["row"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        yield from workload.make_rows(partition.start, partition.stop, 0).to_batches()


class RowsSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bench_rows"

    def schema(self) -> str:
        return workload.SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return RowsReader(dict(self.options))


def run_plain(rate: int, rows: int, batch: int, deadline_s: float) -> list[tuple[float, int, int]]:
    """(completion time in s, rows of input so far, time of the cut in ms) of every micro-batch."""
    session = start_session("plain", Settings(spark={"spark.sql.streaming.numRecentProgressUpdates": "100000"}))
    session.dataSource.register(RowsSource)
    frame = session.readStream.format("bench_rows").options(rate=rate, rows=rows, batch=batch).load()
    done: list[float] = []

    def take(result: DataFrame, number: int) -> None:
        result.toArrow()
        done.append(time.time())

    with tempfile.TemporaryDirectory() as directory:
        writer = workload.aggregate(frame).writeStream.outputMode("update").foreachBatch(take)
        query = writer.option("checkpointLocation", directory).start()
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            time.sleep(0.2)
            last = query.lastProgress
            if not query.isActive or (last is not None and json.loads(last.sources[0].endOffset)["row"] >= rows):
                break
        cuts = {p.batchId: json.loads(p.sources[0].endOffset) for p in query.recentProgress}
        query.stop()
    session.stop()
    return [(when, cuts[n]["row"], cuts[n]["cut_ms"]) for n, when in enumerate(done) if n in cuts]


def main() -> None:
    rate, rows, batch, deadline_s = (int(value) for value in sys.argv[1:5])
    Path(sys.argv[5]).write_text(json.dumps(run_plain(rate, rows, batch, deadline_s)))


if __name__ == "__main__":
    main()
