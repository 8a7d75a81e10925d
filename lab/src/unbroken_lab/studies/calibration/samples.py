"""Rows to measure a flow with: like those of its sources, as many as are wanted, without using anything up.

A source that makes its rows itself is asked for them. Of others a sample is read and repeated, with times that go on.
Where there is nothing to be read (nobody pushes, no server answers, no file is there) rows are made up by the schema.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unbroken.connectors.base import SourceConnector
from unbroken.connectors.generator import Generator
from unbroken.connectors.push.source import Push
from unbroken.data.schema import arrow_schema
from unbroken.node.replicas.warmup import made_up_rows

OWN, REPLAYED, MADE_UP = "its own", "a sample, repeated", "made up"

MOST = 20_000
"""Rows of a sample: more would not tell more."""

KEYS = 1_000
"""Different values in columns of made-up rows: state and results depend on how many there are."""

PAUSES_S = (0.0, 0.3, 1.0)
"""Pauses before a source is asked, as some take only what has not changed between two looks."""

SPAN_BYTES = 60
"""What a pulse says about a source in the log, if the source cannot be asked."""


@dataclass(frozen=True)
class SampleRows:
    """Rows 0, 1, 2, ... of a source: what it makes itself, or a table that is repeated."""

    schema: pa.Schema
    kind: str
    generator: Generator | None = None
    table: pa.Table | None = None
    rate: float = 1.0

    def rows(self, start: int, stop: int) -> pa.Table:
        """Rows ``start`` to ``stop - 1``."""
        if self.generator is not None:
            return self.generator.function(start, stop, self.generator.seed).cast(self.schema)
        assert self.table is not None
        index = np.arange(start, stop)
        turns, places = np.divmod(index, self.table.num_rows)
        rows = self.table.take(pa.array(places))
        for place, column in enumerate(self.schema):
            if pa.types.is_timestamp(column.type):
                moved = self._moved(column, rows[column.name], index, turns)
                rows = rows.set_column(place, column, moved)
        return rows

    def _moved(self, column: pa.Field, values: pa.ChunkedArray, index: Any, turns: Any) -> pa.Array:
        """Times that go on where the sample ends: by its own length, or evenly if it has none."""
        assert self.table is not None
        kind = column.type
        per_s = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[kind.unit]
        known = self.table[column.name].cast(pa.int64()).drop_null()
        if self.kind == MADE_UP or not len(known):
            begin = int(time.time()) * per_s
            return pa.array(begin + (index * (per_s / self.rate)).astype(np.int64), pa.int64()).cast(kind)
        least, most = pc.min(known).as_py(), pc.max(known).as_py()
        step = max(1, (most - least) * (len(known) + 1) // max(1, len(known)))
        length = step if most > least else max(1, int(len(known) * per_s / self.rate))
        shift = pa.array(turns.astype(np.int64) * length, pa.int64())
        return pc.add(values.cast(pa.int64()).combine_chunks(), shift).cast(kind)


def sample_of(connector: SourceConnector, rate: float) -> SampleRows:
    """Rows like those of a source that has ``rate`` of them in a second."""
    schema = arrow_schema(connector.schema)
    if isinstance(connector, Generator):
        return SampleRows(schema, OWN, generator=connector, rate=rate)
    table = None if isinstance(connector, Push) else _read(connector)
    if table is not None and table.num_rows:
        return SampleRows(schema, REPLAYED, table=table.slice(0, MOST).combine_chunks(), rate=rate)
    return SampleRows(schema, MADE_UP, table=_made_up(schema), rate=rate)


def span_bytes(connector: SourceConnector, pulse_ms: float) -> int:
    """What a pulse says about a source in the log of the ingress: where it begins and where it ends."""
    if isinstance(connector, Push):
        return SPAN_BYTES
    with contextlib.suppress(Exception):
        reader = connector.open()
        try:
            now = int(time.time() * 1000)
            first = reader.poll(None, now).position
            second = reader.poll(first, now + int(pulse_ms)).position
            return len(json.dumps([first, second], separators=(",", ":")))
        finally:
            reader.close()
    return SPAN_BYTES


def _read(connector: SourceConnector) -> pa.Table | None:
    """What the source has at this moment, if it can be asked; reading changes nothing in it."""
    with contextlib.suppress(Exception):
        reader = connector.open()
        try:
            for pause_s in PAUSES_S:
                time.sleep(pause_s)
                position = reader.poll(None, int(time.time() * 1000)).position
                table = None if position is None else reader.read(None, position).table
                if table is not None and table.num_rows:
                    return table
        finally:
            reader.close()
    return None


def _made_up(schema: pa.Schema) -> pa.Table:
    """Rows of a schema with ``KEYS`` different numbers and texts."""
    rows, number = made_up_rows(schema, KEYS), np.arange(KEYS)
    for place, column in enumerate(schema):
        if pa.types.is_int32(column.type) or pa.types.is_int64(column.type):
            rows = rows.set_column(place, column, pa.array(number, pa.int64()).cast(column.type))
        elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            rows = rows.set_column(place, column, pa.array([f"value {n}" for n in number], column.type))
    return rows
