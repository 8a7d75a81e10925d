"""Numbers through a segment into a function that notes what it is given. The environment says how and where."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from unbroken import Call, Dataflow, Generator, Unit

ROWS_PER_PULSE = 50
NOTES = os.environ.get("UNBROKEN_TEST_NOTES", "notes.txt")

flow = Dataflow(
    "called",
    nodes=2,
    guarantee=os.environ.get("UNBROKEN_TEST_GUARANTEE", "at-least-once"),
    pulse_min="700ms",
    pulse_start="700ms",
    session_timeout="5s",
)


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    return pa.table({"v": np.arange(start, stop, dtype=np.int64)})


def note(table: pa.Table, unit: Unit) -> None:
    """One line per call, whole or not at all: the file is shared by all nodes, and the process may be killed."""
    values = table["v"].to_pylist()
    line = f"{unit.number} {sum(values)} {min(values)} {max(values)} {os.getpid()}\n"
    file = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


source = flow.source("numbers", Generator(numbers, schema="v long", rate=None, batch_rows=ROWS_PER_PULSE))


@flow.segment(source)
def doubled(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("v * 2 as v")


flow.sink("notes", doubled, Call(note))
