"""Whether results fit a Delta table.

The library casts rows to the table's types, 1.5 to the integer 1 if need be, so types are compared before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from unbroken.errors import Unfit

if TYPE_CHECKING:
    from deltalake import Schema


def nullable(schema: pa.Schema) -> pa.Schema:
    """The columns of a table that is made for results: any may be null, since other code may make it so."""
    return pa.schema([field.with_nullable(True) for field in schema])


def delta_types(schema: pa.Schema) -> dict[str, str]:
    """The columns of results and their types in Delta's words.

    Raises
    ------
    Unfit
        If Delta has no type for one of them.
    """
    from deltalake import Schema

    found = {}
    for field in schema:
        try:
            if pt.is_null(field.type):
                raise ValueError("a column without a type")
            found[field.name] = _text(Schema.from_arrow(pa.schema([field])).fields[0].type)
        except Exception:  # The library raises plain ones, with a long trace of its own.
            raise Unfit(
                f"Column {field.name!r} is of type {field.type}, for which Delta has none; cast it in the segment."
            ) from None
    return found


def check_partitions(schema: pa.Schema, partition_by: Sequence[str], where: str) -> None:
    """Raise Unfit if a table cannot be partitioned so; the library would make one that cannot be written to."""
    for name in partition_by:
        if name not in schema.names:
            known = ", ".join(schema.names)
            raise Unfit(f"{where}: there is no column {name!r} to partition by; the results have {known}.")
        if pt.is_nested(schema.field(name).type):
            raise Unfit(f"{where}: {name!r} is nested and cannot partition; name another column.")
    if partition_by and len(set(partition_by)) >= len(schema.names):
        raise Unfit(f"{where}: all columns partition, so none is left for the files; leave one out.")


def check_fit(schema: pa.Schema, table: Schema, where: str) -> None:
    """Raise Unfit, naming the columns, if results with ``schema`` are not exactly what the table holds."""
    results = delta_types(schema)
    columns = {field.name: _text(field.type) for field in table.fields}
    wrong = [
        f"it has no column {name!r} ({kind}); add it to the table, or leave it out in the segment"
        for name, kind in results.items()
        if name not in columns
    ]
    wrong += [
        f"the results have no column {name!r} ({kind}); produce it in the segment"
        for name, kind in columns.items()
        if name not in results
    ]
    wrong += [
        f"its column {name!r} is of type {columns[name]}, in the results it is {kind}; cast it in the segment"
        for name, kind in results.items()
        if name in columns and columns[name] != kind
    ]
    if wrong:
        raise Unfit(f"The results do not fit {where}: {'; and '.join(wrong)}.")


def _text(kind: Any) -> str:
    """A Delta type as text, whatever may be null in it."""
    from deltalake.schema import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return f"array<{_text(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{_text(kind.key_type)},{_text(kind.value_type)}>"
    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{field.name}:{_text(field.type)}' for field in kind.fields)}>"
    return str(kind.type)
