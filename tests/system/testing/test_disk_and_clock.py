"""Full disks, slow disks and clocks that are set, on real nodes: what the handbook says of them is what happens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kit.places import FLOWS
from unbroken.testing import (
    ClockStep,
    DiskFull,
    SlowDisk,
    WarmCluster,
    assert_same_as_fault_free,
    run_with_faults,
)
from unbroken.testing.injection.disks import mountable
from unbroken.testing.result import Run

CLICKS = FLOWS / "clicks_flow.py"
ROWS = 280
UNITS = 20

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

DEADLINE_S = 600.0
"""It is what happens that is tested, not how long it takes on a machine that does other things meanwhile."""

HOUR_MS = 3_600_000


def clicks(count: int) -> list[dict[str, Any]]:
    return [{"user": "abcdefg"[n % 7], "n": n} for n in range(count)]


def lost_nothing(run: Run) -> None:
    assert not run.lost and not run.duplicates and not run.divergences
    of = {user: [row["n"] for row in clicks(ROWS) if row["user"] == user] for user in "abcdefg"}
    assert run.latest("totals", "user") == [{"user": u, "clicks": len(ns), "total": sum(ns)} for u, ns in of.items()]
    assert_same_as_fault_free(run)


def cut_times(run: Run) -> list[int]:
    """When each unit was cut; the shards of a segment agree."""
    times = {(unit.number, unit.cut_ms) for unit in run.units("totals")}
    assert len(times) == len({number for number, _ in times})
    return [cut_ms for _, cut_ms in sorted(times)]


@pytest.mark.skipif(bool(mountable()), reason=mountable() or "small disks can be made")
def test_a_full_disk_of_the_leader_loses_nothing(unbroken_cluster: WarmCluster) -> None:
    """Recovery: a node whose part of the ingress cannot write ends itself, and others go on."""
    faults = [DiskFull("leader", for_s=15, at_unit=6)]
    run = run_with_faults(CLICKS, clicks(ROWS), faults, cluster=unbroken_cluster, deadline_s=DEADLINE_S)
    (struck,) = run.struck
    assert struck.done and struck.nodes == ("node-1",)
    lost_nothing(run)


def test_a_slow_disk_of_the_leader_loses_nothing(unbroken_cluster: WarmCluster) -> None:
    """An entry counts when it is forced to disk: a slow one makes pulses late, and nothing else."""
    faults = [SlowDisk("leader", for_s=8, delay_ms=400, at_unit=6)]
    settings = {"durability": "sync"}
    run = run_with_faults(
        CLICKS, clicks(ROWS), faults, cluster=unbroken_cluster, settings=settings, deadline_s=DEADLINE_S
    )
    assert run.struck[0].done
    cuts = cut_times(run)
    late = [b - a for a, b in pairwise(cuts)]
    assert max(late) >= 400, "the disk was slow indeed"
    lost_nothing(run)


@pytest.mark.parametrize("by_s", [3_600, -3_600])
def test_a_clock_step_of_the_leader_leaves_cut_times_monotone(unbroken_cluster: WarmCluster, by_s: int) -> None:
    """Operations: cut times pass like monotonic time, so a clock that is set changes nothing at once."""
    faults = [ClockStep("leader", by_s=by_s, at_unit=6)]
    run = run_with_faults(CLICKS, clicks(ROWS), faults, cluster=unbroken_cluster, deadline_s=DEADLINE_S)
    assert run.struck[0].done
    cuts = cut_times(run)
    assert len(cuts) == UNITS
    assert all(earlier < later for earlier, later in pairwise(cuts)), cuts
    assert cuts[-1] - cuts[0] < HOUR_MS / 10, "cut times follow a clock by at most a tenth"
    lost_nothing(run)
