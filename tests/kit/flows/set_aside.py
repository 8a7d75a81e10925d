"""A source whose rows cannot be read while a file is there, a steady one, and a sink that refuses one unit."""

import os
from pathlib import Path

import pyarrow as pa
from pyspark.sql import functions as F

from unbroken import Client, Dataflow, Generator
from unbroken.connectors.base import Cut, SinkConnector, SinkWriter, SourceConnector, SourceReader
from unbroken.data.rows.parsed import Rows
from unbroken.data.schema import parse_schema
from unbroken.errors import Unfit

PLACE = Path(os.environ["FLOW_PLACE"])


class Shaky(SourceConnector):
    """One row per pulse; the one with number 3 makes the code fail."""

    @property
    def schema(self):
        return parse_schema("n long")

    def problems(self):
        return []

    def open(self):
        return ShakyReader()


class ShakyReader(SourceReader):
    def poll(self, position, now_ms):
        return Cut((position or 0) + 1)

    def read(self, start, end):
        if (PLACE / "broken").exists():
            raise OSError("no route to host")
        if (start or 0) == 3:
            raise ArithmeticError("a row that no code can take")
        return Rows(pa.table({"n": pa.array(range(start or 0, end), pa.int64())}))


class Choosy(SinkConnector):
    """A file for each unit; unit 3 is never taken."""

    def problems(self):
        return []

    def open(self, flow_dir):
        return ChoosyWriter()


class ChoosyWriter(SinkWriter):
    def deliver(self, header, table):
        if header.number == 3 and table.num_rows:
            raise Unfit("a row violates a constraint")
        try:
            (PLACE / "units" / str(header.number)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


flow = Dataflow("set_aside", nodes=2, pulse_min=100, pulse_start=200)
steady = flow.source("steady", Generator(rate=50))
shaky = flow.source("shaky", Shaky())


@flow.segment(steady)
def even(rows):
    return rows.where(F.col("n") % 2 == 0)


@flow.segment(shaky)
def plus(rows):
    return rows.select((F.col("n") + 1).alias("n"))


flow.sink("evens", even, Client())
flow.sink("choosy", even, Choosy())
flow.sink("numbers", plus, Client())
