"""Makes rows of fetched records: the record itself (raw), or what its value says (JSON)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from unbroken.connectors.kafka.fetch import CODE, HEADERS, OFFSET, TIMES
from unbroken.connectors.kafka.positions import PartitionKey, name_of
from unbroken.data.rows.budget import BAD_ROWS, DECODED_FACTOR, RAW_CHARS
from unbroken.data.rows.json.elements import elements
from unbroken.data.rows.json.lines import JsonFormat
from unbroken.data.rows.parsed import BadRow, Rows
from unbroken.data.rows.text.line_scan import Lines, bad_row, scan_indexed, why_line

METADATA: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMES,
    "timestampType": pa.int32(),
    "headers": HEADERS,
}
"""What is known of a record beside its value, with the names and types that Spark's Kafka source uses."""

NULL_VALUE = "the value is null (a tombstone)"
EMPTY_VALUE = "the value is empty"

NO_LIMIT = 1 << 62
"""The size of a value is bounded by the broker (message.max.bytes)."""

VALUE_BYTES = 64_000_000
"""What the elements of arrays and maps of one value may take when decoded, or `DECODED_FACTOR` times its size."""

TRIM_ROUNDS = 8
"""White space around a value that is taken off for all values at once; values with more are read singly."""

_SPACES = np.frombuffer(b" \t\r", np.uint8)

Offsets64 = npt.NDArray[np.int64]


def metadata_column(table: pa.Table, partitions: Sequence[PartitionKey], name: str) -> pa.ChunkedArray:
    """A column of `METADATA` for fetched records."""
    if name == "offset":
        return table.column(OFFSET)
    if name in ("topic", "partition"):
        index = 0 if name == "topic" else 1
        values = pa.array([partition[index] for partition in partitions], METADATA[name])
        return values.take(table.column(CODE))
    return table.column(name)


def raw_rows(
    table: pa.Table, partitions: Sequence[PartitionKey], metadata: Mapping[str, str], schema: pa.Schema
) -> Rows:
    """Key, value and ``metadata`` (from its names to those of the columns)."""
    columns = [table.column("key"), table.column("value")]
    columns += [metadata_column(table, partitions, name) for name in metadata]
    return Rows(pa.Table.from_arrays(columns, schema=schema))


class JsonRows:
    """The columns of ``schema`` from the values, then ``metadata`` (from its names to those of the columns)."""

    def __init__(self, schema: pa.Schema, metadata: Mapping[str, str], skip_null: bool) -> None:
        self._form = JsonFormat(schema)
        self._metadata = dict(metadata)
        self._skip_null = skip_null

    def rows(self, table: pa.Table, partitions: Sequence[PartitionKey], schema: pa.Schema) -> Rows:
        """``schema`` is that of the whole row; records that cannot be read are bad rows, in their order."""
        values = _one_array(table.column("value"))
        there = np.flatnonzero(np.asarray(values.is_valid().to_numpy(zero_copy_only=False)))
        parsed, wrong_at = parse_values(values if not values.null_count else values.drop_null(), self._form)
        wrong = np.zeros(len(values), np.bool_)
        wrong[there[wrong_at]] = True
        good = np.zeros(len(values), np.bool_)
        good[there] = True
        good &= ~wrong
        if values.null_count and not self._skip_null:
            wrong |= np.asarray(values.is_null().to_numpy(zero_copy_only=False), np.bool_)
        kept = table if good.all() else table.filter(pa.array(good))
        columns = [*parsed.columns, *(metadata_column(kept, partitions, name) for name in self._metadata)]
        places = np.flatnonzero(wrong)
        bad = tuple(self._bad(table, values, partitions, i) for i in places[:BAD_ROWS].tolist())
        return Rows(pa.Table.from_arrays(columns, schema=schema), bad, len(places))

    def _bad(self, table: pa.Table, values: pa.Array, partitions: Sequence[PartitionKey], i: int) -> BadRow:
        partition = partitions[table.column(CODE)[i].as_py()]
        value = values[i].as_py()
        origin = f"{name_of(partition)}@{table.column(OFFSET)[i].as_py()}"
        if value is None:
            return bad_row(b"", NULL_VALUE, origin)
        return bad_row(value[: 4 * RAW_CHARS], why_wrong(value, self._form), origin)


def parse_values(values: pa.Array, form: JsonFormat) -> tuple[pa.Table, Offsets64]:
    """One row for each value (none is null), in order, except for those that are wrong; their indices."""
    lines = lines_of(values)
    over = _over_budget(values, lines.data, form)
    if over.any():
        within = np.flatnonzero(~over)
        table, wrong = parse_values(values.take(pa.array(within)), form)
        return table, np.sort(np.concatenate([within[wrong], np.flatnonzero(over)]))
    table, wrong = scan_indexed(lines, form, NO_LIMIT)
    if table.num_rows + len(wrong) != len(lines):
        # What is blank between two lines is nothing; as the value of a record it is no row.
        wrong = np.union1d(wrong, np.flatnonzero(form.blank(lines)))
    return table, wrong


def why_wrong(value: bytes, form: JsonFormat) -> str:
    """Why a value is wrong."""
    line = value.replace(b"\n", b"\t")
    if _over_budget(pa.array([value], pa.binary()), line, form).any():
        return f"the value may take more than {VALUE_BYTES} bytes when decoded, by the elements of its arrays and maps"
    return why_line(line, form) if line.strip() else EMPTY_VALUE


def _over_budget(values: pa.Array, text: bytes, form: JsonFormat) -> npt.NDArray[np.bool_]:
    """Values whose elements take too much: more than `VALUE_BYTES`, and than what a value of its size usually takes."""
    found = elements(form.schema)
    if found.bytes_of(text) <= VALUE_BYTES:  # all of them together, so none does
        return np.zeros(len(values), np.bool_)
    sizes = np.asarray(pc.binary_length(values)).astype(np.int64)
    return found.bytes_of_each(values) > np.maximum(VALUE_BYTES, DECODED_FACTOR * sizes)


def lines_of(values: pa.Array) -> Lines:
    """The values as one text with a line for each.

    Line breaks within a value become tabs: between the parts of a JSON text both are white space, and within a string
    neither is allowed, so a value means the same and is one line.
    """
    if not len(values):
        return Lines.of(b"")
    text = _joined(values)
    if text.count(b"\n") != len(values) - 1:
        text = _joined(pc.replace_substring(values, b"\n", b"\t"))
    lengths = np.asarray(pc.binary_length(values)).astype(np.int64)
    ends = np.cumsum(lengths + 1) - 1
    return _trimmed(text, ends - lengths, ends)


def _joined(values: pa.Array) -> bytes:
    bounds = pa.array([0, len(values)], pa.int32())
    return bytes(pc.binary_join(pa.ListArray.from_arrays(bounds, values), b"\n")[0].as_buffer())


def _trimmed(text: bytes, starts: Offsets64, ends: Offsets64) -> Lines:
    """Lines without white space around them, so that they begin and end like an object if they are one."""
    buffer = np.frombuffer(text, np.uint8)
    for _ in range(TRIM_ROUNDS if text else 0):
        blank = (starts < ends) & _is_space(buffer[np.minimum(starts, len(text) - 1)])
        starts = starts + blank
        if not blank.any():
            break
    for _ in range(TRIM_ROUNDS if text else 0):
        blank = (starts < ends) & _is_space(buffer[np.maximum(ends, 1) - 1])
        ends = ends - blank
        if not blank.any():
            break
    return Lines(text, starts, ends, 0)


def _is_space(characters: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    return np.isin(characters, _SPACES)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
