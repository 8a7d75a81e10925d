"""Rows with their hashes: each value is hashed once, for the shards that rows go to and for the digests of units.

The digest of a unit is the same for the same set of rows, in whatever order and partitioning they come: the sum of the
hashes of its rows.

Rows that a segment has *computed* may differ in the last bits of their floating-point values, because sums of doubles
depend on the order in which rows are added up. So finite values are left out of their hashes; only whether such a value
is null, NaN or infinite is hashed. The finite values of each column are summed instead and compared by tolerance. Each
is taken by its size, times a weight of the row's hash and of its sign: so nothing cancels out, the tolerance is
relative to what was added up, and two rows that swap their values are noticed.

Rows that were only *read*, as those of a source, count bit for bit, apart from the sign of zero and the kind of NaN. A
digest is comparable only with another one of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.data.row_hash import Hashes, as_list, chain, hash_column, is_collection
from unbroken.data.sharding import (
    Shards,
    check_count,
    check_key,
    column_of,
    key_columns_of,
    ordered_by_shard,
    shards_of,
)
from unbroken.protocol.values.units import Digest

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HashedRows:
    """A table, the hash of each of its rows, and that of each value of the columns that may be ``keys``."""

    table: pa.Table
    hashes: Hashes
    keys: Mapping[str, Hashes]
    computed: bool

    @classmethod
    def of(cls, table: pa.Table, keys: Sequence[Sequence[str]] = (), *, computed: bool) -> Self:
        """Hash a table that is to be split by these lists of key columns.

        Raises
        ------
        UnbrokenError
            If a column has a type of which there is no hash, or a key column is missing or of a type that cannot be a
            key; it names the column.
        """
        named = dict.fromkeys(name for columns in keys for name in key_columns_of(table.schema, columns))
        for name in named:
            column_of(table, name)
            check_key(table.schema.field(name))
        kept: dict[str, Hashes] = {}
        hashes: Hashes = np.full(table.num_rows, table.num_columns, np.uint64)
        for field, column in zip(table.schema, table.columns, strict=True):
            inexact = computed and holds_floats(field.type)
            values = hash_column(field.name, column, exact=not inexact)
            hashes = chain(hashes, values)
            if field.name in named:
                kept[field.name] = hash_column(field.name, column) if inexact else values
        return cls(table, hashes, kept, computed)

    def split(self, keys: Sequence[str], shards: int) -> list[HashedRows]:
        """The rows of each shard, in their order; ``keys`` are among those that the table was hashed for.

        With one shard or no keys everything goes to shard 0 and the table is handed on as it is.
        """
        check_count(shards)
        if shards == 1 or not keys:
            return [self, *(self._slice(0, 0) for _ in range(shards - 1))]
        # Sort by shard once, then slice: slices share memory, so the cost does not grow with the shards.
        order, ends = ordered_by_shard(self.shards(keys, shards), shards)
        table = self.table.take(pa.array(order)) if self.table.num_columns else self.table
        ordered = HashedRows(table, self.hashes[order], {}, self.computed)
        starts = [0, *ends[:-1].tolist()]
        return [ordered._slice(start, end) for start, end in zip(starts, ends.tolist(), strict=True)]

    def shards(self, keys: Sequence[str], shards: int) -> Shards:
        """The shard of each row."""
        key_hashes: Hashes = np.zeros(self.table.num_rows, np.uint64)
        for name in key_columns_of(self.table.schema, keys):
            key_hashes = chain(key_hashes, self.keys[name])
        return shards_of(key_hashes, shards)

    def none(self) -> HashedRows:
        """No rows of the same columns."""
        return self._slice(0, 0)

    def _slice(self, start: int, end: int) -> HashedRows:
        keys = {name: hashes[start:end] for name, hashes in self.keys.items()}
        return HashedRows(self.table.slice(start, end - start), self.hashes[start:end], keys, self.computed)

    def digest(self) -> Digest:
        sums: tuple[float, ...] = ()
        if self.computed:
            floats = [field.name for field in self.table.schema if holds_floats(field.type)]
            sums = tuple(_float_sum(self.table.column(name), self.hashes) for name in floats)
        return Digest(self.table.num_rows, int(self.hashes.sum(dtype=np.uint64)), sums)


def split(table: pa.Table, keys: Sequence[str], shards: int) -> list[pa.Table]:
    """One table per shard; rows keep their order within each shard."""
    check_count(shards)
    wanted = [keys] if shards > 1 and keys else []
    return [piece.table for piece in HashedRows.of(table, wanted, computed=False).split(keys, shards)]


def holds_floats(kind: pa.DataType) -> bool:
    """Whether a type has floating-point values at any depth."""
    return pa.types.is_floating(kind) or any(holds_floats(kind.field(n).type) for n in range(kind.num_fields))


def _float_sum(column: pa.ChunkedArray, hashes: Hashes) -> float:
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
