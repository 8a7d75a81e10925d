"""How the input of a test is played: where units end, where the source stands still, and which fault each stop is for.

Everything here is decided before anything runs and says the same to every node: given a place in a source and the
time, `Script.after` says which place comes next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken.testing.faults import Fault
from unbroken.testing.input.inputs import Input
from unbroken.wording import choices

UNITS = 20
"""Units that an input is cut into if the test does not say how many rows make one: enough for things to happen before,
between and after faults, and a few seconds long."""


@dataclass(frozen=True)
class Stop:
    """Behind so many rows the source waits: for the hold ``hold``, for ``ms`` milliseconds, or for ``units`` units."""

    row: int
    hold: str = ""
    ms: float = 0
    units: int = 0


@dataclass(frozen=True)
class SourcePlace:
    """How far a source has come: the rows that were cut, in how many units, and the stops behind those rows that are
    over. Of a pause that lasts: until when, and for how many units more."""

    row: int = 0
    unit: int = 0
    stops: int = 0
    until_ms: float | None = None
    left: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> SourcePlace:
        return cls(**(value or {}))


@dataclass(frozen=True)
class SourceHeld:
    """The source may not be cut further before the hold of this name is over."""

    hold: str


@dataclass(frozen=True)
class Script:
    """How one source is played.

    ``cuts`` are the numbers of rows behind which a unit ends, in order; the last one is all of them. ``unit_holds``
    says before which further cut a hold has to be over, by the number of cuts that were made.
    """

    rows: int
    cuts: tuple[int, ...]
    stops: tuple[Stop, ...] = ()
    unit_holds: Mapping[int, str] = field(default_factory=dict)

    def after(self, place: SourcePlace, now_ms: float, over: Callable[[str], bool]) -> SourcePlace | SourceHeld:
        """The place up to which the source is cut next; ``over`` says whether a hold is."""
        hold = self.unit_holds.get(place.unit)
        if hold is not None and not over(hold):
            return SourceHeld(hold)
        here = [stop for stop in self.stops if stop.row == place.row]
        while place.stops < len(here):
            stop = here[place.stops]
            if stop.hold and not over(stop.hold):
                return SourceHeld(stop.hold)
            paused = _paused(place, stop, now_ms)
            if paused is not None:
                return replace(paused, unit=place.unit + 1)
            place = replace(place, stops=place.stops + 1, until_ms=None, left=None)
        further = next((cut for cut in self.cuts if cut > place.row), None)
        if further is None:
            return replace(place, unit=place.unit + 1)
        return SourcePlace(further, place.unit + 1)

    def ended(self, place: SourcePlace) -> bool:
        """Whether nothing will ever follow."""
        here = [stop for stop in self.stops if stop.row == place.row]
        return place.row == self.rows and place.stops >= len(here)

    @property
    def units(self) -> int | None:
        """How many units it takes to the end; None if that depends on time."""
        if any(stop.ms for stop in self.stops):
            return None
        place = SourcePlace()
        while True:
            following = self.after(place, 0, lambda _: True)
            assert isinstance(following, SourcePlace)
            place = following
            if self.ended(place):
                return place.unit

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "cuts": list(self.cuts),
            "stops": [asdict(stop) for stop in self.stops],
            "unit_holds": {str(unit): hold for unit, hold in self.unit_holds.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Script:
        stops = tuple(Stop(**stop) for stop in value["stops"])
        holds = {int(unit): str(hold) for unit, hold in value["unit_holds"].items()}
        return cls(int(value["rows"]), tuple(value["cuts"]), stops, holds)


def _paused(place: SourcePlace, stop: Stop, now_ms: float) -> SourcePlace | None:
    """The same place with the pause going on; None if there is none, or it is over."""
    if stop.ms:
        until = now_ms + stop.ms if place.until_ms is None else place.until_ms
        return replace(place, until_ms=until) if now_ms < until else None
    left = stop.units if place.left is None else place.left
    return replace(place, left=left - 1) if left > 0 else None


@dataclass(frozen=True)
class InputPlan:
    """The scripts of all sources, what happens at which hold, and what happens by the clock.

    ``marks`` are the names that the test gave to holds. Holds come at the same time at most once each.
    """

    scripts: Mapping[str, Script]
    strikes: Mapping[str, tuple[Fault, ...]]
    timed: tuple[Fault, ...] = ()
    marks: Mapping[str, str] = field(default_factory=dict)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Everything that will be done."""
        return (*(fault for faults in self.strikes.values() for fault in faults), *self.timed)


