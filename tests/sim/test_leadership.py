"""Segments ordered by a leader under random schedules and faults: replicas agree, and nothing is lost or changed."""

from __future__ import annotations

import pytest

from unbroken_lab.sim.steps.flows import pick_led
from unbroken_lab.sim.steps.schedules import run_schedule, schedules


@pytest.mark.parametrize("seed", schedules(15))
def test_random_schedule_without_faults(seed: int) -> None:
    run_schedule(seed, steps=200, fault_chance=0.0, pick=pick_led)


@pytest.mark.parametrize("seed", schedules(30))
def test_random_schedule(seed: int) -> None:
    run_schedule(seed, steps=500, fault_chance=0.04, pick=pick_led)
