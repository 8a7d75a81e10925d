"""Fits Arrow tables that others made to a declared schema, or says which column does not fit."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt


def fit(table: pa.Table, schema: pa.Schema, *, exact_names: bool) -> pa.Table:
    """``table`` with the columns and types of ``schema``, in its order.

    Values are converted only where nothing is lost and nothing has to be guessed: between integers that hold
    the value, floats, units of time, encodings of text. Times without zone count as UTC, and digits beyond
    microseconds are cut off. With ``exact_names`` the table must have exactly the schema's columns; without,
    further ones are ignored and missing ones are null.

    Raises
    ------
    ValueError
        Names the column and what is wrong with it.
    """
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise ValueError(f"column {twice[0]!r} is there more than once")
    missing = [name for name in schema.names if name not in table.column_names]
    unknown = [name for name in table.column_names if name not in schema.names]
    if exact_names and (missing or unknown):
        has, wants = ", ".join(table.column_names) or "(none)", ", ".join(schema.names)
        raise ValueError(f"the columns are {has}, but the schema has {wants}")
    columns = [
        pa.nulls(table.num_rows, field.type) if field.name in missing else _fit(table.column(field.name), field)
        for field in schema
    ]
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"column {field.name!r} must not be null, but {column.null_count} values are")
    return pa.Table.from_arrays(columns, schema=schema)


def _fit(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    if pt.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not _related(column.type, field.type):
        raise ValueError(f"column {field.name!r} is {column.type}, but the schema says {field.type}")
    cut = pt.is_timestamp(column.type) and column.type.unit == "ns"
    try:
        return column.cast(field.type, safe=not cut)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"column {field.name!r} does not fit {field.type}: {reason}") from None


def _related(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type mean the same in the other."""
    if pt.is_null(given) or given == wanted:
        return True
    if pt.is_integer(given):
        return bool(pt.is_integer(wanted) or pt.is_floating(wanted) or pt.is_decimal(wanted))
    if pt.is_list(wanted):
        lists = pt.is_list(given) or pt.is_large_list(given) or pt.is_fixed_size_list(given)
        return bool(lists) and _related(given.value_type, wanted.value_type)
    if pt.is_map(wanted):
        return (
            pt.is_map(given)
            and _related(given.key_type, wanted.key_type)
            and _related(given.item_type, wanted.item_type)
        )
    if pt.is_struct(wanted):
        return (
            pt.is_struct(given)
            and [field.name for field in given] == [field.name for field in wanted]
            and all(_related(a.type, b.type) for a, b in zip(given, wanted, strict=True))
        )
    return any(is_one(given) and is_one(wanted) for is_one in _FAMILIES)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


_FAMILIES = (_is_text, _is_bytes, pt.is_floating, pt.is_decimal, pt.is_timestamp, pt.is_date, pt.is_boolean)
