"""Helpers that tests share."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from unbroken.flow.dataflow import Dataflow
from unbroken.flow.plan import build_topology
from unbroken.flow.program import Consumer, Program, consumers

TOKEN = "a token that only tests have, as long as a real one"


def wait_until(
    condition: Callable[[], object],
    deadline_s: float,
    what: str | Callable[[], str],
    interval_s: float = 0.02,
) -> None:
    """Return as soon as ``condition()`` is true; fail with ``what`` if it is not by the deadline.

    ``what`` says what was waited for; as a function it is called at the deadline and can tell the state then.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end:
            description = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {deadline_s:g} s: {description}")
        time.sleep(interval_s)


def consumers_of(flow: Dataflow) -> Callable[[str], tuple[Consumer, ...]]:
    """Who reads a part's rows while the first program of ``flow`` runs."""
    return partial(consumers, [Program.first(flow, build_topology(flow), "flow.py", "")])
