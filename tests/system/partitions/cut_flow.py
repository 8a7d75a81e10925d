"""The flow of these tests, as text, and what each unit of its results has to say.

Rows come by the pulse and not by the clock, so unit n has the same rows in every run, whatever is cut meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from unbroken.client import Result
from unbroken.protocol.values.ids import ShardId

BATCH = 200
KEYS = 7
SINK = "live"
TOTALS = ShardId("totals", 0)

TEXT = """
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from unbroken import Client, Dataflow, Generator, Parquet
from unbroken.connectors.base import Cut
from unbroken.connectors.generator import GeneratorReader


def rows(start, stop, seed):
    index = np.arange(start, stop, dtype=np.int64)
    return pa.table({{"k": pa.array(index % {keys}, pa.int32()), "v": index}})


class UntilTold(Generator):
    def open(self):
        return Reader(self)


class Reader(GeneratorReader):
    def poll(self, position, now_ms):
        return Cut(super().poll(position, now_ms).position, exhausted=Path({stop!r}).exists())


flow = Dataflow("cut", nodes=3, replicas=2, pulse_min="800ms", pulse_start="800ms", link_timeout="{link_timeout_s}s")
numbers = flow.source("numbers", UntilTold(rows, schema="k int, v long", rate=None, batch_rows={batch}))


@flow.segment(numbers, output_mode="update")
def totals(rows):
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))


flow.sink("live", totals, Client())
flow.sink("table", totals, Parquet({out!r}))
"""


def flow_text(directory: Path, link_timeout_s: int = 2) -> str:
    """The flow, which ends once there is a file ``stop`` in the directory; its other sink is ``out`` there."""
    stop, out = str(directory / "stop"), str(directory / "out")
    return TEXT.format(keys=KEYS, batch=BATCH, stop=stop, out=out, link_timeout_s=link_timeout_s)


Row = tuple[int, int, int]


def expected(number: int) -> list[Row]:
    """The rows of unit ``number``: how often a key has come by then, and the sum of its values."""
    out: list[Row] = []
    for key in range(KEYS):
        values = range(key, number * BATCH, KEYS)
        out.append((key, len(values), sum(values)))
    return out


def complaints(results: Sequence[Result], *, complete: bool = False) -> list[str]:
    """What is wrong with the results of a client that has read from the first unit on."""
    found = [
        f"unit {result.header.number} came as number {place}"
        for place, result in enumerate(results, start=1)
        if result.header.number != place
    ]
    found += [
        f"unit {result.header.number} has {_rows(result.table.to_pylist())}"
        for result in results
        if _rows(result.table.to_pylist()) != expected(result.header.number)
    ]
    finals = [result.header.number for result in results if result.header.final]
    if complete and finals != [len(results)]:
        found.append(f"of {len(results)} units {finals} are final")
    return found


def file_complaints(directory: Path, units: int) -> list[str]:
    """What is wrong with the files of a flow that has ended after so many units."""
    rows: list[Row] = []
    for path in sorted((directory / "out").glob("*.parquet")):
        rows += _rows(pq.read_table(path).to_pylist())
    wanted = sorted(row for number in range(1, units + 1) for row in expected(number))
    return [] if sorted(rows) == wanted else [f"the files have {len(rows)} rows, not the {len(wanted)} of the units"]


def _rows(found: Iterable[dict[str, int]]) -> list[Row]:
    return sorted((row["k"], row["n"], row["total"]) for row in found)
