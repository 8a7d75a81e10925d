"""Two collections of rows, compared whatever order they are in, and the difference in words.

Rows are compared by value. Floating-point numbers may differ in the last bits, as sums do whose rows came in another
order; so they are compared with the tolerance that replicas are compared with.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from unbroken.protocol.values.units import FLOAT_TOLERANCE

MOST_SHOWN = 5
"""Rows of each kind that are told: they are to be read by a person, and one mistake often shows in many rows."""

Row = dict[str, Any]
UnitNumber = int
"""The number of a unit, or 0 where units do not matter."""


@dataclass(frozen=True)
class Misfit:
    """A row that is in one of the two collections only, and the unit that it is in there."""

    unit: UnitNumber
    row: Row


@dataclass(frozen=True)
class Difference:
    """How found rows differ from expected ones.

    ``missing`` were expected, ``extra`` were not; ``doubled`` were expected, but fewer times. A row that came in
    another unit than the expected one is ``moved``: the unit it was expected in, and where it was found.
    """

    missing: tuple[Misfit, ...] = ()
    extra: tuple[Misfit, ...] = ()
    doubled: tuple[Misfit, ...] = ()
    moved: tuple[tuple[Misfit, UnitNumber], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.doubled or self.moved)

    def lines(self) -> list[str]:
        """What to tell a person: how many of each kind, and the first of them."""
        counts = {
            "missing": len(self.missing),
            "not expected": len(self.extra),
            "doubled": len(self.doubled),
            "in another unit": len(self.moved),
        }
        out = [", ".join(f"{count} {_rows(count)} {kind}" for kind, count in counts.items() if count)]
        out += _told("missing", self.missing)
        out += _told("not expected", self.extra)
        out += _told("doubled", self.doubled)
        for misfit, found in self.moved[:MOST_SHOWN]:
            out.append(f"expected in unit {misfit.unit}, came in unit {found}: {misfit.row}")
        return out


def _rows(count: int) -> str:
    return "row" if count == 1 else "rows"


def _told(what: str, misfits: Sequence[Misfit]) -> list[str]:
    out = [f"{f'unit {each.unit}: ' if each.unit else ''}{what}: {each.row}" for each in misfits[:MOST_SHOWN]]
    return out + ([f"and {len(misfits) - MOST_SHOWN} more {what}"] if len(misfits) > MOST_SHOWN else [])


def compare(expected: Mapping[UnitNumber, Sequence[Row]], found: Mapping[UnitNumber, Sequence[Row]]) -> Difference:
    """Hold found rows against expected ones, unit by unit."""
    missing: list[Misfit] = []
    extra: list[Misfit] = []
    doubled: list[Misfit] = []
    for unit in sorted({*expected, *found}):
        pile = _Pile(expected.get(unit, ()))
        for row in found.get(unit, ()):
            if not pile.take(row):
                (doubled if pile.knew(row) else extra).append(Misfit(unit, row))
        missing += [Misfit(unit, row) for row in pile.left()]
    moved: list[tuple[Misfit, UnitNumber]] = []
    strays = _Pile([each.row for each in extra], [each.unit for each in extra])
    stayed: list[Misfit] = []
    for each in missing:
        unit_found = strays.take(each.row)
        if unit_found:
            moved.append((each, unit_found))
        else:
            stayed.append(each)
    return Difference(tuple(stayed), tuple(strays.misfits()), tuple(doubled), tuple(moved))


@dataclass
class _Heap:
    """Rows that are the same in everything but their floating-point numbers."""

    waiting: list[tuple[tuple[float, ...], Row, int]] = field(default_factory=list)
    taken: list[tuple[float, ...]] = field(default_factory=list)


class _Pile:
    """Rows to be matched, each once; each may have a tag, which is given back when it is taken."""

    def __init__(self, rows: Iterable[Row], tags: Sequence[int] | None = None) -> None:
        self._heaps: dict[Any, _Heap] = defaultdict(_Heap)
        self._rows = list(rows)
        for place, row in enumerate(self._rows):
            exact, floats = parts(row)
            self._heaps[exact].waiting.append((floats, row, 1 if tags is None else tags[place]))

    def take(self, row: Row) -> int:
        """Take one that equals ``row`` away; its tag, 0 if there is none left."""
        exact, floats = parts(row)
        heap = self._heaps.get(exact)
        if heap is None:
            return 0
        for place, (there, _, tag) in enumerate(heap.waiting):
            if _close(there, floats):
                heap.taken.append(there)
                del heap.waiting[place]
                return tag
        return 0

    def knew(self, row: Row) -> bool:
        """Whether one that equals ``row`` has been taken away."""
        exact, floats = parts(row)
        heap = self._heaps.get(exact)
        return heap is not None and any(_close(there, floats) for there in heap.taken)

    def left(self) -> list[Row]:
        return [row for heap in self._heaps.values() for _, row, _ in heap.waiting]

    def misfits(self) -> list[Misfit]:
        found = [Misfit(tag, row) for heap in self._heaps.values() for _, row, tag in heap.waiting]
        return sorted(found, key=lambda each: each.unit)


def parts(value: Any) -> tuple[Any, tuple[float, ...]]:
    """A value in two pieces: what has to be equal, in a form that can be looked up, and its floating-point numbers."""
    floats: list[float] = []

    def exact(part: Any) -> Any:
        if isinstance(part, float):
            floats.append(part)
            return "float"
        if isinstance(part, Mapping):
            return ("row", tuple((name, exact(item)) for name, item in part.items()))
        if isinstance(part, list | tuple):
            return ("list", tuple(exact(item) for item in part))
        # 1, True and 1.0 are equal to Python, and different values to a user.
        return (type(part).__name__, part)

    return exact(value), tuple(floats)


def _close(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(
        a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=FLOAT_TOLERANCE)
        for a, b in zip(one, other, strict=True)
    )


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of a table, sorted, so that they do not depend on the order in which Spark had them."""
    return sorted(table.to_pylist(), key=lambda row: [_order(value) for value in row.values()])


def _order(value: Any) -> tuple[int, float, str]:
    """Nulls first, then numbers by size, then everything else by how it is written, which suits text and times."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, int | float):
        return (1, -math.inf if value != value else value, "")
    return (2, 0.0, str(value))


def latest(rows: Iterable[Row], keys: Sequence[str]) -> list[Row]:
    """The last row of every key, in the order in which keys came first."""
    out: dict[Any, Row] = {}
    for row in rows:
        out[parts([row[key] for key in keys])] = row
    return list(out.values())
