"""Segments that go on without missing input, under random failures and with steps in any order.

When all failures heal, the stable results are complete and nothing tentative is left; stable results never change;
going over from one producer to another never takes anything twice. The cluster asserts all of this.
"""

from __future__ import annotations

from collections import Counter

import pytest

from unbroken_lab.sim.steps.failures import run_failures
from unbroken_lab.sim.steps.paths import Path, run_static

EXAMPLES = range(8)
"""Schedules in which all that matters is known to happen."""

EVENTS = (
    "failures",
    "failures while stabilizing",
    "forks",
    "failed forks",
    "killed with a fork",
    "redos",
    "undos",
    "taken by replicas",
    "taken by sinks",
)
"""What random failures have to bring about if they are to be about anything."""


def test_input_fails_and_comes_back_in_every_way() -> None:
    happened: Counter[str] = Counter()
    for seed in EXAMPLES:
        happened += run_failures(seed, episodes=7).counts
    assert {event for event in EVENTS if not happened[event]} == set(), f"too little happens: {happened}"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sinks_with_a_stable_path_get_stable_results_in_time(seed: int) -> None:
    """Some things fail and stay so for a while; seeds in which a stable path is left."""
    _, path = run_static(seed)
    assert path is Path.STABLE
