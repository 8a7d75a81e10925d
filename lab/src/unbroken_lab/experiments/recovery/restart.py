"""Plain Structured Streaming that is killed and started again at once: what `unbroken bench strategies` compares with.

One query without Unbroken on the rows and with the functions of ``windowed.py``, with the Spark settings and JVM of a
node. ``python -m unbroken_lab.experiments.recovery.restart BEGAN_S CHECKPOINT OUT`` runs it and adds one line to
the file ``OUT`` when a micro-batch's result is there: the time in ms since the epoch. Rows are due from the time
``BEGAN_S`` on, also for a process that takes over from another.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from unbroken.errors import UnbrokenError
from unbroken.flow.settings import Settings
from unbroken.local.processes import OwnedProcess, spawn, tail
from unbroken.spark.java import java_environment
from unbroken.spark.session import start_session
from unbroken_lab.demo.measure import ArrivalSample
from unbroken_lab.experiments.cost.plain import RowRange, RowsReader
from unbroken_lab.experiments.flows import windowed
from unbroken_lab.experiments.observation.figures import gap
from unbroken_lab.experiments.observation.observed import Say, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESULT_S = 90.0
"""How long the first result of a process may take on a busy machine."""

SWEEP_S = 10.0
BATCH = 1_000_000
"""Rows of one micro-batch at most: all that are due."""

FURTHER = 5
"""Results of the second process that show that it goes on."""


class DueRowsReader(RowsReader):
    """Makes the rows that are due since a time that does not change when the query is started again."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._began = float(options["began"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowRange)
        yield from windowed.make_rows(partition.start, partition.stop, 0).to_batches()


class DueRows(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bench_due_rows"

    def schema(self) -> str:
        return windowed.ROWS

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return DueRowsReader(dict(self.options))


def measure_restart(rate: int, warm_s: float, steady_s: float, say: Say) -> dict[str, Any]:
    """The longest time between two results when a warm query is killed, and before that."""
    say("plain Structured Streaming: starting")
    with tempfile.TemporaryDirectory() as directory:
        root, began = Path(directory), time.time()
        first = _start(root, 1, rate, began)
        try:
            _await_results(root, 1, 1)
            _stay_alive(first, warm_s + steady_s)
            killed_ms = time.time() * 1000
            first.kill9()
            first.wait(SWEEP_S)
        finally:
            first.stop(0)
        say("plain Structured Streaming: killed, and started again")
        second = _start(root, 2, rate, began)
        try:
            _await_results(root, 2, FURTHER)
        finally:
            second.stop(0)
        arrivals = [*_arrivals(root, 1), *_arrivals(root, 2)]
    return restart_figures(arrivals, killed_ms, steady_s)


def restart_figures(arrivals: Sequence[float], killed_ms: float, steady_s: float) -> dict[str, Any]:
    """The longest time between two results in the steady time before the kill, and across it."""
    before = [at for at in arrivals if killed_ms - steady_s * 1000 <= at < killed_ms]
    after = [at for at in arrivals if at >= killed_ms]
    if not before or not after:
        raise UnbrokenError("plain Structured Streaming gave no results before or after it was killed")
    return {
        "gap_ms": {"before": _longest(before), "after": _longest([before[-1], *after])},
        "partial_s": {"from_kill": round((after[0] - killed_ms) / 1000, 3)},
    }


def _longest(times: Sequence[float]) -> float:
    return gap([ArrivalSample(0, 0, 0, at) for at in times])


def _start(root: Path, number: int, rate: int, began_s: float) -> OwnedProcess:
    environment = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
    environment["UNBROKEN_BENCH_RATE"] = str(rate)
    command = [sys.executable, "-m", "unbroken_lab.experiments.recovery.restart", str(began_s)]
    command += [str(root / "checkpoint"), str(root / f"results-{number}")]
    return spawn(command, log_file=root / f"plain-{number}.log", env=environment)


def _await_results(root: Path, number: int, count: int) -> None:
    try:
        wait_until(lambda: len(_arrivals(root, number)) >= count, RESULT_S, "a result of plain Structured Streaming")
    except UnbrokenError as error:
        log_file = root / f"plain-{number}.log"
        raise UnbrokenError(f"{error}; the end of its log:\n{tail(log_file)}") from None


def _stay_alive(process: OwnedProcess, seconds: float) -> None:
    if process.wait(seconds) is not None:
        raise UnbrokenError(f"plain Structured Streaming ended; the end of its log:\n{tail(process.log_file)}")


def _arrivals(root: Path, number: int) -> list[float]:
    path = root / f"results-{number}"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [float(line) for line in lines]


def main() -> None:
    began, checkpoint, results = sys.argv[1:4]
    session = start_session("plain", Settings())
    session.dataSource.register(DueRows)
    options = {"rate": str(windowed.RATE), "rows": str(sys.maxsize), "batch": str(BATCH), "began": began}
    rows = session.readStream.format(DueRows.name()).options(**options).load()

    def take(result: DataFrame, number: int) -> None:
        result.toArrow()
        with Path(results).open("a") as file:
            file.write(f"{time.time() * 1000:.1f}\n")

    counts = windowed.count(windowed.stamp(rows)).writeStream.outputMode("update").foreachBatch(take)
    counts.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
