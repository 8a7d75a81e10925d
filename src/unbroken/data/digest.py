"""Digests of units: the same for the same set of rows, in whatever order and partitioning they come.

A digest is made in two steps, because the data leaves Spark only once. Spark adds one 64-bit hash per row
(`with_digest`), over everything that is exactly comparable; the Arrow table that comes out of Spark is then
summed up (`digest_of`), after it was split by consumer shard.

Floating-point values are left out of the row hash: sums of doubles depend on the order in which a shuffle
delivers rows, so correct replicas may differ in the last bits. Only whether such a value is null, NaN or
infinite is hashed. The finite values of each column are summed instead and compared by tolerance. Each is
taken by its size, times a weight of the row's hash and of its sign: so nothing cancels out, the tolerance is
relative to what was added up, and two rows that swap their values are noticed.

Units that are made without Spark get an `arrow_digest`; it is comparable only with another `arrow_digest`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.data.arrow_hash import as_list, is_collection, row_hashes
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.units import Digest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

RESERVED = "__ub_"
HASH_COLUMN = f"{RESERVED}hash"

Hashes64 = npt.NDArray[np.uint64]
Doubles = npt.NDArray[np.float64]


def with_digest(df: DataFrame) -> DataFrame:
    """The DataFrame with each row's hash as one more column, `HASH_COLUMN`."""
    return df.select("*", digest_column(df.schema))


def digest_column(schema: StructType) -> Column:
    """Each row's hash as a column named `HASH_COLUMN`.

    Raises
    ------
    UnbrokenError
        If the schema has a column of that name, or two columns of the same name.
    """
    names = [name.lower() for name in schema.names]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UnbrokenError(f"columns occur more than once: {', '.join(repeated)}: rename or drop them")
    reserved = [name for name in names if name.startswith(RESERVED)]
    if reserved:
        raise UnbrokenError(f"column '{reserved[0]}' is reserved for Unbroken: rename it")
    from pyspark.sql import functions as F

    return F.xxhash64(*digest_columns(schema)).alias(HASH_COLUMN)


def digest_columns(schema: StructType) -> list[Column]:
    """What is hashed of each row: every exactly comparable value, and where there are nulls.

    The nulls are hashed apart because Spark's hashes skip them, and (null, 1) would equal (1, null).
    """
    from pyspark.sql import functions as F

    parts: list[Column] = []
    for field in schema.fields:
        parts += _exact_parts(F.col("`" + field.name.replace("`", "``") + "`"), field.dataType)
    return parts or [F.lit(0)]


def float_columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a Spark schema that hold floating-point values, at any depth."""
    return tuple(field.name for field in schema.fields if _holds_floats(field.dataType))


def digest_of(table: pa.Table, float_columns: Sequence[str] | None = None) -> Digest:
    """The digest of rows that carry `HASH_COLUMN`.

    ``float_columns`` are those of the schema (see `float_columns`); if not given, the Arrow types tell.
    """
    if table.schema.get_field_index(HASH_COLUMN) < 0:
        raise UnbrokenError(f"the table has no column '{HASH_COLUMN}': add it in Spark with with_digest first")
    hashes = _uint64(table.column(HASH_COLUMN))
    if float_columns is None:
        float_columns = [field.name for field in table.schema if _arrow_holds_floats(field.type)]
    sums = tuple(_float_sum(table.column(name), hashes) for name in float_columns)
    return Digest(table.num_rows, int(hashes.sum(dtype=np.uint64)), sums)


def arrow_digest(table: pa.Table) -> Digest:
    """The digest of a table that never was in Spark, such as a unit made by a source.

    Every value counts bit for bit (apart from the sign of zero and the kind of NaN), floating-point ones
    too: replicas of a source read the same bytes, they do not compute.
    """
    exact = row_hashes(table).sum(dtype=np.uint64)
    return Digest(table.num_rows, int(exact))


def _exact_parts(value: Column, kind: DataType) -> list[Column]:
    """The columns to hash so that two values of this type differ in them if they differ exactly."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if isinstance(kind, T.FloatType | T.DoubleType):
        return [_float_class(value)]
    if isinstance(kind, T.NullType):
        return []
    if isinstance(kind, T.VariantType):
        return [F.to_json(value), value.isNull()]
    if isinstance(kind, T.StructType):
        parts = [value.isNull()]
        for field in kind.fields:
            parts += _exact_parts(value.getField(field.name), field.dataType)
        return parts
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return [F.size(value), F.transform(value, lambda item: _hash_of(_exact_parts(item, element)))]
    if isinstance(kind, T.MapType):
        # Replicas may hold the entries in different order; keys are unique, so xor loses nothing.
        keys, values = kind.keyType, kind.valueType
        hashes = F.transform(
            F.map_entries(value),
            lambda entry: _hash_of(
                _exact_parts(entry.getField("key"), keys) + _exact_parts(entry.getField("value"), values)
            ),
        )
        return [F.size(value), F.aggregate(hashes, F.lit(0).cast("bigint"), lambda a, b: a.bitwiseXOR(b))]
    return [value, value.isNull()]


def _hash_of(parts: list[Column]) -> Column:
    from pyspark.sql import functions as F

    return F.xxhash64(*parts) if parts else F.lit(0).cast("bigint")


def _float_class(value: Column) -> Column:
    """0 for a finite value; null, NaN and the infinities have a number each."""
    from pyspark.sql import functions as F

    infinite = F.lit(float("inf"))
    return (
        F.when(value.isNull(), 1)
        .when(F.isnan(value), 2)
        .when(value == infinite, 3)
        .when(value == -infinite, 4)
        .otherwise(0)
    )


def _holds_floats(kind: DataType) -> bool:
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        return any(_holds_floats(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _holds_floats(kind.elementType)
    if isinstance(kind, T.MapType):
        return _holds_floats(kind.keyType) or _holds_floats(kind.valueType)
    return isinstance(kind, T.FloatType | T.DoubleType)


def _arrow_holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return True
    children = [kind.field(n).type for n in range(kind.num_fields)]
    return any(_arrow_holds_floats(child) for child in children)


def _uint64(column: pa.ChunkedArray) -> Hashes64:
    values: Hashes64 = column.to_numpy().astype(np.int64, copy=False).view(np.uint64)
    return values


def _float_sum(column: pa.ChunkedArray, hashes: Hashes64) -> float:
    """The weighted sum of the sizes of all finite values in a column."""
    if pa.types.is_floating(column.type):
        fractions = (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return _weighted(column.to_numpy().astype(np.float64, copy=False), fractions)
    # Values inside arrays and structs have no row of their own to take a weight from.
    leaves = [leaf for chunk in column.chunks for leaf in _float_leaves(chunk)]
    return sum(_weighted(leaf, np.zeros(len(leaf))) for leaf in leaves)


def _weighted(values: Doubles, fractions: Doubles) -> float:
    weights = 1.0 + fractions + 2.0 * (values < 0)
    sizes = np.where(np.isfinite(values), np.abs(values), 0.0)
    with np.errstate(over="ignore"):
        return float(np.sum(sizes * weights))


def _float_leaves(array: pa.Array) -> Iterator[Doubles]:
    kind = array.type
    if pa.types.is_floating(kind):
        yield array.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            yield from _float_leaves(child)
    elif is_collection(kind):
        yield from _float_leaves(as_list(array).flatten())
