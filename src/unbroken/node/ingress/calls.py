"""Questions to a source that may take long to answer: asked one at a time, waited for only so long."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from unbroken.connectors.base import SourceReader
from unbroken.threads import LastingThread

T = TypeVar("T")


class Calls(ABC):
    """Where the reader of one source is called. Calls never overlap: a reader need not expect that."""

    @abstractmethod
    def ask(self, function: Callable[[], T]) -> Future[T]:
        """Call ``function``, after all that was asked before."""

    def wait(self, answer: Future[Any], timeout_s: float) -> None:
        """Wait for an answer, if that can bring it nearer."""
        wait([answer], timeout=timeout_s)

    def clock_s(self) -> float:
        """The time by which answers are waited for."""
        return time.monotonic()

    def close(self) -> None:  # noqa: B027  (not all of them have something to end)
        """Nothing more will be asked."""


class Inline(Calls):
    """Calls at once, on the thread that asks: for sources that never wait for anything."""

    def ask(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        _answer(future, function)
        return future


class ThreadedCalls(Calls):
    """Calls on a thread of its own, so that a source that does not answer holds up nobody but itself.

    The thread ends with the process if a call never returns.
    """

    def __init__(self, name: str) -> None:
        self._asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = LastingThread(self._work, name)
        self._thread.start()

    def ask(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._asked.put((future, function))
        return future

    def close(self) -> None:
        self._asked.put(None)

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            _answer(*asked)


CallsOf = Callable[[str, SourceReader], Calls]
"""Where the reader of a source is called, by its name."""


def _answer(future: Future[T], function: Callable[[], T]) -> None:
    try:
        result = function()
    except BaseException as error:
        # Also what a source raises outside of Exception, as SystemExit or the panic of a native library: whoever waits
        # for the answer would wait for ever. Only a user who interrupts the program means the program.
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        future.set_exception(error)
    else:
        future.set_result(result)
