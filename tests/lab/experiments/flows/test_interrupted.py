"""The source that `unbroken bench consistency` disconnects, and what its rows have to give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from unbroken.connectors.base import Cut
from unbroken_lab.experiments.flows.interrupted import (
    MOST_ROWS,
    WINDOW_MS,
    InterruptedSource,
    ResultMistakes,
    Stream,
    compare,
    expected,
)

BEGIN = 1_000_000_003
STREAM = Stream(BEGIN, rate=700)


@pytest.mark.parametrize("passed_ms", [0, 1, 2, 999, 1_000, 1_001, 12_345])
def test_rows_are_due_at_their_times(passed_ms: int) -> None:
    numbers = np.arange(20_000, dtype=np.int64)
    came = np.count_nonzero(STREAM.times_us(numbers) < (BEGIN + passed_ms) * 1000)
    assert STREAM.due(BEGIN + passed_ms) == came


def test_nothing_is_due_before_the_beginning() -> None:
    assert STREAM.due(BEGIN - 5) == 0


def test_a_source_begins_with_the_moment_of_its_first_poll() -> None:
    reader = InterruptedSource(STREAM).open()
    cut = reader.poll(None, BEGIN + 10_000)
    assert cut == Cut(7_000)
    assert reader.read(None, cut.position).table.num_rows == 0
    assert reader.poll(cut.position, BEGIN + 9_000) == cut
    assert reader.poll(0, BEGIN + 10**9) == Cut(MOST_ROWS)
    assert InterruptedSource(STREAM).problems() == [] and InterruptedSource(Stream(BEGIN, 0)).problems()


def test_a_disconnected_source_stays_where_it_is_and_loses_nothing(tmp_path: Path) -> None:
    switch = tmp_path / "disconnected"
    reader = InterruptedSource(STREAM, str(switch)).open()
    assert reader.poll(70, BEGIN + 200) == Cut(140)
    switch.touch()
    assert reader.poll(140, BEGIN + 5_000) == Cut(140, reachable=False)
    assert reader.poll(None, BEGIN + 5_000) == Cut(None, reachable=False)
    switch.unlink()
    cut = reader.poll(140, BEGIN + 10_000)
    assert cut == Cut(7_000)
    assert reader.read(140, cut.position).table["number"].to_pylist() == list(range(140, 7_000))


def test_rows_are_the_same_however_they_are_cut() -> None:
    reader = InterruptedSource(STREAM).open()
    pieces = [reader.read(start, stop).table for start, stop in ((10, 500), (500, 501), (501, 1_200))]
    assert pa.concat_tables(pieces).equals(reader.read(10, 1_200).table)


# --- what has to come of it -----------------------------------------------------------------------------------


STREAMS = tuple(Stream(BEGIN, 700, source) for source in range(3))


def aggregated(begin_ms: int, end_ms: int) -> pa.Table:
    """The results of a unit, computed row by row."""
    counts: dict[tuple[int, int], list[int]] = {}
    newest: dict[tuple[int, int], int] = {}
    for stream in STREAMS:
        for row in stream.rows(0, stream.due(end_ms)).to_pylist():
            at_ms = row["at"].timestamp() * 1000
            place = (int(at_ms // WINDOW_MS * WINDOW_MS), row["k"])
            entry = counts.setdefault(place, [0, 0, 0, 0])
            entry[stream.source] += 1
            entry[3] += row["v"]
            if at_ms >= begin_ms:
                newest[place] = max(newest.get(place, 0), int(at_ms))
    rows = [(*place, *counts[place], newest[place]) for place in sorted(newest)]
    names = ["w", "k", "n0", "n1", "n2", "total", "newest_ms"]
    return pa.table(
        {name: pa.array(column, pa.int64()) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    )


UNITS = [
    (WINDOW_MS * 200_001, WINDOW_MS * 200_001 + 500),
    (WINDOW_MS * 200_001 + 500, WINDOW_MS * 200_001 + 1_000),
    (WINDOW_MS * 200_001 + 4_700, WINDOW_MS * 200_001 + 5_400),
]


@pytest.mark.parametrize(("begin_ms", "end_ms"), UNITS)
def test_the_results_of_a_unit_follow_from_its_time(begin_ms: int, end_ms: int) -> None:
    table = aggregated(begin_ms, end_ms)
    wanted = expected(STREAMS, begin_ms, end_ms)
    assert table.num_rows == len(wanted) > 300
    assert compare(table, wanted) == ResultMistakes()


def test_what_is_missing_other_or_too_many_is_found() -> None:
    begin_ms, end_ms = UNITS[1]
    table, wanted = aggregated(begin_ms, end_ms), expected(STREAMS, begin_ms, end_ms)
    assert compare(table.slice(2), wanted) == ResultMistakes(lost=2)
    assert compare(pa.concat_tables([table, table.slice(0, 3)]), wanted) == ResultMistakes(duplicated=3)
    one_less = table.set_column(2, "n0", pc.subtract(table["n0"], pc.cast(pc.equal(table["k"], 7), pa.int64())))
    assert compare(one_less, wanted) == ResultMistakes(wrong=1)
    assert compare(table, {}) == ResultMistakes(duplicated=table.num_rows)
    assert ResultMistakes(1, 2, 3) + ResultMistakes(lost=1) == ResultMistakes(2, 2, 3)
