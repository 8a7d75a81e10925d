"""What `unbroken bench recovery` makes of its samples, and the rows it runs on. Real kills are left to chaos."""

from __future__ import annotations

import pytest

from unbroken.bench.recovery import Sample, judge
from unbroken.bench.stateful import KEYS, PAYLOAD, make_rows


def test_latency_and_gaps_are_told_apart_by_the_kill_and_the_return() -> None:
    before = [Sample(cut_ms=1_000 * i, arrived_ms=1_000 * i + 200) for i in range(10)]
    during = [Sample(cut_ms=10_000 + 500 * i, arrived_ms=11_000 + 500 * i) for i in range(4)]
    after = [Sample(cut_ms=20_000, arrived_ms=20_300)]
    figures = judge([*before, *during, *after], killed_ms=9_500, restored_ms=13_000)
    assert figures["pulse_ms"] == 1_000
    assert [figures["latency_ms"][when]["max"] for when in ("before", "during", "after")] == [200, 1_000, 300]
    assert figures["gap_ms"] == {"before": 1_000, "during": 1_800}


def test_without_results_there_are_no_figures() -> None:
    figures = judge([], 1_000, 2_000)
    assert figures["latency_ms"] == {"before": {}, "during": {}, "after": {}} and figures["gap_ms"]["during"] == 0


@pytest.mark.parametrize("start", [0, 7, KEYS - 3])
def test_rows_depend_on_their_number_alone(start: int) -> None:
    whole = make_rows(start, start + 20, 0)
    assert whole.slice(5).combine_chunks().equals(make_rows(start + 5, start + 20, 1).combine_chunks())
    assert {len(value) for value in whole["payload"].to_pylist()} == {PAYLOAD}
