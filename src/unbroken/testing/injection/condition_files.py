"""The files that say which conditions a process is to have, and which it has."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unbroken.codecs.codec import Codec

LOOK_S = 0.02
APPLIED_S = 10.0
"""How long a process may take to read its file; it looks every 20 ms if it gets a processor."""


@dataclass(frozen=True)
class Conditions:
    """By how much the clock of a process is ahead, and by how much data are late on its disk."""

    clock_s: float = 0.0
    force_ms: float = 0.0


CONDITIONS = Codec(Conditions, "conditions", readable=True)


@dataclass(frozen=True)
class ConditionsFile:
    """Where the conditions of one process are written, and where it says which it has read."""

    path: Path

    def read(self) -> Conditions:
        return _read(self.path)

    def write(self, conditions: Conditions) -> None:
        _write(self.path, conditions)

    def confirm(self, conditions: Conditions) -> None:
        """The process has read these conditions."""
        _write(self.applied, conditions)

    def impose(self, conditions: Conditions, alive: Callable[[], bool]) -> bool:
        """Write the conditions and wait until the process has read them; False if it does not."""
        self.write(conditions)
        end = time.monotonic() + APPLIED_S
        while _read(self.applied) != conditions:
            if not alive() or time.monotonic() > end:
                return False
            time.sleep(LOOK_S)
        return True

    @property
    def applied(self) -> Path:
        return self.path.with_name(f"{self.path.name}.applied")


def _read(path: Path) -> Conditions:
    try:
        return CONDITIONS.decode(path.read_bytes())
    except FileNotFoundError:
        return Conditions()


def _write(path: Path, conditions: Conditions) -> None:
    """Write a file of which no process ever reads half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(CONDITIONS.encode(conditions))
    unfinished.replace(path)
