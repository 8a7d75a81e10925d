"""The query of the two Spark systems: a keyed running count and maximum, without Unbroken.

``python -m unbroken_lab.experiments.peers.spark.query FILE`` runs the query that the file describes (see ``Query``).
The result of each micro-batch becomes a file in a directory: numbered in the order in which they are made, moved there
whole. Little is imported here, so that starting it again takes no longer than starting any such query.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from unbroken_lab.experiments.parameters.events import SCHEMA, make_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESULT = ".arrow"
DIGITS = 20


@dataclass(frozen=True)
class PeerQuery:
    """What to run where; ``settings`` are Spark's."""

    rate: int
    rows: int
    began_ms: float
    master: str
    settings: dict[str, str]
    checkpoint: str
    results: str

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> PeerQuery:
        return cls(**json.loads(path.read_text()))


@dataclass
class EventRange(InputPartition):
    start: int
    stop: int


class DueEventsReader(DataSourceStreamReader):
    """Makes the events that are due since a time that does not change when the query is started again; all of them."""

    def __init__(self, options: dict[str, str]) -> None:
        self._rate = int(options["rate"])
        self._rows = int(options["rows"])
        self._began_ms = float(options["began_ms"])

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        due = int((time.time() * 1000 - self._began_ms) * self._rate / 1000)
        return {"row": max(start["row"], min(due, self._rows))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [EventRange(start["row"], end["row"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EventRange)
        yield from make_rows(partition.start, partition.stop).to_batches()


class DueEvents(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bench_due_events"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return DueEventsReader(dict(self.options))


def main() -> None:
    from pyspark.sql import SparkSession

    query = PeerQuery.read(Path(sys.argv[1]))
    builder = SparkSession.builder.appName("peers").master(query.master)
    for key, value in query.settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    session.dataSource.register(DueEvents)
    options = {"rate": str(query.rate), "rows": str(query.rows), "began_ms": str(query.began_ms)}
    events = session.readStream.format(DueEvents.name()).options(**options).load()
    results = Path(query.results)

    def hand_over(result: DataFrame, number: int) -> None:
        table = result.toArrow()
        path = results / f"{number:0{DIGITS}}"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        path.rename(path.with_suffix(RESULT))

    counts = events.groupBy("k").agg(F.count("*").alias("n"), F.max("v").alias("top"))
    writer = counts.writeStream.outputMode("update").foreachBatch(hand_over)
    writer.option("checkpointLocation", query.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
