"""Calls the function of a segment, which may describe its result and nothing else.

A function that starts a query of its own would start it on every node that looks at the segment, and in `unbroken
check`, which runs nothing. So no query can be started for as long as such a function runs, in the thread that runs it:
other threads of a node start the queries of replicas at the same time.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from unbroken.flow import Segment

_STARTING = ("start", "toTable")
_calling = threading.local()


class StartedQuery(UnbrokenError):
    """A segment's function has asked for a query to be started, which was refused."""


def call(segment: Segment, inputs: Sequence[DataFrame]) -> Any:
    """What the segment's function returns for these inputs.

    Raises
    ------
    StartedQuery
        If the function starts a query, also if it goes on after being refused.
    """
    with _without_queries(segment.name) as refused:
        result = segment.function(*inputs)
    if refused:
        raise refused[0]
    return result


@contextmanager
def _without_queries(segment: str) -> Iterator[list[StartedQuery]]:
    _install()
    before = getattr(_calling, "refused", None)
    _calling.segment, _calling.refused = segment, []
    try:
        yield _calling.refused
    finally:
        _calling.refused = before


def _install() -> None:
    """Let Spark's writer ask before it starts a query; once per process is enough."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    for name in _STARTING:
        method = getattr(DataStreamWriter, name)
        if not hasattr(method, "_asks_first"):
            setattr(DataStreamWriter, name, _asking(name, method))


def _asking(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def asks_first(*arguments: Any, **named: Any) -> Any:
        refused = getattr(_calling, "refused", None)
        if refused is not None:
            refused.append(
                StartedQuery(
                    f"The function of segment {_calling.segment} starts a query of its own (writeStream.{name}). "
                    "Return the DataFrame and declare a sink for it: flow.sink(name, segment, connector)."
                )
            )
            raise refused[-1]
        return method(*arguments, **named)

    asks_first._asks_first = True  # type: ignore[attr-defined]
    return asks_first
