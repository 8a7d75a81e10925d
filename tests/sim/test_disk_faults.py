"""Disks that tear, fail, fill up and slow down under the log of the ingress, and units that are damaged in outboxes."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.ingress.log_writer import LogWriter
from unbroken_lab.sim import faults
from unbroken_lab.sim.campaign import Options, run_seed, summary
from unbroken_lab.sim.faults import WRITE_FAULTS, Kind

OPTIONS = Options(length_s=4.0, mean_s=1.0, most_nodes=5, check_every=50)
SEEDS = 10
MOST_SEEDS = 40


@pytest.mark.parametrize(
    ("kind", "consequence"),
    [
        (Kind.TORN_WRITE, "torn writes"),
        (Kind.FAILED_WRITE, "failed nodes"),
        (Kind.FULL_DISK, "failed nodes"),
        (Kind.SLOW_DISK, "bases"),
        (Kind.DAMAGED_UNIT, "repaired"),
    ],
)
def test_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, kind: Kind, consequence: str) -> None:
    """The flow delivers what it would without faults, and what the fault leads to has happened."""
    assert kind in WRITE_FAULTS
    monkeypatch.setattr(faults, "WRITE_FAULTED", 1.0)
    monkeypatch.setattr(faults, "WRITE_FAULTS", (kind,))
    if kind is Kind.DAMAGED_UNIT:
        # Flows that nothing else happens to are whole when a unit is damaged.
        monkeypatch.setattr(faults, "WEIGHTS", {Kind.PUSH: 1})
    outcomes = [run_seed(seed, OPTIONS, story=True) for seed in range(SEEDS)]
    for outcome in outcomes:
        assert outcome.ok, "\n".join([f"{OPTIONS.command(outcome.seed)}: {outcome.failure}", *outcome.story])
    found = summary(outcomes)
    assert found[f"fault {kind}"] >= 5 and found[consequence] >= 3


@pytest.fixture
def blackouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The power fails everywhere, within writes and between them."""
    monkeypatch.setattr(faults, "WRITE_FAULTED", 1.0)
    monkeypatch.setattr(faults, "WRITE_FAULTS", (Kind.TORN_WRITE, Kind.SLOW_DISK))
    monkeypatch.setattr(faults, "WEIGHTS", {Kind.BLACKOUT: 3, Kind.KILL: 1, Kind.PUSH: 2, Kind.POWER: 2})


def first_failure() -> str | None:
    failures = (run_seed(seed, OPTIONS).failure for seed in range(MOST_SEEDS))
    return next((failure for failure in failures if failure is not None), None)


@pytest.mark.usefixtures("blackouts")
def test_power_failures_lose_nothing_that_was_acknowledged() -> None:
    failures = [outcome.failure for outcome in (run_seed(seed, OPTIONS) for seed in islice(range(100, 200), 12))]
    assert failures == [None] * 12


@pytest.mark.usefixtures("blackouts")
def test_a_log_that_is_not_forced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IngressLogFile, "force", lambda self: None)
    assert first_failure() is not None


@pytest.mark.usefixtures("blackouts")
def test_a_writer_that_reports_before_it_forces_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    make = LogWriter.__init__

    def hasty(self: LogWriter, forced: bool, *rest: Any, **named: Any) -> None:
        make(self, False, *rest, **named)

    monkeypatch.setattr(LogWriter, "__init__", hasty)
    assert first_failure() is not None
