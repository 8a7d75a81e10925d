"""Sinks that write files, and those that clients read."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.connectors.base import SinkConnector, SinkWriter
from unbroken.connectors.files.publication import publish, remove_leftovers
from unbroken.connectors.files.run_file import RunFile
from unbroken.connectors.files.tentative_files import TentativeFiles
from unbroken.connectors.location import elsewhere, local_path
from unbroken.data.rows.json.output import json_lines
from unbroken.errors import Flaw, UnbrokenError
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.run import RunIdentity
from unbroken.protocol.values.units import UnitHeader
from unbroken.quantities import is_number, shown

METADATA_KEY = b"unbroken"
"""The entry of a Parquet file's metadata that says which unit it is: a `StableFile` or a `TentativeFile`."""


@dataclass(frozen=True)
class StableFile:
    """The unit in a file of a sink."""

    stream: StreamId
    run: str
    number: int
    pulse: int
    cut_ms: int


@dataclass(frozen=True)
class TentativeFile:
    """A tentative unit in a file of a sink, which covers the pulses after ``since`` up to ``pulse``."""

    stream: StreamId
    run: str
    since: int
    pulse: int


UNIT_FILE: Codec[StableFile | TentativeFile] = Codec(StableFile | TentativeFile, "unit-file", readable=True)


def unit_in(schema: pa.Schema) -> StableFile | TentativeFile:
    """The unit that a Parquet file says it is; Undecodable if it does not say that."""
    return UNIT_FILE.decode((schema.metadata or {}).get(METADATA_KEY, b""))


def unit_file(header: UnitHeader, suffix: str, earlier: int = 0) -> str:
    """The name of a unit's file: its stream and number, sorting in the order of the stream.

    Where ``earlier`` runs have left their results, it also has the number of the run.
    """
    run = f"-run{earlier + 1}" if earlier else ""
    return f"{str(header.stream).replace('>', '-to-')}{run}-{header.number:010d}.{suffix}"


class _FileSink(SinkConnector):
    """A directory with one file per unit, and tentative ones apart from them (`TentativeFiles`)."""

    suffix: str
    tentative = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = local_path(path)

    def problems(self) -> list[Flaw]:
        found = elsewhere(self.path, type(self).__name__, ", or use Delta, which writes to object stores")
        if found:
            return found
        if self.path.exists() and not self.path.is_dir():
            return [Flaw(f"{self.path} is not a directory", "name a directory for the files of this sink")]
        return []

    def occupied(self) -> str | None:
        return f"{self.path} holds results of an earlier run" if self._in_use() else None

    def runs(self) -> frozenset[str]:
        return frozenset(self.run_file.runs())

    def _in_use(self) -> bool:
        return self.path.is_dir() and (any(self.path.glob(f"*-to-*.{self.suffix}")) or self.tentative_files.any())

    @property
    def run_file(self) -> RunFile:
        return RunFile(self.path, self._in_use)

    @property
    def tentative_files(self) -> TentativeFiles:
        return TentativeFiles(self.path, self.suffix, self.run.id)

    @abstractmethod
    def write(self, header: UnitHeader, table: pa.Table, file: BinaryIO) -> None:
        """Write the content of a unit's file."""

    def check_same(self, header: UnitHeader, path: Path) -> None:
        """Raise UnbrokenError if the file that is there belongs to another run; where that can be told."""

    def open(self, flow_dir: Path) -> FileSinkWriter:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UnbrokenError(f"The directory {self.path} of a sink cannot be made: {error}") from error
        remove_leftovers(self.path)
        if self.run_file.last() == self.run.id:
            # What another run has left, or is writing, is none of this one's business until it has claimed the place.
            self.tentative_files.tidy_all()
        return FileSinkWriter(self)


