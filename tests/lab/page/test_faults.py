"""The vocabulary of faults on simulated machines."""

from __future__ import annotations

import pytest

from unbroken.errors import UnbrokenError
from unbroken.testing.faults import (
    EVERYTHING,
    ZOOKEEPER,
    ClockStep,
    DiskFull,
    Fault,
    Freeze,
    Kill,
    Partition,
    Restart,
    SlowDisk,
    SourceFails,
    Wipe,
)
from unbroken_lab.page.faults import simulated
from unbroken_lab.page.stages import shop
from unbroken_lab.sim.faults import Kind


@pytest.mark.parametrize(
    ("fault", "kind", "length_s"),
    [
        (Kill("node-1", back_after_s=3), Kind.KILL, 3),
        (Kill(ZOOKEEPER, back_after_s=2), Kind.ZOOKEEPER, 2),
        (Kill(1, jvm=True), Kind.QUERY, 1),
        (Freeze("node-1", 4), Kind.FREEZE, 4),
        (Restart("node-1"), Kind.KILL, 1),
        (Restart(EVERYTHING), Kind.BLACKOUT, 1),
        (Wipe("node-1"), Kind.WIPE, 1),
        (Partition("node-1", for_s=5), Kind.ISOLATE, 5),
        (Partition("node-1", "node-2", for_s=5), Kind.PART, 5),
        (Partition("node-1", ZOOKEEPER, for_s=5), Kind.BLIND, 5),
    ],
    ids=str,
)
def test_every_fault_has_one_of_the_simulator(fault: Fault, kind: Kind, length_s: float) -> None:
    found = simulated(fault, 10_000.0)
    assert (found.at_ms, found.kind, found.length_ms) == (10_000.0, kind, length_s * 1000)
    if kind not in (Kind.ZOOKEEPER, Kind.BLACKOUT):
        assert found.target == "node-1"


@pytest.mark.parametrize(
    "fault",
    [
        DiskFull("node-1", 1),
        SlowDisk("node-1", 1, 10),
        ClockStep("node-1", 1),
        SourceFails("clicks", 1),
        Freeze(ZOOKEEPER, 1),
        Freeze("node-1", 1, jvm=True),
    ],
    ids=str,
)
def test_what_the_simulator_cannot_aim_is_refused(fault: Fault) -> None:
    with pytest.raises(UnbrokenError, match="cannot be done to a simulated flow"):
        simulated(fault, 0.0)


def test_faults_happen_when_they_say() -> None:
    now_s = 0.0
    flow = shop()
    flow._clock = lambda: now_s
    flow.warm_up(20_000.0)
    flow.begin_faults([Freeze("node-3", 2.0, after_s=1.0)])
    seen = []
    for _ in range(8):
        now_s += 0.5
        seen.append("node-3" in flow.look().frozen)
    assert seen == [False, True, True, True, True, False, False, False]
