"""Threads that a process cannot do without, and what follows if one of them fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from unbroken.errors import reason_of

log = logging.getLogger(__name__)


class LastingThread(threading.Thread):
    """A daemon thread that works until its owner closes it.

    Its target handles the failures that it expects. Any other exception ends it, also one outside of `Exception`, and
    nothing does its work from then on; `failure_hook` makes that known.
    """

    def __init__(self, target: Callable[..., None], name: str, args: Sequence[Any] = ()) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)


def failure_hook(fail: Callable[[str, str], None]) -> Callable[[threading.ExceptHookArgs], None]:
    """A `threading.excepthook` that logs each failed thread, and calls ``fail`` with the name of a lasting one and the
    reason."""

    def failed(failure: threading.ExceptHookArgs) -> None:
        thread, error = failure.thread, failure.exc_value
        lasting = isinstance(thread, LastingThread)
        # SystemExit ends other threads on purpose; Python's own hook is silent about it, too.
        if error is None or (isinstance(error, SystemExit) and not lasting):
            return
        name = "a thread" if thread is None else f"thread {thread.name}"
        log.error("%s failed: %s", name, reason_of(error), exc_info=error)
        if lasting and thread is not None:
            fail(thread.name, reason_of(error))

    return failed
