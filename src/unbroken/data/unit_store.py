"""Units on disk: a checksum and an Arrow IPC file image, written once, shared by outbox and inbox as hard links."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from unbroken.data.checksum import Damaged, crc32c, sealed, unsealed
from unbroken.protocol.instructions import NoteOwed
from unbroken.protocol.repair.rebuilt_state import Rebuilt
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.units import UnitHeader

log = logging.getLogger(__name__)

HEADER_KEY = b"unbroken.unit"

_PREFIX = struct.Struct(">8sQI40sI")
_MAGIC = b"unbroken"
"""Before the image: what it is, how long it is, its checksum, and the checksum of all this; as long as what Arrow
aligns its buffers to."""

REFETCH = "Let the node fetch the unit from a producer: restart the node."


class Torn(Damaged):
    """A file of a unit that a crash of the machine cut short: as good as never written."""


def encode_unit(header: UnitHeader, table: pa.Table) -> pa.Buffer:
    """The unit as it is sent and kept: a checksum and an Arrow IPC file image, with its header in the schema."""
    tagged = table.replace_schema_metadata({HEADER_KEY: header.to_bytes()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, tagged.schema) as writer:
        writer.write_table(tagged)
    image = sink.getvalue()
    prefix = _PREFIX.pack(_MAGIC, image.size, crc32c(image), b"", 0)[:-4]
    return pa.py_buffer(b"".join((prefix, crc32c(prefix).to_bytes(4, "big"), image)))


def open_unit(data: pa.Buffer | bytes, where: Path | str = "a unit that was sent") -> pa.Table:
    """The rows of a unit with its header in the schema's metadata.

    Raises Damaged before Arrow sees a byte that is not as it was written: Arrow trusts its files, and may end the
    process over one.
    """
    image = checked(data, where)
    try:
        return pa.ipc.open_file(pa.BufferReader(image)).read_all()
    except (pa.ArrowException, OSError) as error:  # it is not what `encode_unit` writes, and all there is is in memory
        raise Damaged(where, f"it is no Arrow file: {error}", REFETCH) from None


def checked(data: pa.Buffer | bytes, where: Path | str) -> pa.Buffer:
    """The Arrow IPC file image of a unit, if it is as it was written."""
    whole = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    prefix = whole.slice(0, min(_PREFIX.size, whole.size)).to_pybytes()
    if whole.size < _PREFIX.size or not any(prefix):
        raise Torn(where, "it ends too early", REFETCH)
    magic, size, checksum, _, own = _PREFIX.unpack(prefix)
    if magic != _MAGIC or own != crc32c(prefix[:-4]):
        raise Damaged(where, "the checksum of its beginning is wrong", REFETCH)
    if whole.size < _PREFIX.size + size:
        raise Torn(where, f"it has {whole.size} bytes instead of {_PREFIX.size + size}", REFETCH)
    image = whole.slice(_PREFIX.size)
    if image.size != size or crc32c(image) != checksum:
        raise Damaged(where, "its checksum is wrong", REFETCH)
    return image


def decode_unit(data: pa.Buffer | bytes, where: Path | str = "a unit that was sent") -> tuple[UnitHeader, pa.Table]:
    table = open_unit(data, where)
    return read_header(table.schema, where), table.replace_schema_metadata(None)


def read_header(schema: pa.Schema, where: Path | str = "a unit that was sent") -> UnitHeader:
    """The header in a unit's schema; raises Damaged if there is none that can be read."""
    try:
        return UnitHeader.from_bytes((schema.metadata or {})[HEADER_KEY])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise Damaged(where, f"its header is not one: {type(error).__name__}", REFETCH) from None


def unit_name(number: int) -> str:
    return f"{number:012d}.arrow"


OWED = ".json"


def owed_name(stream: StreamId) -> str:
    return f"{stream}{OWED}"


