"""Messages that make no sense: refused before they touch anything, whoever sends them, and the results stay right."""

from __future__ import annotations

import pytest

from unbroken_lab.sim.steps.copies import pick_copies
from unbroken_lab.sim.steps.failures import pick_available
from unbroken_lab.sim.steps.flows import Pick, pick_active, pick_led, pick_strategies
from unbroken_lab.sim.steps.nonsense import run_nonsense
from unbroken_lab.sim.steps.schedules import schedules

FLOWS = [pick_active, pick_led, pick_strategies, pick_copies, pick_available]


@pytest.mark.parametrize("pick", FLOWS, ids=lambda pick: pick.__name__)
@pytest.mark.parametrize("seed", schedules(8))
def test_nonsense_changes_nothing(seed: int, pick: Pick) -> None:
    run_nonsense(seed, pick)
