"""Real processes are hit by the faults of a few short schedules, and every result is checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unbroken.testing.faults import Kill, Restart
from unbroken_lab.chaos.campaign import run_campaign
from unbroken_lab.chaos.schedule import make_schedule

LENGTH_S = 5.0
SHORT = {1956: {Kill, Restart}}
"""Seeds, and the kinds of fault in the first seconds of their schedules."""


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SHORT)
def test_a_short_schedule_loses_nothing(seed: int, tmp_path: Path) -> None:
    assert {type(fault) for fault in make_schedule(seed, LENGTH_S).faults} == SHORT[seed]
    lines: list[str] = []
    told: list[str] = []
    passed = run_campaign([seed], tmp_path / "chaos", LENGTH_S, lines.append, told.append)
    assert passed, "\n".join(told)
    run, summary = (json.loads(line) for line in lines)
    assert run["seed"] == seed
    assert all(fault["done"] for fault in run["struck"])
    assert run["units"] >= 3
    assert summary["summary"]["passed"] == 1
    assert not (tmp_path / "chaos" / f"seed-{seed}").exists()
