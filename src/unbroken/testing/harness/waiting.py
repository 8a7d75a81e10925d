"""Waiting for a condition with a deadline, and giving up what has looked hopeless for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from unbroken.errors import UnbrokenError

LOOK_S = 0.05

T = TypeVar("T")


class Overdue(UnbrokenError):
    """A condition did not hold at its deadline."""


def until(
    condition: Callable[[], T | None], deadline_s: float, what: str | Callable[[], str], look_s: float = LOOK_S
) -> T:
    """Wait until a condition gives something true, which is returned; Overdue at the deadline.

    ``what`` says what was waited for; as a function it is called at the deadline and can tell the state then.
    """
    deadline = time.monotonic() + deadline_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Overdue(f"not within {deadline_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(look_s)
    return found


class Patience:
    """Gives a flow up that could not go on for ``seconds`` without a break: until then it may still recover."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def bear(self, failure: str | None) -> None:
        """Take note of why the flow cannot go on at this moment, None if it can; UnbrokenError when it was too long."""
        now = time.monotonic()
        if failure is None:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since > self._seconds:
            raise UnbrokenError(f"the flow cannot go on: {failure}")
