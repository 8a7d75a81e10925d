"""Figure 11 of Hwang et al. on the real system: its points, what they say, and the experiment itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.experiments.trying import drawn, try_out
from unbroken_lab.experiments.experiment import Row, Size, number
from unbroken_lab.experiments.paper.hwang import Tradeoff

MEASURED = {"active": (1.0, 0.4), "active-standby": (1.0, 0.5), "passive": (0.12, 3.0), "upstream": (0.002, 4.0)}


def rows() -> list[Row]:
    out: list[Row] = []
    for case in Tradeoff().cases(Size()):
        overhead, took_s = MEASURED[str(case["strategy"])]
        interval = number(case, "interval") or 1.0
        figures = {"overhead": overhead / interval**0.5, "recovered_s": took_s + interval / 10}
        out.append({**case, **figures, "lost": 0, "duplicated": 0})
    return out


def test_each_strategy_of_the_paper_has_a_point_for_each_interval() -> None:
    cases = Tradeoff().cases(Size())
    assert len(cases) == 10
    assert [case["interval"] for case in cases if case["strategy"] == "upstream"] == [1, 4, 16]


def test_strategies_are_compared_as_in_the_paper(tmp_path: Path) -> None:
    found = drawn(Tradeoff(), rows(), tmp_path)
    assert next(iter(found.values())).here.startswith("overhead 100.0%, full recovery 0.50 s")
    assert found["rows lost or duplicated in 10 runs"].here == "0"
    saved = found["bytes of active standby that upstream backup saves"]
    assert saved.agrees and saved.here == "99.8%"
    longer = found["full recovery of upstream backup by that of active standby, from the kill on"]
    assert longer.agrees is False and longer.here == "3.9"
    assert found["full recovery of upstream backup by that of passive standby"].paper == "12 ms / 11 ms"
    sent = found["bytes of passive standby by those of active standby"]
    assert sent.agrees is False and sent.here == "0.12"
    interval = found["overhead of upstream backup with 16 times the interval"]
    assert interval.agrees is False and interval.here == "0.2 of it"


def test_a_run_that_did_not_recover_is_no_point(tmp_path: Path) -> None:
    some: list[Row] = [{**rows()[0], "recovered_s": None}, *rows()[-2:]]
    found = drawn(Tradeoff(), some, tmp_path)
    assert not any(name.startswith("active,") for name in found)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_with_upstream_backup_is_killed(tmp_path: Path) -> None:
    (row,) = try_out("hwang-fig11", tmp_path)
    assert number(row, "lost") == number(row, "duplicated") == 0
    assert (number(row, "overhead") or 1.0) < 0.5
