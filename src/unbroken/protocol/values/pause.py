"""That the sources of a flow are not to be read for a while."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pause:
    """That the sources are not to be read, since when (ms since the epoch) and why."""

    since_ms: int
    reason: str = ""
