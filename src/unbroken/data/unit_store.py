"""Units on disk: a checksum and an Arrow IPC file image, written once, shared by outbox and inbox as hard links."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.data.checksum import Damaged, crc32c, sealed, unsealed
from unbroken.protocol.instructions import NoteOwed
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.protocol.values.units import UnitHeader

log = logging.getLogger(__name__)

HEADER_KEY = b"unbroken.unit"
HEADER = Codec(UnitHeader, "unit-header")

_PREFIX = struct.Struct(">8sQI40sI")
_MAGIC = b"unbroken"
"""Before the image: what it is, how long it is, its checksum, and the checksum of all this; as long as what Arrow
aligns its buffers to."""

REFETCH = "Let the node fetch the unit from a producer: restart the node."


class Torn(Damaged):
    """A file of a unit that a crash of the machine cut short: as good as never written."""


def encode_unit(header: UnitHeader, table: pa.Table) -> pa.Buffer:
    """The unit as it is sent and kept, in one piece."""
    return pa.py_buffer(b"".join(unit_parts(header, table)))


def unit_parts(header: UnitHeader, table: pa.Table) -> tuple[bytes, pa.Buffer]:
    """The unit as it is sent and kept: a checksum and an Arrow IPC file image, with its header in the schema.

    Two parts, because joining them would copy all rows.
    """
    tagged = table.replace_schema_metadata({HEADER_KEY: HEADER.encode(header)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, tagged.schema) as writer:
        writer.write_table(tagged)
    image = sink.getvalue()
    prefix = _PREFIX.pack(_MAGIC, image.size, crc32c(image), b"", 0)[:-4]
    return prefix + crc32c(prefix).to_bytes(4, "big"), image


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
    check = UnitCheck(where)
    check.add(whole)
    check.end()
    return whole.slice(_PREFIX.size)


class UnitCheck:
    """Verifies a unit whose bytes come in pieces, without keeping them.

    Both methods raise Damaged, the first as soon as the beginning of the unit tells. The first piece holds at least
    the prefix, unless the unit is cut short.
    """

    def __init__(self, where: Path | str) -> None:
        self._where = where
        self._began = False
        self._size = 0
        self._expected = 0
        self._checksum = 0
        self._value = 0

    def add(self, piece: pa.Buffer) -> None:
        if not self._began:
            self._began = True
            piece = self._begin(piece)
        self._size += piece.size
        self._value = crc32c(piece, value=self._value)

    def end(self) -> None:
        """No piece follows."""
        if self._size < self._expected:
            found, whole = _PREFIX.size + self._size, _PREFIX.size + self._expected
            raise Torn(self._where, f"it has {found} bytes instead of {whole}", REFETCH)
        if not self._began or self._size != self._expected or self._value != self._checksum:
            raise Damaged(self._where, "its checksum is wrong", REFETCH)

    def _begin(self, piece: pa.Buffer) -> pa.Buffer:
        """Take the prefix; the rest of its piece."""
        prefix = piece.slice(0, min(_PREFIX.size, piece.size)).to_pybytes()
        if len(prefix) < _PREFIX.size or not any(prefix):
            raise Torn(self._where, "it ends too early", REFETCH)
        magic, self._expected, self._checksum, _, own = _PREFIX.unpack(prefix)
        if magic != _MAGIC or own != crc32c(prefix[:-4]):
            raise Damaged(self._where, "the checksum of its beginning is wrong", REFETCH)
        return piece.slice(_PREFIX.size)


def decode_unit(data: pa.Buffer | bytes, where: Path | str = "a unit that was sent") -> tuple[UnitHeader, pa.Table]:
    table = open_unit(data, where)
    return read_header(table.schema, where), table.replace_schema_metadata(None)


def read_header(schema: pa.Schema, where: Path | str = "a unit that was sent") -> UnitHeader:
    """The header in a unit's schema; raises Damaged if there is none that can be read."""
    try:
        return HEADER.decode((schema.metadata or {}).get(HEADER_KEY, b""))
    except Undecodable as error:
        raise Damaged(where, str(error), REFETCH) from None


def unit_name(number: int) -> str:
    return f"{number:012d}.arrow"


OWED = ".json"


@dataclass(frozen=True)
class Owed:
    """The content of a file of ``<replica>/owed``, see `NoteOwed`."""

    owed: int
    rebuilt: Rebuilt


_OWED = Codec(Owed, "owed", readable=True)


def owed_name(stream: StreamId) -> str:
    return f"{stream}{OWED}"


def owed_bytes(note: NoteOwed) -> bytes:
    return sealed(_OWED.encode(Owed(note.owed, note.rebuilt)))


