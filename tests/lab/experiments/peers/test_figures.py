"""Figures of runs that are made up: the numbers are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.parameters.events import KEYS, Load, make_rows
from unbroken_lab.experiments.peers.figures import back_to_normal_s, course, fault_gap_ms, figures_of
from unbroken_lab.experiments.peers.observation import Observation

RATE, SECONDS, STEP_MS = 1_000, 40, 100
BEGAN_MS = 5_000_000.0
KILLED_MS = BEGAN_MS + 20_000
WARM_MS = BEGAN_MS + 10_000


def run_of(arrives_ms: Callable[[float], float]) -> Observation:
    """A run in which the events of each tenth of a second come together, at a time that depends on that of the last."""
    seen = Observation(Load(RATE, RATE * SECONDS, BEGAN_MS))
    counts = np.zeros(KEYS, dtype=np.int64)
    pieces: dict[float, list[tuple[int, int]]] = {}
    for piece in range(SECONDS * 1000 // STEP_MS):
        keys = make_rows(piece * STEP_MS, (piece + 1) * STEP_MS)["k"].to_numpy()
        counts[keys] += 1
        at_ms = arrives_ms(BEGAN_MS + (piece + 1) * STEP_MS)
        pieces.setdefault(at_ms, []).extend((int(key), int(counts[key])) for key in keys)
    for at_ms, results in sorted(pieces.items()):
        keys, numbers = np.array(results).T
        seen.add(at_ms, keys, numbers, np.zeros(len(results)))
    return seen


def steady(due_ms: float) -> float:
    return due_ms + 50


def outage(due_ms: float) -> float:
    """Ten seconds without a result; then everything at once."""
    return max(due_ms + 50, KILLED_MS + 10_000) if due_ms + 50 > KILLED_MS else due_ms + 50


def test_a_loss_that_is_not_noticed() -> None:
    figures = figures_of(run_of(steady), WARM_MS, KILLED_MS, cpu_s=45.0, measured_s=30.0)
    # The last event of a piece is due one event before its end.
    assert figures.p50_ms == pytest.approx(100, abs=2)
    assert figures.p99_ms == pytest.approx(150, abs=2)
    assert figures.fault_max_ms == pytest.approx(150, abs=1)
    assert figures.fault_gap_ms == figures.gap_before_ms == pytest.approx(STEP_MS)
    assert figures.normal_s == 0.0
    assert (figures.lost, figures.duplicated, figures.repeated) == (0, 0, 0)
    assert figures.cores == 1.5


def test_an_outage() -> None:
    figures = figures_of(run_of(outage), WARM_MS, KILLED_MS)
    assert figures.fault_gap_ms == pytest.approx(10_050, abs=STEP_MS)
    assert figures.fault_max_ms == pytest.approx(10_100, abs=STEP_MS)
    assert figures.normal_s == pytest.approx(9.7, abs=0.2)
    assert figures.lost == 0


def test_a_system_that_does_not_come_back() -> None:
    seen = run_of(lambda due_ms: due_ms + (50 if due_ms < KILLED_MS else 60_000))
    figures = figures_of(seen, WARM_MS, KILLED_MS)
    assert figures.normal_s is None


def test_without_results_there_are_no_figures() -> None:
    with pytest.raises(UnbrokenError, match="no results"):
        figures_of(Observation(Load(RATE, 100, BEGAN_MS)), WARM_MS, KILLED_MS)


def test_only_gaps_at_the_kill_count() -> None:
    at = np.array([0.0, 4_000, 4_100, 4_600, 4_700, 30_000, 60_000])
    assert fault_gap_ms(at, 4_500) == 25_300
    assert fault_gap_ms(at[:4], 4_500) == 500
    assert fault_gap_ms(at, 50_000) == 30_000
    assert fault_gap_ms(at[:1], 0) == 0


def test_calm_has_to_last() -> None:
    due = np.arange(0.0, 20_000, 100)
    age = np.full(len(due), 10.0)
    age[(due >= 1_000) & (due < 2_000)] = 500
    age[due == 4_000] = 500
    assert back_to_normal_s(due, age, 0.0, 100.0) == 4.0
    assert back_to_normal_s(due, age, 5_000.0, 100.0) == 0.0
    assert back_to_normal_s(due, age, 18_500.0, 100.0) is None


def test_calm_before_the_kill_shows_is_none() -> None:
    """An executor that is lost may be missed seconds later."""
    due = np.arange(0.0, 20_000.0, 100.0)
    age = np.where((due >= 3_500) & (due < 9_000), 5_000.0, 50.0)
    assert back_to_normal_s(due, age, 0.0, 100.0, 5_000.0) == 8.9
    assert back_to_normal_s(due, np.full(len(due), 50.0), 0.0, 100.0, 5_000.0) == 0.0


def test_the_course_has_a_point_for_each_quarter_of_a_second() -> None:
    points = course(run_of(outage), KILLED_MS)
    assert len(points) == SECONDS * 4
    assert points[0]["at_s"] == -20.0
    assert sum(int(point["events"] or 0) for point in points) == RATE * SECONDS
    at_kill = next(point for point in points if point["at_s"] == 0.0)
    assert float(at_kill["latency_max_ms"] or 0) == pytest.approx(10_000, abs=100)
