"""Failures by strategies: what is kept of each run, and the experiment itself with one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.experiments.trying import drawn, try_out
from unbroken_lab.experiments.experiment import Row, Size, number
from unbroken_lab.experiments.observation.losses import AWAY_S, Loss
from unbroken_lab.experiments.paper.losing import row_of, trial_of
from unbroken_lab.experiments.paper.recovery_table import RecoveryTable
from unbroken_lab.experiments.recovery.strategies import RESTART_S, STRATEGIES, Trial, measure_loss

FIGURES: dict[str, Any] = {
    "overhead": 1.0,
    "cpu_cores": 0.9,
    "pulse_ms": 750.0,
    "latency_ms": {"before": {"p50": 400.0, "p99": 500.0, "max": 510.0}},
    "detection_s": 0.05,
    "partial_s": {"from_kill": 0.34, "from_detection": 0.29},
    "full_s": {"from_kill": 0.34, "from_detection": 0.29},
    "gap_ms": {"before": 820.0, "after": 1_180.0},
    "lost": 0,
    "duplicated": 0,
    "missing_units": 0,
    "controlled": False,
}


def rows() -> list[Row]:
    return [
        {**case, **row_of({**FIGURES, "gap_ms": {"before": 800.0, "after": 1_000.0 * (place + 1)}})}
        for place, case in enumerate(RecoveryTable().cases(Size()))
    ]


def test_every_failure_is_tried_with_every_strategy() -> None:
    cases = RecoveryTable().cases(Size())
    assert len(cases) == len(Loss) * len(STRATEGIES) == len({tuple(case.values()) for case in cases})
    assert len(RecoveryTable().cases(Size(quick=True))) == 1


def test_a_row_has_times_in_seconds() -> None:
    row = row_of(FIGURES)
    assert (row["gap_s"], row["gap_before_s"], row["resumed_s"], row["p50_s"]) == (1.18, 0.82, 0.34, 0.4)
    assert row_of({**FIGURES, "latency_ms": {"before": {"p50": None, "p99": None}}})["p50_s"] is None


def test_what_was_found_is_told_for_each_failure(tmp_path: Path) -> None:
    found = drawn(RecoveryTable(), rows(), tmp_path)
    assert found["rows in 20 runs"].here == "0 lost, 0 duplicated"
    gaps = found["longest time without results after kill -9"]
    assert gaps.here.startswith("1.0 s with active, 2.0 s with")
    assert len(found) == 1 + len(Loss)
    drawn(RecoveryTable(), rows()[:1], tmp_path)


def test_rows_come_for_as_long_as_a_node_is_away() -> None:
    usual = Trial("active").seconds
    assert Trial("active", loss=Loss.FREEZE).seconds == Trial("active", loss=Loss.CUT).seconds == usual + AWAY_S
    assert Trial("none").seconds == Trial("none", loss=Loss.RESTART).seconds == usual - 20 + RESTART_S
    assert Trial("active", loss=Loss.RESTART).seconds == usual
    assert Trial("none", loss=Loss.FREEZE).seconds == usual + AWAY_S
    assert trial_of("active", 1, Loss.KILL, Size(quick=True)).seconds < usual / 2


@pytest.mark.parametrize(("interval", "counted_s"), [(1, 15.0), (2, 15.0), (8, 18.0), (16, 24.0), (40, 30.0)])
def test_bytes_are_counted_in_whole_intervals(interval: int, counted_s: float) -> None:
    trial = Trial("passive", interval)
    assert trial.counted_s == pytest.approx(counted_s)
    assert trial.seconds == Trial("passive").seconds + int(counted_s - 15.0)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_loses_its_links() -> None:
    figures = measure_loss(trial_of("active", 1, Loss.CUT, Size(quick=True)), lambda sentence: None)
    assert figures["lost"] == figures["duplicated"] == figures["missing_units"] == 0
    assert any(figures["killed"] in sentence for sentence in figures["story"]), "others miss it"


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_is_lost(tmp_path: Path) -> None:
    (row,) = try_out("recovery-table", tmp_path)
    assert number(row, "lost") == number(row, "duplicated") == number(row, "missing_units") == 0
    assert (number(row, "gap_s") or 0) > 0
