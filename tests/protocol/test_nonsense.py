"""Messages that make no sense: refused before they touch anything, whoever sends them, and the results stay right."""

from __future__ import annotations

import pytest

from protocol.consistency_schedules import pick_available
from protocol.nonsense import run_nonsense
from protocol.schedules import pick_cluster, pick_led, pick_strategies, schedules
from protocol.whole_model import pick_copies

FLOWS = [pick_cluster, pick_led, pick_strategies, pick_copies, pick_available]


@pytest.mark.parametrize("pick", FLOWS, ids=lambda pick: pick.__name__)
@pytest.mark.parametrize("seed", schedules(12))
def test_nonsense_changes_nothing(seed: int, pick: object) -> None:
    run_nonsense(seed, pick)  # type: ignore[arg-type]
