"""Whether a node's Spark still lives, and which executors it has: looked at every now and then."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from py4j.protocol import Py4JNetworkError

from unbroken.spark.master import executor_ids, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkLife:
    """Watches one session from the process that started it."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        # Under spark-submit the JVM is this process's parent, otherwise its child.
        self._parent = os.getppid()
        self._remote = not is_local(session.sparkContext.master)
        self._executors = executor_ids(session) if self._remote else frozenset()

    def end(self) -> str | None:
        """How Spark has come to its end, as the rest of a sentence; None while it lives.

        A driver goes on when it loses executors or its master, until the master tells it that its application is
        removed, as it does after executors have failed ten times in a row. Then everything has to be started again.
        """
        process = getattr(self._session.sparkContext._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            return f"the JVM of Spark has ended with code {process.poll()}"
        if process is None and os.getppid() != self._parent:
            return "the JVM of spark-submit has ended"
        try:
            return "Spark has stopped" if self._session.sparkContext._jsc.sc().isStopped() else None
        except (Py4JNetworkError, OSError) as error:
            return f"the JVM of Spark cannot be reached ({type(error).__name__})"

    def changes(self) -> list[str]:
        """What has become of executors since the last look, as the rest of a sentence each."""
        if not self._remote:
            return []
        before, self._executors = self._executors, executor_ids(self._session)
        return describe(before, self._executors)


def describe(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """The difference between two sets of executors in words."""
    lost, came, left = sorted({*before} - {*after}), sorted({*after} - {*before}), len({*after})
    out: list[str] = []
    if lost:
        count = "one that is left" if left == 1 else f"{left} that are left"
        rest = f"its tasks are run again on the {count}" if left else "it has none, and waits for another one"
        out.append(f"has lost {_named(lost)} of Spark; {rest}")
    if came:
        out.append(f"has got {_named(came)} of Spark")
    return out


def _named(ids: list[str]) -> str:
    return f"executor {ids[0]}" if len(ids) == 1 else f"executors {', '.join(ids)}"