def make_plan(inputs: Mapping[str, Input], faults: Sequence[Fault], rows_per_unit: int | None = None) -> InputPlan:
    """Put faults and marks where they belong; raises UnbrokenError for those that have no place in the input."""
    if rows_per_unit is not None and (type(rows_per_unit) is not int or rows_per_unit < 1):
        raise UnbrokenError(f"rows_per_unit is {rows_per_unit!r}; give a whole number, 1 or more")
    most = max((given.table.num_rows for given in inputs.values()), default=0)
    size = rows_per_unit or max(1, math.ceil(most / UNITS))
    composer = _Composer(inputs)
    composer.place(faults)
    scripts = composer.scripts(size)
    _refuse_late_units(faults, scripts)
    timed = tuple(fault for fault in faults if fault.moment == "after_s")
    strikes = {hold: tuple(struck) for hold, struck in composer.strikes.items()}
    return InputPlan(scripts, strikes, timed, composer.marks)


class _Composer:
    """Collects the stops of every source and what is to happen there."""

    def __init__(self, inputs: Mapping[str, Input]) -> None:
        self._inputs = inputs
        self._stops: dict[str, list[Stop]] = {name: [] for name in inputs}
        self._unit_holds: dict[int, str] = {}
        self.strikes: dict[str, list[Fault]] = {}
        self.marks: dict[str, str] = {}
        for source, given in inputs.items():
            for row, mark in given.marks:
                hold = "" if mark.ms or mark.units else f"{source}-mark-{len(self._stops[source])}"
                self._stops[source].append(Stop(row, hold if mark.name or mark.fault else "", mark.ms, mark.units))
                if mark.name is not None:
                    self._name(mark.name, hold)
                if mark.fault is not None:
                    self.strikes[hold] = [mark.fault]

    def place(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if fault.at_mark is not None:
                self._at_mark(fault, fault.at_mark)
            elif fault.at_row is not None:
                self._at_row(fault, fault.at_row)
            elif fault.at_unit is not None:
                hold = self._unit_holds.setdefault(fault.at_unit, f"unit-{fault.at_unit}")
                self.strikes.setdefault(hold, []).append(fault)

    def scripts(self, size: int) -> dict[str, Script]:
        """The first source keeps the holds at units: sources are cut together, so one of them is enough."""
        out: dict[str, Script] = {}
        for source, given in self._inputs.items():
            rows = given.table.num_rows
            # Stable: stops behind the same row stay in the order in which they were written.
            stops = tuple(sorted(self._stops[source], key=lambda stop: stop.row))
            ends = sorted({0, rows, *(stop.row for stop in stops)})
            cuts = {*ends[1:], *(cut for a, b in pairwise(ends) for cut in range(a + size, b, size))}
            out[source] = Script(rows, tuple(sorted(cuts)), stops, {} if out else self._unit_holds)
        return out

    def _name(self, name: str, hold: str) -> None:
        if name in self.marks:
            raise UnbrokenError(f"there are two marks called {name!r} in the input; give each its own name")
        self.marks[name] = hold
        self.strikes.setdefault(hold, [])

    def _at_mark(self, fault: Fault, name: str) -> None:
        if name not in self.marks:
            raise UnbrokenError(f"{fault}: there is no mark {name!r} in the input; {choices(self.marks, name)}")
        self.strikes[self.marks[name]].append(fault)

    def _at_row(self, fault: Fault, row: int) -> None:
        source = fault.source or (next(iter(self._inputs)) if len(self._inputs) == 1 else "")
        if source not in self._inputs:
            which = f"there is no source {source!r}" if source else "say of which source, with source="
            raise UnbrokenError(f"{fault}: {which}; {choices(self._inputs, source)}")
        rows = self._inputs[source].table.num_rows
        if row > rows:
            raise UnbrokenError(f"{fault}: source {source} has only {rows} rows; give fewer")
        hold = f"{source}-row-{row}"
        if hold not in self.strikes:
            self._stops[source].append(Stop(row, hold))
        self.strikes.setdefault(hold, []).append(fault)


def _refuse_late_units(faults: Sequence[Fault], scripts: Mapping[str, Script]) -> None:
    """A fault behind the last unit would never happen, and the test would say nothing."""
    lengths = [script.units for script in scripts.values()]
    if any(length is None for length in lengths):
        return
    last = max((length for length in lengths if length is not None), default=0)
    for fault in faults:
        if fault.at_unit is not None and fault.at_unit >= last:
            what = f"{fault}: the input makes {last} units, so the last fault can come after unit {last - 1}"
            raise UnbrokenError(f"{what}; give more rows or a smaller rows_per_unit, or an earlier unit")
