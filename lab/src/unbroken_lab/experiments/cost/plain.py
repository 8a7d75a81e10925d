"""Plain Structured Streaming on a workload that Unbroken is measured with: one query, no replication.

Runs as a process of its own (``python -m unbroken_lab.experiments.cost.plain WORKLOAD RATE ROWS BATCH DEADLINE_S OUT``,
see ``plain_process``) and writes what it measured to the file ``OUT`` as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from unbroken.flow.settings import Settings
from unbroken.spark.session import start_session
from unbroken_lab.demo import netmon, packets
from unbroken_lab.experiments.flows import workload
from unbroken_lab.experiments.parameters.saturation import LARGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Workload:
    """Rows by their numbers, and the query on them; ``settings`` of the session as Unbroken's nodes have them."""

    schema: str
    make_rows: Callable[[int, int, int], pa.Table]
    query: Callable[[DataFrame], DataFrame]
    settings: dict[str, Any] = field(default_factory=dict)


WORKLOADS = {
    "core": Workload(workload.SCHEMA, workload.make_rows, workload.aggregate),
    # The first segment alone, which has all packets to take; what follows it has a quarter as many rows.
    "monitoring": Workload(
        packets.SCHEMA,
        packets.Packets(packets.SATURATED_RATE),
        netmon.sessions.function,
        {"jvm": LARGE["JVM"], "node_memory": LARGE["MEMORY"]},
    ),
}


@dataclass
class RowRange(InputPartition):
    start: int
    stop: int


class RowsReader(DataSourceStreamReader):
    """Makes the rows that are due, as any rate-limited source would."""

    def __init__(self, options: dict[str, str]) -> None:
        self._workload = options.get("workload", "core")
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
        return [RowRange(start["row"], end["row"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowRange)
        yield from WORKLOADS[self._workload].make_rows(partition.start, partition.stop, 0).to_batches()


class RowsSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bench_rows"

    def schema(self) -> str:
        return WORKLOADS[self.options["workload"]].schema

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return RowsReader(dict(self.options))


def run_plain(name: str, rate: int, rows: int, batch: int, deadline_s: float) -> list[tuple[float, int, int]]:
    """(completion time in s, rows of input so far, time of the cut in ms) of every micro-batch."""
    chosen, kept = WORKLOADS[name], {"spark.sql.streaming.numRecentProgressUpdates": "100000"}
    session = start_session("plain", Settings(spark=kept, **chosen.settings))
    session.dataSource.register(RowsSource)
    source = session.readStream.format("bench_rows")
    frame = source.options(workload=name, rate=rate, rows=rows, batch=batch).load()
    done: list[float] = []

    def take(result: DataFrame, number: int) -> None:
        result.toArrow()
        done.append(time.time())

    with tempfile.TemporaryDirectory() as directory:
        writer = chosen.query(frame).writeStream.outputMode("update").foreachBatch(take)
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
    rate, rows, batch, deadline_s = (int(value) for value in sys.argv[2:6])
    Path(sys.argv[6]).write_text(json.dumps(run_plain(sys.argv[1], rate, rows, batch, deadline_s)))


if __name__ == "__main__":
    main()
