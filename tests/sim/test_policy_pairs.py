"""Every policy, and every pair of policies that go together, under random faults with the invariants checked."""

from __future__ import annotations

from itertools import combinations

import pytest

from unbroken.protocol.combinations import NAMES, used, why_not
from unbroken_lab.sim.campaign import Options, Run
from unbroken_lab.sim.policy_flows import flow_with, topology_with
from unbroken_lab.sim.steps.schedules import schedules

PAIRS = [(name,) for name in NAMES] + [pair for pair in combinations(NAMES, 2) if why_not(*pair) is None]
OPTIONS = Options(length_s=4.0, mean_s=1.0)


@pytest.mark.parametrize("policies", PAIRS, ids=" and ".join)
def test_policies_that_go_together(policies: tuple[str, ...]) -> None:
    assert set(policies) <= used(topology_with(policies))
    faults = 0
    for seed in schedules(2):
        outcome = Run(seed, OPTIONS, given=flow_with(policies)).outcome()
        assert outcome.ok, (seed, outcome.failure)
        assert outcome.counts["delivered"], f"nothing was delivered with seed {seed}"
        faults += sum(number for name, number in outcome.counts.items() if name.startswith("fault "))
    assert faults, "no fault struck"
