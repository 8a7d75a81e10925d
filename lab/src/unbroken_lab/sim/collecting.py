"""Less work for Python's garbage collector while a world is simulated."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 50_000
"""Objects that are made, beyond those that are gone again, before the collector looks for circles. A world makes tens
of thousands of messages and instructions in a second, hardly any of them in a circle."""


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """What exists already is not looked at, and what comes is seldom; afterwards all is as it was."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
