"""How much the elements of arrays and maps in JSON text take when decoded, at most, without reading the text.

An element of two characters takes all fields of its type: ``{}`` and ``null`` in an array of structures with a hundred
fields take a hundred values. Characters are counted, in strings and in fields that the schema does not have as well, so
the bound depends on the text and the schema only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from unbroken.data.rows.budget import width

Count = TypeVar("Count", int, npt.NDArray[np.int64])


@dataclass(frozen=True)
class Elements:
    """What the elements of a schema take.

    ``plain`` is for one that is no structure, ``wide`` for one that is; each is the widest of its kind. ``mapped`` is
    whether structures are also the values of maps, so that they follow a colon.
    """

    plain: int
    wide: int
    mapped: bool

    def bytes_of(self, text: bytes) -> int:
        """A bound for text with an object on each line."""
        if not self.plain and not self.wide:
            return 0
        rows = text.count(b"\n{") + text.startswith(b"{")
        return self._bytes(lambda part: text.count(part), rows)

    def bytes_of_each(self, values: pa.Array) -> npt.NDArray[np.int64]:
        """A bound for each of these texts, none of which is null, with one object each."""
        if not self.plain and not self.wide:
            return np.zeros(len(values), np.int64)

        def count(part: bytes) -> npt.NDArray[np.int64]:
            return np.asarray(pc.count_substring(values, part)).astype(np.int64)

        return self._bytes(count, np.asarray(pc.starts_with(values, b"{")).astype(np.int64))

    def _bytes(self, count: Callable[[bytes], Count], rows: Count) -> Count:
        objects = count(b"{") - rows
        bound = (count(b",") + count(b"[") + objects) * self.plain
        if self.wide:
            bound = bound + (objects + count(b"null")) * self.wide
            if not self.mapped:
                # What follows a colon is the value of a field, which is counted with the row or the element it is in.
                fields = count(b":{") + count(b": {") + count(b":null") + count(b": null")
                bound = bound - fields * self.wide
        return bound


@lru_cache(maxsize=64)
def elements(schema: pa.Schema) -> Elements:
    """What the elements of arrays and maps of a schema take; nothing, if it has none."""
    found = [each for field in schema for each in _found(field.type)]
    wide = [size for size, structure, _ in found if structure]
    plain = [size for size, structure, _ in found if not structure]
    mapped = any(structure and of_map for _, structure, of_map in found)
    return Elements(max(plain, default=0), max(wide, default=0), mapped)


def _found(kind: pa.DataType) -> Iterator[tuple[int, bool, bool]]:
    """Of all elements in a type: the width, whether it is a structure, and whether it is the value of a map."""
    if pa.types.is_map(kind):
        yield width(kind.key_type) + width(kind.item_type), pa.types.is_struct(kind.item_type), True
        yield from _found(kind.item_type)
    elif pa.types.is_list(kind):
        yield width(kind.value_type), pa.types.is_struct(kind.value_type), False
        yield from _found(kind.value_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _found(field.type)