def owed_bytes(note: NoteOwed) -> bytes:
    return sealed(json.dumps([note.owed, note.rebuilt.to_json()]).encode())


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

    def receives(self, replica: ReplicaId, stream: StreamId) -> bool:
        """Whether a replica here has an inbox for the stream; what others ask for may name any place on the disk."""
        plain = not any(part in (os.curdir, os.pardir) or os.sep in part for part in (str(replica), str(stream)))
        return plain and (self.inbox_dir(replica) / str(stream)).is_dir()

    def outbox_dir(self, replica: ReplicaId) -> Path:
        return self.root / str(replica) / "outbox"

    def outbox_path(self, replica: ReplicaId, stream: StreamId, number: int) -> Path:
        return self.outbox_dir(replica) / str(stream) / unit_name(number)

    def owed_dir(self, replica: ReplicaId) -> Path:
        return self.root / str(replica) / "owed"

    def note_owed(self, note: NoteOwed) -> None:
        self.write(self.owed_dir(note.replica) / owed_name(note.stream), owed_bytes(note))

    def owed_notes(self, replica: ReplicaId) -> list[Path]:
        """The files with what is owed of each stream; they belong to every copy of the replica."""
        return sorted(self.owed_dir(replica).glob(f"*{OWED}"))

    def owed(self, replica: ReplicaId) -> dict[StreamId, tuple[int, Rebuilt]]:
        """What was noted last for each stream; nothing if a crash of the whole machine has lost it."""
        out: dict[StreamId, tuple[int, Rebuilt]] = {}
        for path in self.owed_notes(replica):
            try:
                owed, rebuilt = json.loads(unsealed(path, path.read_bytes(), ""))
                out[StreamId.parse(path.name.removesuffix(OWED))] = int(owed), Rebuilt.from_json(rebuilt)
            except Damaged as error:
                log.warning("what is owed of %s is not known: %s", path.name.removesuffix(OWED), error)
            except (ValueError, TypeError, AttributeError, RecursionError):
                log.warning("what is owed of %s cannot be read", path.name.removesuffix(OWED))
        return out

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
        """A unit as it was written; raises Damaged if it has changed."""
        with pa.memory_map(str(path)) as source:
            data = source.read_buffer()
        checked(data, path)
        return data

    def drop(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def _directory(self, path: Path) -> None:
        if path.parent not in self._made:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(path.parent)


@dataclass
class StoredHeaders:
    """The units in an inbox or outbox: their headers, by stream and in order, and the numbers of damaged ones."""

    headers: dict[StreamId, list[UnitHeader]] = field(default_factory=dict)
    damaged: dict[StreamId, list[int]] = field(default_factory=dict)


def stored_headers(directory: Path) -> StoredHeaders:
    """What is below ``directory``; a unit that is damaged is removed.

    A file that a crash of the whole machine cut short is as good as never written: others have the unit, or it is
    recomputed. One that has changed since it was written was there, and is reported.

    Raises
    ------
    OSError
        If a file cannot be read at this moment (too many open files, a disk that fails): nothing is known of it then.
    """
    out = StoredHeaders()
    if not directory.is_dir():
        return out
    for place in sorted(directory.iterdir()):
        stream = StreamId.parse(place.name)
        headers = out.headers.setdefault(stream, [])
        for path in sorted(place.iterdir()):
            try:
                headers.append(_stored_header(path))
                continue
            except Torn:
                pass
            except Damaged as error:
                if path.stem.isdigit():
                    log.warning("%s", error)
                    out.damaged.setdefault(stream, []).append(int(path.stem))
            path.unlink(missing_ok=True)
    return out


def _stored_header(path: Path) -> UnitHeader:
    with pa.memory_map(str(path)) as source:
        image = checked(source.read_buffer(), path)
        try:
            return read_header(pa.ipc.open_file(pa.BufferReader(image)).schema, path)
        except (pa.ArrowException, OSError) as error:
            raise Damaged(path, f"it has no header: {error}", REFETCH) from error
