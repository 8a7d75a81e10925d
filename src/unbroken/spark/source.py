"""The Spark source ``unbroken``: micro-batch b of a query reads the units of cut b.

The reader object lives in a Python process of its own next to the driver for as long as the query runs; it
asks the node's gate for the next offset. ``read`` runs in Spark's Python workers and takes the units straight
from the node's disk, or over Flight when the executor runs elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from unbroken.data.checksum import Damaged
from unbroken.data.schema import arrow_schema
from unbroken.data.unit_store import open_unit, read_header, unit_name
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.security.certificates import Credentials
from unbroken.spark.offsets import cut_from, offset_of, units_between
from unbroken.transport.auth import open_client
from unbroken.transport.calls import GATE_ANSWER, GateQuestion, UnitTicket, call, ticket_of

GATE_TIMEOUT_S = 60
"""Longest wait for the gate's answer. The gate answers within its own much shorter wait; only a node that is
stuck or gone reaches this, and then the query has to fail."""


@dataclass
class UnitPartition(InputPartition):
    """Units read by one task, by stream and number; names, never rows."""

    units: tuple[tuple[str, int], ...]


class UnbrokenSource(DataSource):
    """``spark.readStream.format("unbroken")``; nodes set its options."""

    @classmethod
    def name(cls) -> str:
        return "unbroken"

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.options["schema"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return UnbrokenReader(dict(self.options), arrow_schema(schema))


class UnbrokenReader(DataSourceStreamReader):
    """One source instance of one replica's query; see ``offsets.py`` for its offsets."""

    def __init__(self, options: dict[str, str], schema: pa.Schema) -> None:
        self._schema = schema
        self._gate = options["gate"]
        self._secret = options["secret"]
        self._replica = options["replica"]
        self._inbox = options["inbox"]
        self._streams = tuple(options["streams"].split(","))
        self._groups = max(1, int(options.get("tasks", "1")))
        self._cut_time = options.get("cuttime", "")
        self._base = int(options.get("base", "0"))
        self._instance = uuid.uuid4().hex
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy of this object; a connection cannot travel.
        return {**self.__dict__, "_client": None}

    def initialOffset(self) -> dict[str, Any]:
        return {"cut": self._base}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        answer = self._ask(start)
        # Spark takes the very first offset it is told for data, even the initial one: no answer before there is any.
        while answer["cut"] == self._base:
            answer = self._ask(self.initialOffset())
        return answer

    def _ask(self, start: dict[str, Any]) -> dict[str, Any]:
        number = int(start["cut"])
        question = GateQuestion(ReplicaId.parse(self._replica), self._instance, number, cut_from(start))
        answer = GATE_ANSWER.decode(call(self._connection(), question, GATE_TIMEOUT_S))
        # Spark takes an offset that is written in another way for data.
        return start if answer.offset == number else offset_of(answer.offset, answer.cut)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        units = units_between(start, end, self._streams)
        groups = min(self._groups, len(units))
        return [UnitPartition(tuple(units[i::groups])) for i in range(groups)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, UnitPartition)
        for stream, number in partition.units:
            table = self._with_cut_time(self._unit(stream, number))
            # Spark compares more than names and types (nullability, metadata): give it its own schema back.
            yield from table.cast(self._schema).to_batches()

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    def _unit(self, stream: str, number: int) -> pa.Table:
        path = os.path.join(self._inbox, stream, unit_name(number))
        if os.path.exists(path):
            # One that is damaged is the node's business, which fetches it once more.
            with pa.memory_map(path) as file, contextlib.suppress(Damaged):
                return open_unit(file.read_buffer(), path)
        ticket = ticket_of(UnitTicket(ReplicaId.parse(self._replica), StreamId.parse(stream), number))
        return self._connection().do_get(ticket, flight.FlightCallOptions(timeout=GATE_TIMEOUT_S)).read_all()

    def _with_cut_time(self, table: pa.Table) -> pa.Table:
        if not self._cut_time:
            return table
        cut_us = read_header(table.schema).cut_ms * 1000
        column = (
            pa.array([cut_us], pa.int64())
            .cast(pa.timestamp("us", tz="UTC"))
            .take(pa.array([0] * table.num_rows, pa.int32()))
        )
        return table.append_column(self._cut_time, column)

    def _connection(self) -> Any:
        if self._client is None:
            self._client = open_client(self._gate, Credentials.from_text(self._secret))
        return self._client
