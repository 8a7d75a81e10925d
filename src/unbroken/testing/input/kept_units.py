"""The sink that takes the place of a flow's own in a test: every unit that comes is kept in a file, and read again.

Nodes write them as they would to any sink, so a unit that is delivered twice, or never, shows as it would there. A sink
that knows its units (`idempotent`) keeps one copy; one that does not keeps all of them.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from unbroken.codecs.codec import Codec
from unbroken.connectors.base import SinkConnector, SinkWriter
from unbroken.connectors.files.publication import publish
from unbroken.errors import Flaw
from unbroken.protocol.values.units import UnitHeader

HEADER_KEY = b"unbroken.testing"
"""Where a file's metadata says which unit it is and when it came."""

SUFFIX = ".arrow"


@dataclass(frozen=True)
class KeptMark:
    """Which unit came to a sink, and when: unit ``number`` of shard ``shard`` of the segment before it.

    ``pulse`` is the last cut of the sources that is in it, ``cut_ms`` when that was made and ``arrived_ms`` when the
    unit was in the sink. A ``tentative`` one was made without input that was missing.
    """

    shard: int
    number: int
    pulse: int
    cut_ms: int
    arrived_ms: float
    final: bool
    tentative: bool


KEPT_MARK = Codec(KeptMark, "kept-unit", readable=True)


@dataclass(frozen=True)
class KeptUnit(KeptMark):
    """A unit as it came to a sink."""

    table: pa.Table


class KeepingSink(SinkConnector):
    """Keeps units in a directory; ``instead_of`` is the sink that it stands for, and takes what that one takes."""

    def __init__(self, path: Path, instead_of: SinkConnector) -> None:
        self.path = path
        self.identity = instead_of.identity
        self.idempotent = instead_of.idempotent
        # Whoever reads a client sink is shown tentative results, too.
        self.tentative = instead_of.tentative or instead_of.client

    def problems(self) -> list[Flaw]:
        return []

    def open(self, flow_dir: Path) -> KeptWriter:
        self.path.mkdir(parents=True, exist_ok=True)
        return KeptWriter(self)


class KeptWriter(SinkWriter):
    """Writes one file for each unit, also for those without rows: what is missing is then known to be lost."""

    def __init__(self, sink: KeepingSink) -> None:
        self._sink = sink

    def deliver(self, header: UnitHeader, table: pa.Table) -> bool:
        copy = "" if self._sink.idempotent else f"-{uuid.uuid4().hex}"
        return self._keep(f"{header.stream.producer.index}-{header.number:010d}{copy}{SUFFIX}", header, table)

    def deliver_tentative(self, header: UnitHeader, table: pa.Table) -> bool:
        shard = header.stream.home.producer.index
        name = f"tentative-{shard}-{header.pulse:010d}-{header.since:010d}{SUFFIX}"
        return self._keep(name, header, table)

    def _keep(self, name: str, header: UnitHeader, table: pa.Table) -> bool:
        def write(file: BinaryIO) -> None:
            unit = KeptMark(
                shard=header.stream.home.producer.index,
                number=header.number,
                pulse=header.pulse,
                cut_ms=header.cut_ms,
                arrived_ms=time.time() * 1000,
                final=header.final,
                tentative=not header.stable,
            )
            schema = table.schema.with_metadata({HEADER_KEY: KEPT_MARK.encode(unit)})
            with pa.ipc.new_file(file, schema) as out:
                out.write_table(table.cast(schema))

        return publish(self._sink.path, name, write)


def read_kept(path: Path) -> KeptUnit:
    """The unit in a file that a `KeptWriter` has written."""
    with pa.OSFile(str(path), "rb") as file:
        table = pa.ipc.open_file(file).read_all()
    mark = KEPT_MARK.decode(table.schema.metadata[HEADER_KEY])
    return KeptUnit(**asdict(mark), table=table.replace_schema_metadata(None))


class KeptUnits:
    """What has come to the sinks of a run, looked at again and again."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders
        self._seen: set[Path] = set()
        self.units: dict[str, list[KeptUnit]] = {sink: [] for sink in folders}

    def look(self) -> list[KeptUnit]:
        """Read what is there that was not there before."""
        found: list[KeptUnit] = []
        for sink, folder in self._folders.items():
            for path in _listed(folder):
                if path not in self._seen:
                    self._seen.add(path)
                    unit = read_kept(path)
                    self.units[sink].append(unit)
                    found.append(unit)
        return found

    def ended(self, sink: str, shards: int) -> bool:
        """Whether the final unit of every shard has come."""
        return {unit.shard for unit in self.units[sink] if unit.final} >= set(range(shards))


def _listed(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        names = (entry.name for entry in entries)
        return sorted(folder / name for name in names if name.endswith(SUFFIX) and not name.startswith("."))
    return []
