"""Every way to keep a segment available under random schedules and faults: the results are those of a quiet run."""

from __future__ import annotations

from functools import partial

import pytest

from unbroken.protocol.values.strategy import Ha
from unbroken_lab.sim.steps.flows import pick_long_windows, pick_row, pick_strategies
from unbroken_lab.sim.steps.schedules import run_losses, run_schedule, schedules


@pytest.mark.parametrize("seed", schedules(4))
@pytest.mark.parametrize("ha", list(Ha), ids=[ha.value for ha in Ha])
def test_random_schedule_with_one_strategy(ha: Ha, seed: int) -> None:
    run_schedule(seed, steps=300, fault_chance=0.05, pick=partial(pick_strategies, only=ha))


@pytest.mark.parametrize("seed", schedules(5))
def test_random_schedule_with_mixed_strategies(seed: int) -> None:
    run_schedule(seed, steps=400, fault_chance=0.05, pick=pick_strategies)


@pytest.mark.parametrize("seed", schedules(5))
def test_state_that_reaches_far_back_is_built_again(seed: int) -> None:
    run_schedule(seed, steps=2_000, fault_chance=0.004, pick=pick_long_windows)


def test_a_member_whose_first_proposal_is_lost_on_the_way_proposes_again() -> None:
    run_schedule(0, steps=300, fault_chance=0.04, pick=pick_long_windows)


@pytest.mark.parametrize("seed", schedules(5))
@pytest.mark.parametrize("ha", [Ha.ACTIVE_STANDBY, Ha.PASSIVE, Ha.UPSTREAM], ids=lambda ha: ha.value)
def test_the_nodes_of_a_segment_are_lost_again_and_again(ha: Ha, seed: int) -> None:
    run_losses(seed, ha)


@pytest.mark.parametrize("seed", schedules(5))
def test_segments_in_a_row_are_lost_together(seed: int) -> None:
    run_losses(seed, Ha.UPSTREAM, pick=pick_row)
