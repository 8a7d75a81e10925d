"""The rows of a test as a source would have them: an Arrow table of the source's schema, and the marks between rows.

Rows are dicts, or whole pieces as Arrow tables or pandas frames, in one list with the marks. Times, dates and decimals
may be written as text, as in JSON; what does not fit the schema is told with the row and the column it is in.
"""

from __future__ import annotations

import datetime
import decimal
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from unbroken.data.rows.fit import fit
from unbroken.data.rows.values.times import micros_of_text
from unbroken.data.schema import arrow_schema
from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.testing.marks import Mark
from unbroken.wording import choices

if TYPE_CHECKING:
    from unbroken.flow.dataflow import Source

GivenInput = Any
"""What a user gives as the input of one source: rows and marks, a table, or a frame."""


@dataclass(frozen=True)
class Input:
    """All rows of a source, and the marks with the number of rows that are before each."""

    table: pa.Table
    marks: tuple[tuple[int, Mark], ...] = ()


def read_inputs(flow: Dataflow, given: Mapping[str, GivenInput] | GivenInput) -> dict[str, Input]:
    """The input of every source; raises UnbrokenError if one is missing, unknown or does not fit.

    A flow with one source may be given its rows without the name.
    """
    if not isinstance(given, Mapping):
        if len(flow.sources) != 1:
            names = ", ".join(flow.sources)
            raise UnbrokenError(f"flow {flow.name} has the sources {names}: give a dict with the rows of each")
        given = {next(iter(flow.sources)): given}
    for name in given:
        if name not in flow.sources:
            raise UnbrokenError(f"flow {flow.name} has no source {name!r}; {choices(flow.sources, str(name))}")
    missing = [name for name in flow.sources if name not in given]
    if missing:
        what = f"the input has no rows for source {missing[0]!r} of flow {flow.name}"
        raise UnbrokenError(f"{what}; give them, or an empty list")
    return {name: read_input(source, given[name]) for name, source in flow.sources.items()}


def read_input(source: Source, given: GivenInput) -> Input:
    """Rows and marks of one source."""
    schema = arrow_schema(source.connector.schema)
    where = f"input of source {source.name}"
    tables: list[pa.Table] = [schema.empty_table()]
    marks: list[tuple[int, Mark]] = []
    rows: list[Any] = []
    count = 0
    for piece in _pieces(given, where):
        if isinstance(piece, Mapping):
            rows.append(piece)
            count += 1
            continue
        tables.append(_from_rows(rows, count - len(rows), schema, where))
        rows = []
        if isinstance(piece, Mark):
            marks.append((count, piece))
        else:
            table = _from_table(piece, schema, f"{where}, from row {count + 1} on")
            count += table.num_rows
            tables.append(table)
    tables.append(_from_rows(rows, count - len(rows), schema, where))
    return Input(pa.concat_tables(tables).combine_chunks(), tuple(marks))


def _pieces(given: GivenInput, where: str) -> Iterable[Any]:
    """Rows, marks, tables and frames, in their order."""
    if _is_table(given):
        return [given]
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        what = f"{where}: {type(given).__name__} cannot be rows"
        raise UnbrokenError(f"{what}; give a list of dicts, a pyarrow.Table or a pandas.DataFrame")
    pieces = list(given)
    for number, piece in enumerate(pieces, 1):
        if not isinstance(piece, Mapping | Mark) and not _is_table(piece):
            what = f"{where}: item {number} is {piece!r:.60}, which is neither a row nor a mark"
            raise UnbrokenError(f"{what}; rows are dicts, marks are made by mark(), kill_here() and pause_here()")
    return pieces


def _is_table(value: Any) -> bool:
    # pandas is not imported for this: whoever has a frame has imported it.
    return isinstance(value, pa.Table | pa.RecordBatch) or type(value).__module__.startswith("pandas.")


def _from_table(value: Any, schema: pa.Schema, where: str) -> pa.Table:
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    try:
        table = value if isinstance(value, pa.Table) else pa.Table.from_pandas(value, preserve_index=False)
        return fit(table, schema, exact_names=True)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise UnbrokenError(f"{where}: {error}. Change the table or the schema of the source.") from None


def _from_rows(rows: list[Mapping[str, Any]], first: int, schema: pa.Schema, where: str) -> pa.Table:
    """Rows as a table; ``first`` is how many rows were before them, for messages."""
    for number, row in enumerate(rows, first + 1):
        unknown = [str(name) for name in row if name not in schema.names]
        if unknown:
            what = f"{where}, row {number}: there is no column {unknown[0]!r}"
            raise UnbrokenError(f"{what}; {choices(schema.names, unknown[0])}")
    columns = [_column(rows, field, first, where) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(rows: list[Mapping[str, Any]], field: pa.Field, first: int, where: str) -> pa.Array:
    values: list[Any] = []
    for number, row in enumerate(rows, first + 1):
        value = row.get(field.name)
        if value is None and not field.nullable:
            raise UnbrokenError(f"{where}, row {number}: column {field.name!r} must not be null or missing; give it")
        try:
            values.append(_value(value, field.type))
            pa.scalar(values[-1], field.type)
        except (ValueError, TypeError, OverflowError, decimal.InvalidOperation, pa.ArrowException) as error:
            what = f"{where}, row {number}: {value!r:.60} does not fit column {field.name!r} ({field.type})"
            raise UnbrokenError(f"{what}: {(str(error).splitlines() or [type(error).__name__])[0]}") from None
    return pa.array(values, field.type)


def _value(value: Any, kind: pa.DataType) -> Any:
    """A value as Arrow takes it for a type; text and epoch milliseconds become times, as in JSON."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        if isinstance(value, str):
            return micros_of_text(value)
        return 1000 * value if type(value) is int else value
    if pa.types.is_date(kind) and isinstance(value, str):
        return datetime.date.fromisoformat(value)
    if pa.types.is_decimal(kind) and isinstance(value, str):
        return decimal.Decimal(value)
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        return {field.name: _value(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        entries = value.items() if isinstance(value, Mapping) else value
        return [(_value(key, kind.key_type), _value(item, kind.item_type)) for key, item in entries]
    if pa.types.is_list(kind) and isinstance(value, list | tuple):
        return [_value(item, kind.value_type) for item in value]
    if isinstance(value, bool) and not pa.types.is_boolean(kind):
        raise TypeError("a truth value is no number")
    # Arrow would cut a fraction off.
    return operator.index(value) if pa.types.is_integer(kind) else value
