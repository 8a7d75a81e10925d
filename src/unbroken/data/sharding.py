"""Which shard a row belongs to, decided the same way in Spark and on Arrow tables.

A row's shard is ``pmod(hash(keys), shards)`` with Spark's own ``hash``. Segments compute it in Spark, as one
more column of the micro-batch; sources and ingress nodes, which have no Spark at hand, compute it from Arrow
columns. Rows with equal keys must meet in the same shard whichever way they came, so both give the same
number for the same keys *of the same type*: a key that is an int on one side and a long on the other hashes
differently, and callers cast to the stream's schema first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.data.murmur import SPARK_SEED, Hashes, hash_array
from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

Shards = npt.NDArray[np.int32]

EVERYTHING = "*"
"""In the place of key columns: rows are spread by all that they hold, so that replicas agree on where they go."""


def spark_shard_column(key_columns: Sequence[str], shards: int, schema: pa.Schema | None = None) -> Column:
    """The shard of each row as a Spark column; 0 if there is one shard or there are no keys.

    ``schema`` is that of the rows, to know all columns that can be keys.
    """
    # Imported here: sources split Arrow tables in processes that never load Spark.
    from pyspark.sql import functions as F

    _check_count(shards)
    if shards == 1 or not key_columns:
        return F.lit(0)
    names = key_columns if schema is None else key_columns_of(schema, key_columns)
    quoted = [F.col("`" + name.replace("`", "``") + "`") for name in names]
    return F.pmod(F.hash(*quoted), F.lit(shards))


def shard_of(table: pa.Table, key_columns: Sequence[str], shards: int) -> Shards:
    """The shard of each row of an Arrow table, equal to `spark_shard_column` on the same rows.

    Raises
    ------
    UnbrokenError
        If a key column is missing or has a type that cannot be a key.
    """
    _check_count(shards)
    if shards == 1 or not key_columns:
        return np.zeros(table.num_rows, np.int32)
    hashes: Hashes = np.full(table.num_rows, SPARK_SEED, np.uint32)
    for name in key_columns_of(table.schema, key_columns):
        hashes = _hash_column(name, _column(table, name), hashes)
    # Python's and numpy's remainder take the sign of the divisor, as pmod does.
    return hashes.view(np.int32) % np.int32(shards)


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


def split(table: pa.Table, key_columns: Sequence[str], shards: int) -> list[pa.Table]:
    """One table per shard; rows keep their order within each shard.

    With one shard or no keys everything goes to shard 0 and the table is handed on as it is.
    """
    _check_count(shards)
    if shards == 1 or not key_columns:
        return [table, *(table.slice(0, 0) for _ in range(shards - 1))]
    return _split_at(table, shard_of(table, key_columns, shards), shards)


def split_by_column(table: pa.Table, shard_column: str, shards: int) -> list[pa.Table]:
    """One table per shard by a column that Spark has computed; the tables come without that column.

    Raises
    ------
    UnbrokenError
        If the column is missing or holds anything but shard numbers from 0 to ``shards - 1``.
    """
    _check_count(shards)
    column = _column(table, shard_column)
    rest = table.drop_columns([shard_column])
    if column.null_count or not pa.types.is_integer(column.type):
        raise UnbrokenError(
            f"column '{shard_column}' ({column.type}, {column.null_count} nulls) does not hold "
            "shard numbers: compute it with spark_shard_column"
        )
    numbers = column.to_numpy()
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= shards):
        raise UnbrokenError(
            f"column '{shard_column}' holds shards {numbers.min()} to {numbers.max()}, expected 0 to "
            f"{shards - 1}: compute it with spark_shard_column for {shards} shards"
        )
    if shards == 1:
        return [rest]
    return _split_at(rest, numbers.astype(np.int32), shards)


def _split_at(table: pa.Table, numbers: Shards, shards: int) -> list[pa.Table]:
    """Sort by shard once, then slice: slices share memory, so the cost does not grow with the shards."""
    if table.num_columns == 0:
        counts = np.bincount(numbers, minlength=shards)
        return [table.slice(0, int(count)) for count in counts]
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(shards + 1))
    ordered = table.take(pa.array(order))
    return [ordered.slice(int(ends[n]), int(ends[n + 1] - ends[n])) for n in range(shards)]


def _hash_column(name: str, column: pa.ChunkedArray, seeds: Hashes) -> Hashes:
    """Hash a column chunk by chunk: joining chunks would copy them, and may overflow 32-bit offsets."""
    parts: list[Hashes] = []
    start = 0
    for chunk in column.chunks:
        parts.append(hash_array(name, chunk, seeds[start : start + len(chunk)]))
        start += len(chunk)
    return np.concatenate(parts) if parts else seeds


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if table.schema.get_field_index(name) < 0:
        raise UnbrokenError(
            f"there is no single column '{name}' among {', '.join(table.column_names) or 'no columns'}: "
            "name an existing column that occurs once"
        )
    return table.column(name)


def _check_count(shards: int) -> None:
    if shards < 1:
        raise UnbrokenError(f"{shards} shards asked for: there must be at least 1")


def check_key_type(name: str, kind: DataType) -> None:
    """Raise if rows cannot be sharded by a column of this Spark type."""
    from pyspark.sql.pandas.types import to_arrow_type

    collation = getattr(kind, "collation", "UTF8_BINARY")
    if collation != "UTF8_BINARY":
        raise UnbrokenError(f"column '{name}' is compared by {collation}: texts that count as equal hash differently")
    empty = pa.array([], to_arrow_type(kind, timezone="UTC"))
    shard_of(pa.table({name: empty}), [name], shards=2)
