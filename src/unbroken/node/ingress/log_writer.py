"""The writer of the ingress log: everything that waits is written and forced to disk together."""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.workers import Worker
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.ingress import IngressLogWaits

GROUP_BYTES = 64 * 1024 * 1024
"""Bodies that are forced together. More would let the first of them wait for the last."""

CLOSE_S = 5.0
"""How long a disk may take to finish what it was told before the process ends without it."""

PASSING = (errno.EMFILE, errno.ENFILE)
"""That no more files can be opened says nothing about the disk: some of those that are open will be closed."""

PASSING_S = 60.0
PAUSE_S = 0.1
"""How long the writer tries again then, and how often."""


class LogWriter:
    """Group commit: while one group of entries is on its way to the disk, those that arrive form the next one.

    ``done`` is called with the number of entries that are on disk, in the order of ``write``; ``failed`` with what the
    disk says if it takes no more, after which nothing is written. ``tell`` is given a notice when the process can
    open no more files, which the writer waits out for a while. With ``forced`` false entries count when the operating
    system has them. What waits is bounded by what is asked for: one pulse, and a push of each producer.
    """

    def __init__(
        self,
        forced: bool,
        done: Callable[[int], None],
        failed: Callable[[OSError], None],
        tell: Callable[[Notice], None],
        worker: Worker,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log: IngressLogFile | None = None
        self._forced = forced
        self._done = done
        self._failed = failed
        self.tell = tell
        self._closed = threading.Event()
        self._began_s: float | None = None
        self._waiting: deque[Entry] = deque()
        self._worker = worker
        self._clock_s = clock_s
        self._asked = False
        self._over = False

    def start(self, log: IngressLogFile) -> None:
        """Write to ``log`` from here on, first of all what waits."""
        self._log = log
        self._worker.start()

    def write(self, entry: Entry) -> None:
        """Write an entry after those before it; returns at once."""
        self._waiting.append(entry)
        self._ask()

    def close(self) -> None:
        """Write what waits, and end; that the disk does not take it is of no interest any longer."""
        self._closed.set()
        self._worker.close(CLOSE_S)

    @property
    def busy_s(self) -> float:
        """For how long the disk has been at what it was told last; 0 if nothing waits for it."""
        began_s = self._began_s
        return 0.0 if began_s is None else self._clock_s() - began_s

    def _ask(self) -> None:
        """Have what waits written, unless a job that has not begun will do that."""
        if not self._asked:
            self._asked = True
            self._worker.submit(self._write)

    def _write(self) -> None:
        """Write everything that waits."""
        self._asked = False  # before it looks: an entry that comes later is not left to this job
        group = self._next_group()
        opened = self._log
        if not group or self._over or opened is None:
            return
        self._began_s = self._clock_s()
        try:
            self._patiently(partial(opened.append, *group))
            if self._forced:
                self._patiently(opened.force)
        except OSError as error:
            self._over = True
            if not self._closed.is_set():
                self._failed(error)
            return
        self._began_s = None
        self._done(len(group))
        if self._waiting:
            self._ask()

    def _patiently(self, write: Callable[[], None]) -> None:
        """Write; what is written again after a failure replaces what was written of it before."""
        began_s: float | None = None
        while True:
            try:
                return write()
            except OSError as error:
                now_s = self._clock_s()
                if error.errno not in PASSING or (began_s is not None and now_s - began_s > PASSING_S):
                    raise
                if began_s is None:
                    began_s = now_s
                    self.tell(IngressLogWaits(PASSING_S, error.strerror or str(error)))
            if self._closed.wait(PAUSE_S):
                return write()

    def _next_group(self) -> list[Entry]:
        """Everything that waits, as far as it is to be forced together."""
        group: list[Entry] = []
        size = 0
        while self._waiting and size < GROUP_BYTES:
            group.append(self._waiting.popleft())
            size += len(group[-1].body)
        return group