class UnitLocations:
    """Where units are on this disk, by header, so that a second copy need not be written. Any thread may use it.

    It forgets a path before what is there changes; whoever finds a path may find no file there any longer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[UnitHeader, Path] = {}
        self._headers: dict[Path, UnitHeader] = {}
        self._written: set[UnitHeader] = set()

    def begin(self, header: UnitHeader) -> bool:
        """A copy is about to be written; False if another one is being written at this moment."""
        with self._lock:
            begins = header not in self._written
            self._written.add(header)
            return begins

    def end(self, header: UnitHeader) -> None:
        """The copy that was begun is kept, or given up."""
        with self._lock:
            self._written.discard(header)

    def keep(self, header: UnitHeader, path: Path) -> None:
        """The unit is at ``path``; of several copies the last one is remembered."""
        with self._lock:
            self._forget(path)
            before = self._paths.get(header)
            if before is not None:
                del self._headers[before]
            self._paths[header] = path
            self._headers[path] = header

    def find(self, header: UnitHeader) -> Path | None:
        with self._lock:
            return self._paths.get(header)

    def forget(self, path: Path) -> None:
        with self._lock:
            self._forget(path)

    def forget_below(self, directory: Path) -> None:
        with self._lock:
            for path in [path for path in self._headers if directory in path.parents]:
                self._forget(path)

    def _forget(self, path: Path) -> None:
        header = self._headers.pop(path, None)
        if header is not None:
            del self._paths[header]


class UnitStore:
    """The unit files of one node, in the directories of its replicas.

    ``<replica>/outbox/<stream>/`` holds what a replica here produced, ``<replica>/inbox/<stream>/`` what arrived for
    it. A file appears under its name only when it is complete (rename), and is never changed. ``<replica>/owed/`` has a
    file per stream that says what the units of an outbox are good for, and is replaced as a whole.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.copies = UnitLocations()
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

    def note_owed(self, note: NoteOwed) -> bool:
        """Replace what is noted of a stream; False if the directory of the replica is gone, and nothing is noted.

        May be called by any thread, one at a time.
        """
        place = self.owed_dir(note.replica)
        path = place / owed_name(note.stream)
        partial = path.with_suffix(".partial")
        try:
            place.mkdir(exist_ok=True)
            partial.write_bytes(owed_bytes(note))
            partial.rename(path)
        except FileNotFoundError:
            return False
        return True

    def owed_notes(self, replica: ReplicaId) -> list[Path]:
        """The files with what is owed of each stream; they belong to every copy of the replica."""
        return sorted(self.owed_dir(replica).glob(f"*{OWED}"))

    def owed(self, replica: ReplicaId) -> dict[StreamId, tuple[int, Rebuilt]]:
        """What was noted last for each stream; nothing if a crash of the whole machine has lost it."""
        out: dict[StreamId, tuple[int, Rebuilt]] = {}
        for path in self.owed_notes(replica):
            try:
                note = _OWED.decode(unsealed(path, path.read_bytes(), ""))
                out[StreamId.parse(path.name.removesuffix(OWED))] = note.owed, note.rebuilt
            except (Damaged, Undecodable, ValueError) as error:
                log.warning("what is owed of %s is not known: %s", path.name.removesuffix(OWED), error)
        return out

    def forget(self, replica: ReplicaId) -> None:
        """The directory of a replica is gone."""
        self._made = {path for path in self._made if self.root / str(replica) not in path.parents}
        self.copies.forget_below(self.root / str(replica))

    def write(self, path: Path, *parts: pa.Buffer | bytes) -> None:
        """Write a file whose content is ``parts``, one after the other."""
        self._directory(path)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            for part in parts:
                file.write(memoryview(part))
        self.copies.forget(path)
        partial.rename(path)

    def adopt(self, source: Path, target: Path, header: UnitHeader) -> None:
        """Make a whole file on the same disk that of a unit, in the place of one that may be there; no byte moves."""
        self._directory(target)
        self.copies.forget(source)
        source.rename(target)
        self.copies.keep(header, target)

    def release(self, path: Path, target: Path) -> None:
        """Give the file of a unit another name, which is for the caller to remove."""
        self.copies.forget(path)
        path.rename(target)

    def link(self, source: Path, target: Path, header: UnitHeader | None = None) -> None:
        """Give a file a second name; ``header`` is that of its unit, if later copies may share it."""
        self._directory(target)
        with contextlib.suppress(FileExistsError):
            os.link(source, target)
        if header is not None:
            self.copies.keep(header, target)

    def read(self, path: Path) -> pa.Buffer:
        """A unit as it was written; raises Damaged if it has changed."""
        with pa.memory_map(str(path)) as source:
            data = source.read_buffer()
        checked(data, path)
        return data

    def drop(self, path: Path) -> None:
        self.copies.forget(path)
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
