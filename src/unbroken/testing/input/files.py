"""The directory of one run: what the test and the nodes tell each other by files.

::

    run.json              which flow, with which scripts and settings
    flow.py               what the nodes load: the user's flow with the input and the sinks of the test
    input/SOURCE.arrow    all rows of a source
    cuts/SOURCE/UNIT      which of them a unit has
    holds/HOLD.reached    a source waits at a hold
    holds/HOLD.over       it may go on
    failing/SOURCE        a source is to fail
    conditions/NODE       the clock and the disk of a node
    results/SINK/         the units that came to a sink
    logs/                 one file per node, and what Spark wrote
    node-1/, ...          the nodes' state

Files work whatever happens to processes and links, and nothing has to be asked that might be frozen.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unbroken.testing.injection.condition_files import ConditionsFile

GO = "go"
"""The hold before the first cut: a flow begins when all its nodes are ready."""

LOOK_S = 0.01
"""How often a source that is held looks whether it may go on."""


@dataclass(frozen=True)
class RunFiles:
    """The files of a run in ``root``."""

    root: Path

    def make(self) -> None:
        for name in ("input", "cuts", "holds", "failing", "results", "logs"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def flow(self) -> Path:
        return self.root / "flow.py"

    def input(self, source: str) -> Path:
        return self.root / "input" / f"{source}.arrow"

    def results(self, sink: str) -> Path:
        return self.root / "results" / sink

    def write_run(self, value: dict[str, Any]) -> None:
        _write(self.root / "run.json", value)

    def read_run(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.root / "run.json").read_text())
        return value

    # --- cuts -----------------------------------------------------------------------------------------

    def note_cut(self, source: str, unit: int, start: int, stop: int) -> None:
        """Say which rows a unit has; every ingress node says so, and all say the same."""
        path = self.root / "cuts" / source / str(unit)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, [start, stop])

    def cuts(self, source: str) -> list[tuple[int, int]]:
        """The rows of every unit, in order; the list ends where a unit is not known."""
        out: list[tuple[int, int]] = []
        folder = self.root / "cuts" / source
        while (path := folder / str(len(out) + 1)).exists():
            start, stop = json.loads(path.read_text())
            out.append((int(start), int(stop)))
        return out

    # --- holds ----------------------------------------------------------------------------------------

    def is_over(self, hold: str) -> bool:
        return (self.root / "holds" / f"{hold}.over").exists()

    def end_hold(self, hold: str) -> None:
        (self.root / "holds" / f"{hold}.over").touch()

    def wait_over(self, hold: str, stopped: Callable[[], bool], deadline_s: float) -> bool:
        """Say that a source waits at a hold, and wait until it is over; False if that was given up."""
        (self.root / "holds" / f"{hold}.reached").touch()
        end = time.monotonic() + deadline_s
        while not self.is_over(hold):
            if stopped() or time.monotonic() > end:
                return False
            time.sleep(LOOK_S)
        return True

    def reached(self) -> Iterator[str]:
        """The holds that a source waits at, or has waited at."""
        with os.scandir(self.root / "holds") as entries:
            for entry in entries:
                if entry.name.endswith(".reached"):
                    yield entry.name.removesuffix(".reached")

    def conditions(self, node: str) -> ConditionsFile:
        return ConditionsFile(self.root / "conditions" / node)

    # --- failing sources ------------------------------------------------------------------------------

    def is_failing(self, source: str) -> bool:
        return (self.root / "failing" / source).exists()

    def let_fail(self, source: str, fails: bool) -> None:
        path = self.root / "failing" / source
        if fails:
            path.touch()
        else:
            path.unlink(missing_ok=True)


def _write(path: Path, value: Any) -> None:
    """Nobody ever sees half of it, and of several writers any one will do."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(value))
    unfinished.replace(path)
