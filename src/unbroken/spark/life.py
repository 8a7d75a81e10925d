"""Whether a node's Spark still lives, and which executors it has: looked at every now and then."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from py4j.protocol import Py4JNetworkError

from unbroken.protocol.values.notices.processes import SparkEnd
from unbroken.spark.master import executor_ids, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Ending:
    """How Spark has come to its end; ``code`` is the exit code of its JVM."""

    how: SparkEnd
    code: int | None = None
    detail: str = ""


class Changes(NamedTuple):
    """Executors that are lost or new, and how many there are."""

    lost: tuple[str, ...]
    added: tuple[str, ...]
    left: int

    @classmethod
    def between(cls, before: Iterable[str], after: Iterable[str]) -> Changes:
        earlier, later = set(before), set(after)
        return cls(tuple(sorted(earlier - later)), tuple(sorted(later - earlier)), len(later))


class SparkLife:
    """Watches one session from the process that started it."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        # Under spark-submit the JVM is this process's parent, otherwise its child.
        self._parent = os.getppid()
        self._remote = not is_local(session.sparkContext.master)
        self._executors = executor_ids(session) if self._remote else frozenset()

    def end(self) -> Ending | None:
        """How Spark has come to its end; None while it lives.

        A driver goes on when it loses executors or its master, until the master tells it that its application is
        removed, as it does after executors have failed ten times in a row. Then everything has to be started again.
        """
        process = getattr(self._session.sparkContext._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            return Ending(SparkEnd.JVM_ENDED, process.poll())
        if process is None and os.getppid() != self._parent:
            return Ending(SparkEnd.SUBMIT_ENDED)
        try:
            stopped = self._session.sparkContext._jsc.sc().isStopped()
            return Ending(SparkEnd.STOPPED) if stopped else None
        except (Py4JNetworkError, OSError) as error:
            return Ending(SparkEnd.UNREACHABLE, detail=type(error).__name__)

    def changes(self) -> Changes:
        """What has become of executors since the last look."""
        if not self._remote:
            return Changes((), (), 0)
        before, self._executors = self._executors, executor_ids(self._session)
        return Changes.between(before, self._executors)
