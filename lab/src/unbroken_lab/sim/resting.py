"""Letting a simulated flow go on, come to its end, and be compared with one that nothing happened to."""

from __future__ import annotations

import traceback

from unbroken.errors import broken
from unbroken_lab.sim.world import World

LOOK_MS = 250.0
"""How often the whole is looked at."""

MOST_EVENTS = 2_000_000
"""Events between two looks, of a flow of fifty nodes or less: more means that time does not pass any more."""

FEW_NODES = 50


def advance(world: World, until_ms: float, look_ms: float = LOOK_MS) -> None:
    """Go on to a time, looking at the whole now and then."""
    most = MOST_EVENTS * max(1, len(world.machines) // FEW_NODES)
    while world.kernel.now_ms < until_ms:
        world.kernel.run(min(until_ms, world.kernel.now_ms + look_ms), most)
        world.check()


def finish(world: World, rest_ms: float, look_ms: float = LOOK_MS) -> None:
    """Go on until the flow is at rest, for so long at most, and compare what the sinks hold with the oracle."""
    deadline = world.kernel.now_ms + rest_ms
    while (reason := world.at_rest()) is not None:
        if world.kernel.now_ms >= deadline:
            stuck = world.stuck()
            told = f"{reason}" if stuck is None else f"{reason}; the first that is behind: {stuck}"
            first = stuck or reason
            broken(f"not at rest {rest_ms / 1000:g} s after the last fault: {told}", *first.about, unit=first.unit)
        advance(world, world.kernel.now_ms + look_ms, look_ms)
    world.check()
    world.check_result()


def failure_of(error: Exception) -> str:
    """What went wrong in a run, in one line with its place."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"
