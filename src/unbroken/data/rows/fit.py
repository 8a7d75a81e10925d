"""Fits Arrow tables that others made to a declared schema, or says which column does not fit."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from unbroken.data.rows.budget import DecodeBudget, clip, first_line, width


def fit(table: pa.Table, schema: pa.Schema, *, exact_names: bool, budget: DecodeBudget | None = None) -> pa.Table:
    """``table`` with the columns and types of ``schema``, in its order.

    Values are converted only where nothing is lost and nothing has to be guessed: between integers that hold
    the value, floats, units of time, encodings of text. Times without zone count as UTC, and digits beyond
    microseconds are cut off. With ``exact_names`` the table must have exactly the schema's columns; without,
    further ones are ignored and missing ones are null. Dates and times stay as they are, see `years`.

    Raises
    ------
    OverBudget
        If the result would be larger than ``budget``.
    ValueError
        Names the column and what is wrong with it.
    """
    given, wanted = Counter(table.column_names), set(schema.names)
    twice = min((name for name, count in given.items() if count > 1), default=None)
    if twice is not None:
        raise ValueError(f"column {clip(twice, 60)!r} is there more than once")
    if exact_names and given.keys() != wanted:
        has, wants = ", ".join(table.column_names) or "(none)", ", ".join(schema.names)
        raise ValueError(f"the columns are {clip(has, 200)}, but the schema has {clip(wants, 200)}")
    present = table.select([name for name in schema.names if name in given])
    for field in present.schema:
        _check(field, schema.field(field.name))
    try:
        present.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(f"not sound: {first_line(error)}") from None
    if budget is not None:
        budget.require(_decoded_bytes(present, schema), table.num_rows, "the table")
    columns = [
        _fit(present.column(field.name), field) if field.name in given else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"column {field.name!r} must not be null, but {column.null_count} values are")
    return pa.Table.from_arrays(columns, schema=schema)


def _check(given: pa.Field, wanted: pa.Field) -> None:
    """Refuse types that cannot be converted, before any value is looked at."""
    kind = given.type.value_type if pt.is_dictionary(given.type) else given.type
    if not _sound(kind):
        raise ValueError(f"column {given.name!r} is {clip(str(kind), 200)}, whose scale is not within its precision")
    if not _related(kind, wanted.type):
        raise ValueError(f"column {given.name!r} is {clip(str(given.type), 200)}, but the schema says {wanted.type}")


def _sound(kind: pa.DataType) -> bool:
    """Whether all decimals in a type have a scale that Arrow has a power of ten for."""
    if pt.is_decimal(kind):
        return 0 <= int(kind.scale) <= int(kind.precision)
    return all(_sound(kind.field(i).type) for i in range(kind.num_fields))


def _fit(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    if pt.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    cut = pt.is_timestamp(column.type) and column.type.unit == "ns"
    try:
        made = column.cast(field.type, safe=not cut)
        kept = all(map(_decimals_kept, column.chunks, made.chunks))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"column {field.name!r} does not fit {field.type}: {first_line(error)}") from None
    if not kept:
        raise ValueError(f"column {field.name!r} does not fit {field.type}: a decimal has too many digits")
    return made


def _decimals_kept(given: pa.Array, made: pa.Array) -> bool:
    """Whether all decimals of an array are still the same numbers after a cast.

    A number that is beyond the bits of the type when it is shifted to another scale begins at 0 again, which Arrow
    notices only sometimes; such a one does not come back to what it was.
    """
    if given.type == made.type:
        return True
    if pt.is_decimal(given.type):
        return bool(made.cast(given.type).equals(given))
    if pt.is_map(given.type):
        return _decimals_kept(given.keys, made.keys) and _decimals_kept(given.items, made.items)
    if pt.is_struct(given.type):
        return all(map(_decimals_kept, given.flatten(), made.flatten()))
    return not pt.is_nested(given.type) or _decimals_kept(given.flatten(), made.flatten())


def _decoded_bytes(table: pa.Table, schema: pa.Schema) -> int:
    """What the table takes with the schema's types, and nulls for the columns that it does not have."""
    missing = sum(width(field.type) for field in schema if field.name not in table.column_names)
    found = sum(
        _array_bytes(chunk, schema.field(name).type)
        for name, column in zip(table.column_names, table.columns, strict=True)
        for chunk in column.chunks
    )
    return int(table.num_rows) * missing + found


def _array_bytes(array: pa.Array, wanted: pa.DataType) -> int:
    """What an array takes as ``wanted``, to which it is related, without converting it."""
    given = array.type
    least: int = len(array) * width(wanted)
    if pt.is_dictionary(given):
        values = array.dictionary
        if not (_is_text(values.type) or _is_bytes(values.type)):
            return least
        lengths = _lengths(values).take(array.indices.drop_null())
        return least + int(pc.sum(lengths).as_py() or 0)
    if _is_text(given) or _is_bytes(given):
        return least + int(pc.sum(_lengths(array)).as_py() or 0)
    if pt.is_map(given):
        keys = _array_bytes(array.keys, wanted.key_type)
        return least + keys + _array_bytes(array.items, wanted.item_type)
    if pt.is_struct(given):
        children = zip(array.flatten(), wanted, strict=True)
        return least + sum(_array_bytes(child, field.type) for child, field in children)
    if pt.is_nested(given):
        return least + _array_bytes(array.flatten(), wanted.value_type)
    return least


def _lengths(array: pa.Array) -> pa.Array:
    if pt.is_string_view(array.type) or pt.is_binary_view(array.type):
        # A view begins with its length. Many of them may show the same bytes.
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)
        lengths = views[array.offset : array.offset + len(array), 0].astype(np.int64)
        return pa.array(lengths, mask=np.asarray(array.is_null().to_numpy(zero_copy_only=False), bool))
    return pc.binary_length(array).cast(pa.int64())


def _related(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type mean the same in the other."""
    if pt.is_dictionary(given):
        return False  # Only a whole column may be one.
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
