"""How long work is shown: a bar or a spinner where somebody watches, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from unbroken.cli.shared import errors

QUIET_S = 10.0
"""Between two lines that say no more than how far it is, where there is no terminal."""


class WaitDisplay:
    """Shows on stderr what is waited for, how far it is, and what happens meanwhile; gone when it is over.

    On a terminal there is one line with a spinner, and a bar where there is something to count. Elsewhere a line is
    written when another thing is waited for, when something happens, and now and then.
    """

    def __init__(self, what: str, console: Console = errors) -> None:
        self._console = console
        self._what = what
        self._told = ("", 0.0)
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> WaitDisplay:
        if self._console.is_terminal:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(24),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._task = self._progress.add_task(self._what, total=None)
            self._progress.start()
        else:
            self._line(self._what)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, what: str, done: float | None = None, total: float | None = None) -> None:
        """What is waited for at this moment, and how much of it is done."""
        changed, self._what = what != self._what, what
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=what, completed=done or 0, total=total)
        elif changed or time.monotonic() - self._told[1] >= QUIET_S:
            self._line(what)

    def say(self, sentence: str) -> None:
        """Something happened that is worth a line of its own."""
        console = self._console if self._progress is None else self._progress.console
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def _line(self, what: str) -> None:
        if what != self._told[0] or time.monotonic() - self._told[1] >= QUIET_S:
            self._told = (what, time.monotonic())
            self.say(what)
