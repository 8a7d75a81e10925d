"""The thread that writes the ingress log: everything that waits is written and forced to disk together."""

from __future__ import annotations

import errno
import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.protocol.ingress.log import Entry
from unbroken.threads import LastingThread

log = logging.getLogger(__name__)

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
    disk says if it takes no more, after which nothing is written. ``tell`` is given a sentence when the process can
    open no more files, which the writer waits out for a while. With ``forced`` false entries count when the operating
    system has them. What waits is bounded by what is asked for: one pulse, and a push of each producer.
    """

    def __init__(
        self,
        log: IngressLogFile,
        forced: bool,
        done: Callable[[int], None],
        failed: Callable[[OSError], None],
        tell: Callable[[str], None] = log.warning,
    ) -> None:
        self._log = log
        self._forced = forced
        self._done = done
        self._failed = failed
        self.tell = tell
        self._closed = threading.Event()
        self._began_s: float | None = None
        self._waiting: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._thread = LastingThread(self._work, "ingress-log")

    def start(self) -> None:
        self._thread.start()

    def write(self, entry: Entry) -> None:
        """Write an entry after those before it; returns at once."""
        self._waiting.put(entry)

    def close(self) -> None:
        """Write what waits, and end; that the disk does not take it is of no interest any longer."""
        self._closed.set()
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=CLOSE_S)

    @property
    def busy_s(self) -> float:
        """For how long the disk has been at what it was told last; 0 if nothing waits for it."""
        began_s = self._began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    def _work(self) -> None:
        ends = False
        while not ends:
            self._began_s = None
            group, ends = self._next_group()
            self._began_s = time.monotonic()
            try:
                self._patiently(partial(self._log.append, *group))
                if self._forced:
                    self._patiently(self._log.force)
            except OSError as error:
                if not self._closed.is_set():
                    self._failed(error)
                return
            if group:
                self._done(len(group))

    def _patiently(self, write: Callable[[], None]) -> None:
        """Write; what is written again after a failure replaces what was written of it before."""
        began_s: float | None = None
        while True:
            try:
                return write()
            except OSError as error:
                now_s = time.monotonic()
                if error.errno not in PASSING or (began_s is not None and now_s - began_s > PASSING_S):
                    raise
                if began_s is None:
                    began_s = now_s
                    self.tell(f"the ingress log waits, for at most {PASSING_S:g} s: {error.strerror}")
            if self._closed.wait(PAUSE_S):
                return write()

    def _next_group(self) -> tuple[list[Entry], bool]:
        """Everything that waits, at least one entry, and whether it is the last."""
        group: list[Entry] = []
        size = 0
        while size < GROUP_BYTES:
            try:
                entry = self._waiting.get() if not group else self._waiting.get_nowait()
            except queue.Empty:
                break
            if entry is None:
                return group, True
            group.append(entry)
            size += len(entry.body)
        return group, False
