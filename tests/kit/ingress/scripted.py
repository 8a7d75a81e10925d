"""Sources that fail as a test wants it, and what becomes of their rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from kit.ingress.fake_node import REPLICA, FakeNode
from unbroken import Client, Dataflow, Push
from unbroken.connectors.base import Cut, Position, SourceConnector, SourceReader
from unbroken.data.rows.parsed import Rows
from unbroken.data.schema import parse_schema
from unbroken.data.unit_store import decode_unit
from unbroken.errors import Flaw
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.protocol.events import Produced

SCHEMA = "n long"
Read = Callable[[int, int], Any]


class Scripted(SourceConnector):
    """Row n after n polls; ``read`` is called before the rows are given."""

    def __init__(self, read: Read) -> None:
        self.read = read

    @property
    def schema(self) -> Any:
        return parse_schema(SCHEMA)

    def problems(self) -> list[Flaw]:
        return []

    def open(self) -> SourceReader:
        return ScriptedReader(self)


class ScriptedReader(SourceReader):
    def __init__(self, source: Scripted) -> None:
        self._source = source

    def poll(self, position: Position | None, now_ms: int) -> Cut:
        return Cut((position or 0) + 1)

    def read(self, start: Position | None, end: Position) -> Rows:
        found = self._source.read(start or 0, end)
        table = pa.table({"n": pa.array(range(start or 0, end), pa.int64())})
        return Rows(table if found is None else found)


def fails_on(poisoned: int, error: Callable[[], BaseException]) -> Read:
    def read(start: int, end: int) -> None:
        if start < poisoned <= end:
            raise error()

    return read


def begin(directory: Path, read: Read) -> FakeNode:
    flow = Dataflow("shop", nodes=2)
    flow.source("bad", Scripted(read))
    flow.source("good", Scripted(lambda start, end: None))
    flow.source("pushed", Push(SCHEMA))
    flow.segment("bad", "good", name="both")(lambda a, b: a)
    flow.segment("pushed", name="one")(lambda a: a)
    flow.sink("out", "both", Client())
    flow.sink("out2", "one", Client())
    dirs = ReplicaDirs(directory)
    dirs.identity()
    dirs.begin([REPLICA])
    node = FakeNode(flow, dirs)
    node.open()
    return node


def numbers(node: FakeNode, source: str, unit: int) -> list[int]:
    """The rows of a unit, as they are on disk, by the header that was given to the protocol."""
    headers = [header for event in node.events if isinstance(event, Produced) for header in event.headers]
    (header,) = {h for h in headers if h.stream.producer.part == source and h.number == unit}
    stored, table = decode_unit(node.store.read(node.store.outbox_path(REPLICA, header.stream, unit)))
    assert stored == header
    return table.column("n").to_pylist()  # type: ignore[no-any-return]


def letters(node: FakeNode) -> list[Path]:
    return sorted(path for path in node.dirs.dead_letters.rglob("*") if path.is_file())
