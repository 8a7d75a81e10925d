"""The source that takes the place of a flow's own in a test: it plays rows from a file, by a script."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from unbroken.connectors.base import Cut, Position, SourceConnector, SourceReader
from unbroken.data.rows.parsed import Rows
from unbroken.errors import Flaw, UnbrokenError
from unbroken.testing.input.files import GO, RunFiles
from unbroken.testing.input.script import Script, SourceHeld, SourcePlace

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HOLD_DEADLINE_S = 600.0
"""How long a source waits at a hold. Whoever runs the test has a deadline of its own and ends the node before."""


class Played(SourceConnector):
    """Rows from a file, cut as a script says. The schema is that of the source whose place it takes."""

    def __init__(self, name: str, schema: StructType, script: Script, root: Path) -> None:
        self.name = name
        self.script = script
        self.root = root
        self._schema = schema

    @property
    def schema(self) -> StructType:
        return self._schema

    def problems(self) -> list[Flaw]:
        return []

    def open(self) -> PlayedReader:
        return PlayedReader(self)


class PlayedReader(SourceReader):
    """The position is a `SourcePlace`, so a node that takes the lead goes on exactly where the last one was.

    While a hold is not over, ``poll`` does not come back: no pulse is cut meanwhile, which keeps the numbers of units
    the same in every run.
    """

    paces = True

    def __init__(self, source: Played) -> None:
        self._source = source
        self._files = RunFiles(source.root)
        self._closed = threading.Event()
        with pa.memory_map(str(self._files.input(source.name))) as file:
            self._rows: pa.Table = pa.ipc.open_file(file).read_all()

    def poll(self, position: Position | None, now_ms: int) -> Cut:
        self._wait(GO)
        place = SourcePlace.from_json(position)
        script = self._source.script
        while not self._files.is_failing(self._source.name):
            following = script.after(place, now_ms, self._files.is_over)
            if not isinstance(following, SourceHeld):
                return Cut(following.to_json(), exhausted=script.ended(following))
            # What it waits for may be that it fails.
            self._wait(following.hold)
        stays = replace(place, unit=place.unit + 1)
        return Cut(stays.to_json(), reachable=False, why="the test lets it fail")

    def read(self, start: Position | None, end: Position) -> Rows:
        first, last = SourcePlace.from_json(start), SourcePlace.from_json(end)
        if last.row > first.row and self._files.is_failing(self._source.name):
            raise UnbrokenError(f"source {self._source.name} fails, as the test asked for")
        self._files.note_cut(self._source.name, last.unit, first.row, last.row)
        return Rows(self._rows.slice(first.row, last.row - first.row))

    def close(self) -> None:
        self._closed.set()

    def _wait(self, hold: str) -> None:
        if self._files.is_over(hold):
            return
        if not self._files.wait_over(hold, self._closed.is_set, HOLD_DEADLINE_S):
            raise UnbrokenError(f"source {self._source.name} was not told to go on at {hold}")
