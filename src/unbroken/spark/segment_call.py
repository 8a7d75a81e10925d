"""Calls the function of a segment, which may describe its result and nothing else.

A function that starts a query or writes would do so on every node that looks at the segment, and in `unbroken check`,
which runs nothing. So for as long as such a function runs, no thread of the process can do either through Spark's
Python interface, except that a node starts the queries of its replicas, see `start_query`. Queries that were started
all the same, around that interface, are found afterwards and stopped. Writes around it are not found: the function is
code of the user's, which runs.
"""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from unbroken.flow.dataflow import Segment

_SINK = "return the DataFrame and declare a sink for it: flow.sink(name, segment, connector)"
_BEFORE = "write it before the flow is started, or in a program of its own"

_STARTS = ("start", "toTable")
_WRITES = ("csv", "insertInto", "jdbc", "json", "orc", "parquet", "save", "saveAsTable", "text", "xml")
_WRITES_TO = ("append", "create", "createOrReplace", "overwrite", "overwritePartitions", "replace")
_EACH = ("foreach", "foreachPartition")

_WRITING_PLANS = frozenset(
    {
        "CacheTableAsSelect",
        "CreateNamespace",
        "CreateTable",
        "CreateTableAsSelect",
        "DeleteFromTable",
        "DropNamespace",
        "DropTable",
        "InsertIntoDir",
        "InsertIntoStatement",
        "LoadData",
        "MergeIntoTable",
        "ReplaceTable",
        "ReplaceTableAsSelect",
        "TruncateTable",
        "UpdateTable",
    }
)
"""Spark's names for statements of SQL that write as soon as they are given."""


class SideEffect(UnbrokenError):
    """A segment's function has asked for something else than a description of its result, which was refused."""

    def __init__(self, segment: str, does: str, remedy: str) -> None:
        super().__init__(f"the function of segment {segment} {does}", remedy)


@dataclass(eq=False)
class _Call:
    """One call of a segment's function."""

    segment: str
    refused: list[SideEffect] = field(default_factory=list)


_lock = threading.Lock()
_under_way: list[_Call] = []
_own_names: set[str] = set()
_thread = threading.local()


def call(segment: Segment, inputs: Sequence[DataFrame]) -> Any:
    """What the segment's function returns for these inputs.

    Raises
    ------
    SideEffect
        If the function starts a query or writes, also if it goes on after being refused, or does it in another thread.
    """
    session = inputs[0].sparkSession
    with _guarding(segment.name) as current:
        before = {query.runId for query in session.streams.active}
        try:
            result = segment.function(*inputs)
        finally:
            started = _stop_others(session, before)
    if current.refused:
        raise current.refused[0]
    if started:
        raise SideEffect(segment.name, f"starts a query of its own ({', '.join(started)})", _SINK)
    return result


def start_query(writer: DataStreamWriter, name: str) -> StreamingQuery:
    """Start a query of Unbroken's own, which is allowed while functions of segments are called.

    It is known by its name before it exists, so that no call takes it for one of its function.
    """
    unique = f"{name} {secrets.token_hex(4)}"
    with _lock:
        _own_names.add(unique)
    _thread.own = True
    try:
        return writer.queryName(unique).start()
    finally:
        _thread.own = False


@contextmanager
def _guarding(segment: str) -> Iterator[_Call]:
    _install()
    current = _Call(segment)
    with _lock:
        _under_way.append(current)
    outer = getattr(_thread, "call", None)
    _thread.call = current
    try:
        yield current
    finally:
        _thread.call = outer
        with _lock:
            _under_way.remove(current)


def _stop_others(session: SparkSession, before: set[str]) -> list[str]:
    """Stop the queries that are new and not Unbroken's own; their names."""
    started = []
    for query in session.streams.active:
        if query.runId not in before and query.name not in _own_names:
            query.stop()
            started.append(query.name or "without a name")
    return started


def _refuse(does: str, remedy: str) -> None:
    """Raise if a segment's function is being called: in this thread, or in any, which may have made this one."""
    if getattr(_thread, "own", False):
        return
    mine = getattr(_thread, "call", None)
    with _lock:
        calls = [mine] if mine is not None else list(_under_way)
    for each in calls:
        each.refused.append(SideEffect(each.segment, does, remedy))
    if calls:
        raise calls[0].refused[-1]


def _install() -> None:
    """Let Spark's methods that start or write ask first; once per process is enough."""
    from pyspark.sql import SparkSession
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.merge import MergeIntoWriter
    from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    for kind, names, does, remedy in (
        (DataStreamWriter, _STARTS, "starts a query of its own (writeStream.{})", _SINK),
        (DataFrameWriter, _WRITES, "writes (write.{})", _BEFORE),
        (DataFrameWriterV2, _WRITES_TO, "writes (writeTo.{})", _BEFORE),
        (MergeIntoWriter, ("merge",), "writes (mergeInto.{})", _BEFORE),
        (DataFrame, _EACH, "has rows worked on at once (DataFrame.{})", _BEFORE),
    ):
        for name in names:
            _ask_first(kind, name, functools.partial(_refuse_always, does.format(name), remedy))
    _ask_first(SparkSession, "sql", _refuse_statement)


def _ask_first(kind: type, name: str, ask: Callable[..., None]) -> None:
    method = getattr(kind, name)
    if hasattr(method, "_asks_first"):
        return

    @functools.wraps(method)
    def asks_first(*arguments: Any, **named: Any) -> Any:
        ask(*arguments, **named)
        return method(*arguments, **named)

    asks_first._asks_first = True  # type: ignore[attr-defined]
    setattr(kind, name, asks_first)


def _refuse_always(does: str, remedy: str, *arguments: Any, **named: Any) -> None:
    _refuse(does, remedy)


def _refuse_statement(session: SparkSession, *arguments: Any, **named: Any) -> None:
    """Refuse SQL that writes; what Spark cannot parse is left to Spark."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if not _under_way:
        return
    text = arguments[0] if arguments else named.get("sqlQuery")
    try:
        plan = session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except (Py4JJavaError, PySparkException):
        return
    found = sorted(_nodes(plan) & _WRITING_PLANS)
    if found:
        _refuse(f"writes (SQL: {found[0]})", _BEFORE)


def _nodes(plan: Any) -> set[str]:
    """The kinds of a plan's nodes."""
    children = plan.children()
    below = (_nodes(children.apply(place)) for place in range(children.size()))
    return {plan.nodeName()}.union(*below)
