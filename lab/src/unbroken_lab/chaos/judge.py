"""Whether a run delivered what it had to: every unit once in each sink, every row as in the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq

from unbroken.client import Result
from unbroken.connectors.files.sinks import StableFile, unit_in
from unbroken_lab.chaos.reference import COLUMNS, Row, cuts_of, expected_units, rows_of

MOST_COMPLAINTS = 10
"""Complaints that are told: after the first difference most later units differ too."""


@dataclass(frozen=True)
class Judgement:
    """What was delivered, and everything that is wrong with it."""

    units: int
    rows: int
    source_rows: int
    complaints: tuple[str, ...]


@dataclass(frozen=True)
class FileUnit:
    """A unit as it was found in the files."""

    number: int
    cut_ms: int
    rows: tuple[Row, ...]


def judge(seed: int, received: Sequence[Result], files: Path, *, complete: bool) -> Judgement:
    """Hold both sinks against the reference; ``complete`` says that the flow was seen to end."""
    complaints = _order_complaints(received, complete)
    live = {result.header.number: rows_of(result.table) for result in received}
    times = {result.header.number: result.header.cut_ms for result in received}
    last = max(live, default=0)
    numbers = range(1, last + 1)
    cuts = cuts_of(live.get(number, []) for number in numbers)
    expected = dict(zip(numbers, expected_units(seed, cuts, [times.get(number, 0) for number in numbers]), strict=True))
    if any(later < earlier for earlier, later in pairwise(cuts)):
        complaints.append("the results go back to rows of earlier pulses")
    complaints += _row_complaints("client", {n: live[n] for n in sorted(live)}, expected)
    complaints += _file_complaints(read_files(files), live, times, expected, complete)
    told = complaints[:MOST_COMPLAINTS]
    if len(complaints) > len(told):
        told.append(f"and {len(complaints) - len(told)} more")
    return Judgement(len(live), sum(map(len, live.values())), cuts[-1] if cuts else 0, tuple(told))


def read_files(directory: Path) -> list[FileUnit]:
    """The units in the directory of the Parquet sink."""
    units: list[FileUnit] = []
    for path in sorted(directory.glob("*.parquet")):
        with path.open("rb") as file:
            table = pq.read_table(file)
        unit = unit_in(table.schema)
        assert isinstance(unit, StableFile), f"{path} is the file of a tentative unit"
        units.append(FileUnit(unit.number, unit.cut_ms, tuple(rows_of(table))))
    return units


def _order_complaints(received: Sequence[Result], complete: bool) -> list[str]:
    """The client must get units 1, 2, 3, ... and the final one last."""
    complaints: list[str] = []
    wanted = 1
    for result in received:
        number = result.header.number
        if number != wanted:
            complaints.append(f"the client got unit {number} where unit {wanted} had to come")
        wanted = number + 1
    finals = [result.header.number for result in received if result.header.final]
    if complete and finals != [wanted - 1]:
        complaints.append(f"the client got {wanted - 1} units, and final ones are {finals}")
    return complaints


def _row_complaints(where: str, found: Mapping[int, Sequence[Row]], expected: Mapping[int, Sequence[Row]]) -> list[str]:
    out: list[str] = []
    for number, rows in found.items():
        wanted = list(expected.get(number, ()))
        if list(rows) == wanted:
            continue
        missing = sorted(set(wanted) - set(rows))
        extra = sorted(set(rows) - set(wanted))
        twice = len(rows) - len(set(rows))
        out.append(
            f"unit {number} ({where}): {len(missing)} rows missing, {len(extra)} not expected, {twice} twice; "
            f"columns {COLUMNS}, first missing {missing[:1]}, first not expected {extra[:1]}"
        )
    return out


def _file_complaints(
    files: Sequence[FileUnit],
    live: Mapping[int, Sequence[Row]],
    times: Mapping[int, int],
    expected: Mapping[int, Sequence[Row]],
    complete: bool,
) -> list[str]:
    found: dict[int, Sequence[Row]] = {}
    out: list[str] = []
    for unit in files:
        if unit.number in found:
            out.append(f"unit {unit.number} is in two files")
        if unit.number in times and unit.cut_ms != times[unit.number]:
            out.append(f"unit {unit.number} was cut at {unit.cut_ms} by the file, {times[unit.number]} by the client")
        if unit.number in expected or complete:
            found[unit.number] = unit.rows
    if complete:
        out += [f"unit {number} is in no file" for number, rows in sorted(live.items()) if rows and number not in found]
    return out + _row_complaints("files", found, expected)
