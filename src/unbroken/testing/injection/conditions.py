"""A slow disk and a clock that is set, for the process of a node: they are imposed from within it.

No operating system lets one process have another time of day, and few machines can slow a disk down. So a node that is
to have such faults is started as ``python -m unbroken.testing.injection.conditions FILE MODULE ARGUMENTS...``: its
``time.time`` and the functions that force data to disk are replaced before the module is imported, and a thread
follows what the file says. The executor of faults writes the file and waits until the node has read it.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unbroken.testing.injection.condition_files import LOOK_S, Conditions, ConditionsFile

NO_FILE = "-"
"""In place of the file: `Imposed.follow` will name one."""


class Imposed:
    """The conditions of this process. Nothing changes before ``install``, and little while no file says anything."""

    def __init__(self) -> None:
        self._now = Conditions()
        self._file: ConditionsFile | None = None
        self._thread: threading.Thread | None = None

    def install(self) -> None:
        """Replace what tells the time and what forces data to disk, in this process."""
        real_time, real_time_ns = time.time, time.time_ns
        time.time = lambda: real_time() + self._now.clock_s
        time.time_ns = lambda: real_time_ns() + int(self._now.clock_s * 1e9)
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                setattr(os, name, self._late(getattr(os, name)))

    def follow(self, file: ConditionsFile | None) -> None:
        """Follow a file from here on; None: be as the machine is."""
        self._file = file
        if file is None:
            self._now = Conditions()
            return
        self._look(file)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="conditions", daemon=True)
            self._thread.start()

    def _late(self, force: Callable[[Any], None]) -> Callable[[Any], None]:
        def forced(handle: Any) -> None:
            if self._now.force_ms:
                time.sleep(self._now.force_ms / 1000)
            force(handle)

        return forced

    def _work(self) -> None:
        while True:
            time.sleep(LOOK_S)
            if self._file is not None:
                self._look(self._file)

    def _look(self, file: ConditionsFile) -> None:
        wanted = file.read()
        if wanted != self._now:
            self._now = wanted
            file.confirm(wanted)


IMPOSED = Imposed()


def main(file: str, module: str, *arguments: str) -> None:
    IMPOSED.install()
    IMPOSED.follow(None if file == NO_FILE else ConditionsFile(Path(file)))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # This module again, under its own name: the one that others import has to be the one that is installed.
    from unbroken.testing.injection import conditions

    conditions.main(*sys.argv[1:])
