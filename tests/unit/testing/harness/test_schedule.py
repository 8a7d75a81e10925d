"""Faults come at their moments: while sources stand still for them, and by the clock, in order."""

from __future__ import annotations

import pytest

from unbroken.testing.faults import Fault, Kill
from unbroken.testing.harness import schedule as module
from unbroken.testing.harness.schedule import FaultSchedule


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Sources:
    """Sources that wait at holds."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.over: list[str] = []

    def reached(self) -> list[str]:
        return self.waiting

    def end_hold(self, hold: str) -> None:
        self.over.append(hold)


class Flow:
    """What is done to a flow, and why it is not whole."""

    def __init__(self) -> None:
        self.struck: list[Fault] = []
        self.shortage: str | None = None

    def obstacle(self, fault: Fault) -> str | None:
        return self.shortage if fault.when_whole else None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def test_timed_faults_count_from_the_first_result_and_come_in_order(clock: Clock) -> None:
    flow, early, late = Flow(), Kill(1, after_s=2), Kill(2, after_s=5)
    schedule = FaultSchedule(flow.struck.append, flow.obstacle, [late, early])
    clock.now += 50
    schedule.look()
    assert flow.struck == [] and not schedule.began, "the flow has not begun"
    schedule.begin()
    clock.now += 2
    schedule.begin()
    schedule.look()
    assert flow.struck == [early] and schedule.pending() == [late] and schedule.elapsed_s() == 2
    clock.now += 10
    schedule.look()
    assert flow.struck == [early, late] and schedule.pending() == []


def test_a_fault_that_waits_for_a_whole_flow_puts_off_those_behind_it(clock: Clock) -> None:
    flow, first, second = Flow(), Kill(1, after_s=2, when_whole=True), Kill(2, after_s=5)
    schedule = FaultSchedule(flow.struck.append, flow.obstacle, [first, second])
    flow.shortage = "node-3 not there"
    schedule.begin()
    clock.now += 2
    schedule.look()
    clock.now += 4
    schedule.look()
    assert flow.struck == [], "the second one does not overtake"
    (waiting,) = schedule.put_off()
    assert (waiting.fault, waiting.since, waiting.reason) == (first, 102, "node-3 not there")
    flow.shortage = None
    schedule.look()
    assert flow.struck == [first] and schedule.put_off() == []
    clock.now += 2.9
    schedule.look()
    assert flow.struck == [first], "three seconds are between them, as was asked for"
    clock.now += 0.2
    schedule.look()
    assert flow.struck == [first, second]


def test_sources_stand_still_until_everything_has_happened_there() -> None:
    flow, sources = Flow(), Sources()
    kill, careful = Kill(1, at_unit=3), Kill(2, at_unit=3, when_whole=True)
    held = {"unit-3": [kill, careful], "here": [], "never": [Kill(3, at_row=9)]}
    schedule = FaultSchedule(flow.struck.append, flow.obstacle, held=held, holds=sources)
    schedule.look()
    assert flow.struck == [] and sources.over == []
    flow.shortage = "sums.0 only on node-1"
    sources.waiting = ["unit-3", "here", "of nobody here"]
    schedule.look()
    assert flow.struck == [kill] and sources.over == ["here"]
    flow.shortage = None
    schedule.look()
    schedule.look()
    assert flow.struck == [kill, careful] and sources.over == ["here", "unit-3"]
    assert schedule.pending() == [Kill(3, at_row=9)]
    schedule.release()
    assert sources.over == ["here", "unit-3", "never"]


def test_a_fault_that_cannot_be_done_is_not_tried_again(clock: Clock) -> None:
    tried: list[Fault] = []

    def strike(fault: Fault) -> None:
        tried.append(fault)
        raise ValueError(str(fault))

    schedule = FaultSchedule(strike, lambda _: None, [Kill(1, after_s=0)])
    schedule.begin()
    with pytest.raises(ValueError, match="Kill"):
        schedule.look()
    schedule.look()
    assert len(tried) == 1
