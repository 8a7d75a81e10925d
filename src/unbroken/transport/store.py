"""Units on disk: one Arrow IPC file per unit, written once, shared between outbox and inbox by hard links."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pyarrow as pa

from unbroken.protocol.ids import ReplicaId, StreamId
from unbroken.protocol.units import UnitHeader

HEADER_KEY = b"unbroken.unit"


def encode_unit(header: UnitHeader, table: pa.Table) -> pa.Buffer:
    """The unit as one Arrow IPC file image, its header in the schema's metadata."""
    tagged = table.replace_schema_metadata({HEADER_KEY: header.to_bytes()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, tagged.schema) as writer:
        writer.write_table(tagged)
    return sink.getvalue()


def decode_unit(data: pa.Buffer | bytes) -> tuple[UnitHeader, pa.Table]:
    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    return read_header(table.schema), table.replace_schema_metadata(None)


def read_header(schema: pa.Schema) -> UnitHeader:
    return UnitHeader.from_bytes((schema.metadata or {})[HEADER_KEY])


def unit_name(number: int) -> str:
    return f"{number:012d}.arrow"


class UnitStore:
    """The unit files of one node, in the directories of its replicas.

    ``<replica>/outbox/<stream>/`` holds what a replica here produced, ``<replica>/inbox/<stream>/`` what arrived for
    it. A file appears under its name only when it is complete (rename), and is never changed. ``<replica>/owed/`` has a
    file per stream that says what the units of an outbox are good for, and is replaced as a whole.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: set[Path] = set()

    def inbox_dir(self, replica: ReplicaId) -> Path:
        return self.root / str(replica) / "inbox"

    def inbox_path(self, replica: ReplicaId, stream: StreamId, number: int) -> Path:
        return self.inbox_dir(replica) / str(stream) / unit_name(number)

    def outbox_dir(self, replica: ReplicaId) -> Path:
        return self.root / str(replica) / "outbox"

    def outbox_path(self, replica: ReplicaId, stream: StreamId, number: int) -> Path:
        return self.outbox_dir(replica) / str(stream) / unit_name(number)

    def owed_dir(self, replica: ReplicaId) -> Path:
        return self.root / str(replica) / "owed"

    def note_owed(self, replica: ReplicaId, stream: StreamId, owed: int, valid: int) -> None:
        self.write(self.owed_dir(replica) / f"{stream}.txt", f"{owed} {valid}".encode())

    def owed(self, replica: ReplicaId, stream: StreamId) -> tuple[int, int]:
        """What was noted last; nothing if a crash of the whole machine has lost it."""
        try:
            owed, valid = (self.owed_dir(replica) / f"{stream}.txt").read_text().split()
            return int(owed), int(valid)
        except (OSError, ValueError):
            return 0, 0

    def forget(self, replica: ReplicaId) -> None:
        """The directory of a replica is gone."""
        self._made = {path for path in self._made if self.root / str(replica) not in path.parents}

    def write(self, path: Path, data: pa.Buffer | bytes) -> None:
        self._directory(path)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            file.write(memoryview(data))
        partial.rename(path)

    def link(self, source: Path, target: Path) -> None:
        self._directory(target)
        with contextlib.suppress(FileExistsError):
            os.link(source, target)

    def read(self, path: Path) -> pa.Buffer:
        with pa.memory_map(str(path)) as source:
            return source.read_buffer()

    def drop(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def _directory(self, path: Path) -> None:
        if path.parent not in self._made:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(path.parent)


def stored_headers(directory: Path) -> dict[StreamId, list[UnitHeader]]:
    """The headers of the units below ``directory``, by stream and in order; what cannot be read is removed.

    Only a file that a crash of the whole machine cut short cannot be read. It is as good as never written: others have
    the unit, or it is produced again.
    """
    out: dict[StreamId, list[UnitHeader]] = {}
    if not directory.is_dir():
        return out
    for stream in sorted(directory.iterdir()):
        headers = out.setdefault(StreamId.parse(stream.name), [])
        for path in sorted(stream.iterdir()):
            try:
                with pa.memory_map(str(path)) as source:
                    headers.append(read_header(pa.ipc.open_file(source).schema))
            except (pa.ArrowException, OSError, KeyError, ValueError):
                path.unlink(missing_ok=True)
    return out