class FileSinkWriter(SinkWriter):
    """Writes units as files; the file of a unit is also the record that it was delivered.

    A unit without rows needs no file: delivering it again changes nothing either. It takes the place of tentative ones
    as any other does. Before each, the run file is looked at: a run that another has superseded writes nothing more.
    """

    def __init__(self, sink: _FileSink) -> None:
        self._sink = sink
        self._tentative = sink.tentative_files

    def deliver(self, header: UnitHeader, table: pa.Table) -> bool:
        earlier = self._claim()
        written = table.num_rows == 0 or self._publish(header, table, earlier)
        if self._sink.tentative:
            # Also if the unit was there: whoever wrote it may have died before this.
            self._tentative.replace(header)
        return written

    def deliver_tentative(self, header: UnitHeader, table: pa.Table) -> bool:
        if table.num_rows == 0:
            return True
        self._claim()
        return self._tentative.put(header, lambda file: self._sink.write(header, table, file))

    def _claim(self) -> int:
        return self._sink.run_file.claim(self._sink.run, self._tentative.remove_all)

    def _publish(self, header: UnitHeader, table: pa.Table, earlier: int) -> bool:
        name = unit_file(header, self._sink.suffix, earlier)
        if publish(self._sink.path, name, lambda file: self._sink.write(header, table, file)):
            return True
        self._sink.check_same(header, self._sink.path / name)
        return False


class Parquet(_FileSink):
    """Each unit with rows becomes one Parquet file ``<stream>-<number>.parquet`` in a directory.

    The file's metadata says which unit it is (key ``unbroken``). Files appear whole, under their final name, once.
    Tentative units are below ``_tentative``, which readers leave out, until stable ones take their place.

    Parameters
    ----------
    path
        The directory, which the nodes share; it is made if it is not there.
    """

    suffix = "parquet"

    def write(self, header: UnitHeader, table: pa.Table, file: BinaryIO) -> None:
        unit = UNIT_FILE.encode(_unit(header, self.run))
        metadata = {**(table.schema.metadata or {}), METADATA_KEY: unit}
        pq.write_table(table.replace_schema_metadata(metadata), file)

    def check_same(self, header: UnitHeader, path: Path) -> None:
        try:
            there = unit_in(pq.read_schema(path))
        except OSError as error:
            if error.errno is not None:
                raise  # nothing is known of the file at this moment
            there = None
        except (Undecodable, pa.ArrowException):
            there = None
        if there != _unit(header, self.run):
            raise UnbrokenError(
                f"{path} is not the file of unit {header.number} of this run but of another; "
                f"give the sink an empty directory."
            )


class JsonLines(_FileSink):
    """Each unit with rows becomes one file ``<stream>-<number>.jsonl`` of JSON lines in a directory.

    Times are ISO-8601, binary is base64, decimals are strings, NaN is null. Files appear whole, once; tentative units
    below ``_tentative``, which readers leave out, until stable ones take their place.

    Parameters
    ----------
    path
        The directory, which the nodes share; it is made if it is not there.
    """

    suffix = "jsonl"

    def write(self, header: UnitHeader, table: pa.Table, file: BinaryIO) -> None:
        for lines in json_lines(table):
            file.write(lines)


class Client(SinkConnector):
    """Results for programs that subscribe to them; nodes keep the last units and deliver nothing."""

    client = True

    def problems(self) -> list[Flaw]:
        return []


class Console(Client):
    """Results on the screen of the process that runs the dataflow, which subscribes to them as a client.

    Parameters
    ----------
    limit
        Rows shown of each unit.
    """

    def __init__(self, limit: int = 20) -> None:
        self.limit = limit

    def problems(self) -> list[Flaw]:
        if is_number(self.limit) and self.limit >= 1:
            return []
        return [Flaw(f"The console's limit is {shown(self.limit)}", "show at least 1 row")]

    def render(self, header: UnitHeader, table: pa.Table, correction: bool = False) -> str:
        """What is shown of a unit: a line about it, then its first rows as JSON."""
        if header.stable:
            title = f"{header.stream} unit {header.number}{' (correction)' if correction else ''}"
        else:
            title = f"{header.stream} tentative, pulses {header.since + 1} to {header.pulse}"
        title += f", {table.num_rows} rows"
        shown = b"".join(json_lines(table.slice(0, self.limit))).decode().splitlines()
        more = table.num_rows - self.limit
        return "\n".join([title, *(f"  {line}" for line in shown), *([f"  and {more} more"] if more > 0 else [])])


def _unit(header: UnitHeader, run: RunIdentity) -> StableFile | TentativeFile:
    if not header.stable:
        return TentativeFile(header.stream.home, run.id, header.since, header.pulse)
    return StableFile(header.stream, run.id, header.number, header.pulse, header.cut_ms)
