"""Rows of Parquet files, one row group after the other, each within what is left of the file's budget.

A file of some kilobytes can hold gigabytes: repeated values are stored once. Row counts are in the footer and are
checked first; text that is stored in dictionaries stays there until its size is known; and a group is read in batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from unbroken.data.rows.budget import BAD_ROWS, DecodeBudget, by_environment, first_line, row_bytes
from unbroken.data.rows.fit import fit
from unbroken.data.rows.parsed import BadRow, Rows
from unbroken.data.rows.regular_files import open_regular
from unbroken.data.rows.values.years import REASON, outside

BATCH_ROWS = 65_536

_REPEATING = {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"}
"""Encodings in which a long value takes little room the second time."""


@dataclass(frozen=True)
class _Text:
    """A column of a row group in which values may be repeated at little cost, by the footer."""

    path: str
    size: int
    delta: bool


_Group = tuple[_Text, ...] | Exception
"""What is to be known of a row group before it is read, or why it cannot be."""


def read_parquet(source: BinaryIO, name: str, schema: pa.Schema, budget: DecodeBudget) -> Rows:
    """The rows of a file; a row group that cannot be read, or is over budget, is one bad row.

    Raises
    ------
    Exception
        If the footer cannot be read.
    """
    plain = pq.ParquetFile(source, pre_buffer=False)
    groups = [_probed(plain, group, schema) for group in range(plain.metadata.num_row_groups)]
    shared = _shared_texts(groups, schema)
    # With the same footer: another one, of a file that is being changed, would not be the one that was probed.
    file = pq.ParquetFile(source, metadata=plain.metadata, pre_buffer=False, read_dictionary=sorted(shared))
    return Rows.joined(schema, _groups(file, groups, schema, budget, name, shared))


def decoded_estimate(path: Path, schema: pa.Schema) -> int:
    """What a file is likely to take when decoded, by its footer; 0 if that cannot be read."""
    try:
        with open_regular(path) as source:
            rows = int(pq.ParquetFile(source, pre_buffer=False).metadata.num_rows)
    except (OSError, ValueError, pa.ArrowException):
        return 0
    return max(0, rows) * row_bytes(schema)


def _groups(
    file: pq.ParquetFile,
    groups: list[_Group],
    schema: pa.Schema,
    budget: DecodeBudget,
    name: str,
    shared: set[str],
) -> Iterator[Rows]:
    left = budget
    for group, texts in enumerate(groups):
        origin = f"{name}, row group {group + 1}"
        try:
            if isinstance(texts, Exception):
                raise texts
            table = _group(file, group, schema, left, _batch_rows(texts, shared, left))
        except Exception as error:
            if by_environment(error):
                raise
            yield Rows(schema.empty_table(), (BadRow(origin, f"cannot be read: {first_line(error)}", origin),))
            continue
        left = DecodeBudget(max(0, left.bytes - table.nbytes), max(0, left.rows - table.num_rows))
        yield _within_years(table, origin)


def _group(file: pq.ParquetFile, group: int, schema: pa.Schema, budget: DecodeBudget, batch_rows: int) -> pa.Table:
    about = file.metadata.row_group(group)
    budget.require(about.num_rows * row_bytes(schema), about.num_rows, "the row group")
    tables = [schema.empty_table()]
    size = rows = 0
    for batch in file.iter_batches(batch_rows, row_groups=[group], columns=_wanted(file, schema), use_threads=False):
        left = DecodeBudget(budget.bytes - size, budget.rows - rows)
        tables.append(fit(pa.Table.from_batches([batch]), schema, exact_names=False, budget=left))
        size += tables[-1].nbytes
        rows += batch.num_rows
        budget.require(size, rows, "the row group")
    return pa.concat_tables(tables)


def _within_years(table: pa.Table, origin: str) -> Rows:
    wrong = outside(table)
    if not wrong.any():
        return Rows(table)
    places = np.flatnonzero(wrong)[:BAD_ROWS].tolist()
    bad = tuple(BadRow(f"(row {place + 1})", REASON, f"{origin}, row {place + 1}") for place in places)
    return Rows(table.filter(pa.array(~wrong)), bad, int(wrong.sum()))


def _wanted(file: pq.ParquetFile, schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name in file.schema_arrow.names]


def _probed(file: pq.ParquetFile, group: int, schema: pa.Schema) -> _Group:
    """How a row group stores repeated text, or why it cannot be read.

    What the footer says of a column is looked at only after a row of that column was read: where it contradicts itself,
    reading raises an exception, and looking ends the process.
    """
    wanted = _wanted(file, schema)
    try:
        first = next(file.iter_batches(1, row_groups=[group], columns=wanted, use_threads=False), None)
    except Exception as error:
        if by_environment(error):
            raise
        return error
    if first is None or not first.num_columns:
        return ()
    about = file.metadata.row_group(group)
    read = (about.column(i) for i, path in enumerate(file.reader.column_paths) if path[0] in wanted)
    return tuple(
        _Text(column.path_in_schema, column.total_uncompressed_size, "DELTA_BYTE_ARRAY" in column.encodings)
        for column in read
        if column.physical_type == "BYTE_ARRAY" and not _REPEATING.isdisjoint(column.encodings)
    )


def _shared_texts(groups: list[_Group], schema: pa.Schema) -> set[str]:
    """Columns of text that some row group stores in a dictionary; only whole columns can be left in theirs."""
    wanted = {field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_binary(field.type)}
    found = {text.path for texts in groups if not isinstance(texts, Exception) for text in texts}
    return wanted & found


def _batch_rows(texts: tuple[_Text, ...], shared: set[str], budget: DecodeBudget) -> int:
    """Rows to decode at a time, so that repeated values which are not left in a dictionary do not exceed the budget."""
    largest = max((text.size for text in texts if text.path not in shared or text.delta), default=0)
    return BATCH_ROWS if largest <= 0 else min(BATCH_ROWS, max(1, 4 * budget.bytes // largest))
