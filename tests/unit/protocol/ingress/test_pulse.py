"""The adaptive pulse in a closed loop with a simulated chain of segments."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from unbroken.protocol.ingress.pulse import (
    EASE,
    EASE_EVERY_MS,
    EASE_MORE,
    FAST_SHRINK,
    MOST_EASE,
    NUDGE,
    STRETCH,
    AdaptivePulse,
)

MIN_MS, MAX_MS, START_MS = 250, 10_000, 500
SETTLED_MS = 30_000
"""Every load below is carried in balance by then."""


@dataclass(frozen=True)
class Cut:
    at_ms: float
    period_ms: float
    in_flight: int


def run(
    service_ms: Callable[[float], float],
    stages: int,
    until_ms: float,
    noise: float = 0.0,
    seed: int = 0,
    slack: int = 1,
) -> list[Cut]:
    """A chain of ``stages`` segments that each take ``service_ms(now)`` for a unit, one unit at a time."""
    rng = random.Random(seed)
    pulse = AdaptivePulse(MIN_MS, MAX_MS, stages + slack, START_MS)
    free, done = [0.0] * stages, [0] * stages
    ends: list[tuple[float, int, int]] = []
    cuts: list[Cut] = []
    now = 0.0
    while now < until_ms:
        while ends and ends[0][0] <= now:
            _, stage, number = heapq.heappop(ends)
            done[stage] = number
        in_flight = len(cuts) - min(done)
        if pulse.due(now, in_flight):
            cuts.append(Cut(now, pulse.period_ms, in_flight + 1))
            at = now
            for stage in range(stages):
                at = max(at, free[stage]) + service_ms(now) * (1 + noise * rng.uniform(-1, 1))
                free[stage] = at
                heapq.heappush(ends, (at, stage, len(cuts)))
        pulse.check()
        # As a node does: wake up for the next pulse or, when it is held, for the next sign of progress.
        wake = [end for end, _, _ in ends[:1]] + ([] if pulse.held else [pulse.next_due_ms()])
        now = max(min(wake), now + 0.001)
    return cuts


def settled(cuts: list[Cut]) -> list[Cut]:
    return [cut for cut in cuts if cut.at_ms > SETTLED_MS]


@pytest.mark.parametrize("slack", [0, 1])
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("service_ms", [100, 300, 900])
def test_settles_within_five_per_cent_of_the_service_time(service_ms: int, stages: int, slack: int) -> None:
    cuts = run(lambda _: service_ms, stages, 120_000, slack=slack)
    wanted = max(MIN_MS, service_ms)
    assert all(0.94 * wanted <= cut.period_ms <= 1.05 * wanted for cut in settled(cuts))
    assert all(cut.in_flight <= stages + slack for cut in cuts)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("service_ms", [300, 900])
def test_stays_near_a_service_time_that_varies_by_a_fifth(service_ms: int, seed: int) -> None:
    periods = [cut.period_ms for cut in settled(run(lambda _: service_ms, 1, 240_000, noise=0.2, seed=seed))]
    assert 0.8 * service_ms <= min(periods) and max(periods) <= 1.25 * service_ms
    assert 0.95 * service_ms <= sum(periods) / len(periods) <= 1.1 * service_ms


def test_shrinks_when_the_load_falls() -> None:
    cuts = run(lambda now: 900 if now < 60_000 else 100, 1, 90_000)
    back = next(cut.at_ms for cut in cuts if cut.at_ms > 60_000 and cut.period_ms < 1.1 * MIN_MS)
    assert back - 60_000 < 15_000


def test_stretches_when_the_load_rises() -> None:
    cuts = run(lambda now: 100 if now < 60_000 else 900, 1, 90_000)
    there = next(cut.at_ms for cut in cuts if cut.at_ms > 60_000 and cut.period_ms > 0.9 * 900)
    assert there - 60_000 < 10_000
    assert max(cut.in_flight for cut in cuts) <= 2


def test_a_held_pulse_is_cut_as_soon_as_there_is_room() -> None:
    pulse = AdaptivePulse(MIN_MS, MAX_MS, 2, START_MS)
    assert pulse.due(0, 0)
    assert not pulse.due(START_MS * 0.97 - 1, 0)
    assert not pulse.due(600, 2) and pulse.held
    assert pulse.due(700, 1) and not pulse.held
    assert pulse.next_due_ms() == 700 + pulse.period_ms


def test_a_long_stall_stretches_the_period_by_one_step_only() -> None:
    pulse = AdaptivePulse(MIN_MS, MAX_MS, 1, START_MS)
    pulse.due(0, 0)
    assert not pulse.due(1_000, 1)
    assert pulse.due(60_000, 0)
    assert pulse.period_ms == pytest.approx(START_MS * STRETCH)


def test_a_held_pulse_always_lengthens_the_period() -> None:
    pulse = AdaptivePulse(MIN_MS, MAX_MS, 1, START_MS)
    pulse.due(0, 0)
    pulse.due(START_MS, 1)
    pulse.due(START_MS, 0)
    assert pulse.period_ms >= START_MS * NUDGE


def test_the_period_keeps_to_its_bounds() -> None:
    pulse = AdaptivePulse(MIN_MS, 600, 2, START_MS)
    now = 0.0
    for in_flight in [0] * 30 + [2, 1] * 60:
        now = max(now + 1, pulse.next_due_ms())
        pulse.due(now, in_flight)
        pulse.check()
    assert pulse.period_ms == 600
    assert FAST_SHRINK < 1


def test_pulses_come_less_often_while_somebody_catches_up_and_less_so_the_longer_it_takes() -> None:
    pulse = AdaptivePulse(100, 2_000, 3, 400)
    assert pulse.due(0, 0)
    pulse.ease(10, True)
    assert pulse.next_due_ms() == 400 * EASE
    assert not pulse.due(500, 0)
    assert pulse.due(600, 0)
    assert pulse.period_ms == 400, "that there is room says nothing while pulses are held back"
    pulse.ease(10 + EASE_EVERY_MS, True)
    assert pulse.next_due_ms() == 600 + 400 * (EASE + EASE_MORE)
    pulse.ease(1e9, True)
    assert pulse.factor == MOST_EASE
    pulse.ease(1e9, False)
    assert pulse.next_due_ms() == 1_000
