"""Which shard a row belongs to.

A row's shard is the hash of its keys modulo the number of shards, wherever the row comes from: a source, the ingress or
a segment. Rows with equal keys must meet in the same shard whichever way they came, so all of them use the one hash
(`unbroken.data.row_hash`). It gives the same number for the same keys *of the same type*: a key that is an int on one
side and a long on the other may hash differently, and callers cast to the stream's schema first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.data.row_hash import Hashes, is_bytes
from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

Shards = npt.NDArray[np.uint32]

EVERYTHING = "*"
"""In the place of key columns: rows are spread by all that they hold, so that replicas agree on where they go."""

_LONG_DECIMAL_DIGITS = 18
"""Decimals of more digits cannot be keys."""


def key_columns_of(schema: pa.Schema, key_columns: Sequence[str]) -> list[str]:
    """The columns that decide: those that were named or, with ``EVERYTHING``, all that can be keys.

    Floating-point values are left out: replicas that compute them may differ in the last bits.
    """
    if tuple(key_columns) != (EVERYTHING,):
        return list(key_columns)
    fit = (
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_date,
        pa.types.is_timestamp,
    )
    return [field.name for field in schema if any(suits(field.type) for suits in fit)]


def check_key_type(name: str, kind: DataType) -> None:
    """Raise if rows cannot be sharded by a column of this Spark type."""
    from pyspark.sql.pandas.types import to_arrow_type

    collation = getattr(kind, "collation", "UTF8_BINARY")
    if collation != "UTF8_BINARY":
        raise UnbrokenError(f"column '{name}' is compared by {collation}: texts that count as equal hash differently")
    check_key(pa.field(name, to_arrow_type(kind, timezone="UTC")))


def check_key(field: pa.Field) -> None:
    """Raise if rows cannot be sharded by a column of this Arrow type."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    types = pa.types
    fits = (
        types.is_null(kind)
        or types.is_boolean(kind)
        or types.is_signed_integer(kind)
        or types.is_date32(kind)
        or (types.is_timestamp(kind) and kind.unit != "ns")
        or types.is_float32(kind)
        or types.is_float64(kind)
        or (types.is_decimal128(kind) and kind.precision <= _LONG_DECIMAL_DIGITS)
        or is_bytes(kind)
    )
    if not fits:
        raise UnbrokenError(
            f"column '{field.name}' has type {field.type}, which cannot be a key: "
            "cast it to a string, an integer, a date or timestamp('us') before it is used as a key"
        )


def check_count(shards: int) -> None:
    if shards < 1:
        raise UnbrokenError(f"{shards} shards asked for: there must be at least 1")


def column_of(table: pa.Table, name: str) -> pa.ChunkedArray:
    if table.schema.get_field_index(name) < 0:
        raise UnbrokenError(
            f"there is no single column '{name}' among {', '.join(table.column_names) or 'no columns'}: "
            "name an existing column that occurs once"
        )
    return table.column(name)


def shards_of(key_hashes: Hashes, shards: int) -> Shards:
    """The shard of each row, by the hash of its keys."""
    return (key_hashes % np.uint64(shards)).astype(np.uint32)


def ordered_by_shard(numbers: Shards, shards: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The places of the rows sorted by shard, which keep their order within it; and where each shard ends."""
    narrow = numbers.astype(np.uint16) if shards <= 1 << 16 else numbers  # numpy sorts narrow numbers by counting
    counts = np.bincount(numbers, minlength=shards)
    return np.argsort(narrow, kind="stable"), np.cumsum(counts)
