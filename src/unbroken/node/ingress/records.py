"""The entries of a segment of the ingress log as bytes: lengths, what the entry is, its body, and checksums.

The lengths have a checksum of their own. So a file that ends within an entry, which a crash leaves, is told from one in
which a bit has changed: only with lengths that are right can it be known where the entry should have ended.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.data.checksum import Damaged, crc32c
from unbroken.data.files import SYSTEM_FILES, FileSystem
from unbroken.protocol.ingress.log import Entry

_LENGTHS = struct.Struct(">II")
_SUM = struct.Struct(">I")
_HEAD = _LENGTHS.size + _SUM.size


@dataclass(frozen=True)
class _EntryHead:
    """An entry without its body, which is written as it is."""

    index: int
    term: int
    pulse: int
    final: bool


_ENTRY = Codec(_EntryHead, "entry")


@dataclass(frozen=True)
class LogSegment:
    """The whole entries of a segment file, and where they end: what follows is an entry that was torn."""

    entries: tuple[Entry, ...]
    end: int
    torn: bool


def entry_head(entry: Entry) -> bytes:
    """What is written of an entry besides its body."""
    return _ENTRY.encode(_EntryHead(entry.index, entry.term, entry.pulse, entry.final))


def entry_bytes(entry: Entry) -> bytes:
    """An entry as it is written."""
    head = entry_head(entry)
    lengths = _LENGTHS.pack(len(head), len(entry.body))
    return b"".join(
        (lengths, _SUM.pack(crc32c(lengths)), head, entry.body, _SUM.pack(crc32c(lengths, head, entry.body)))
    )


def read_segment(path: Path, files: FileSystem = SYSTEM_FILES) -> LogSegment:
    """Read a segment file; raises Damaged if something in it has changed since it was written."""
    data = files.read(path)
    found = list(_entries(path, data))
    end = found[-1][1] if found else 0
    return LogSegment(tuple(entry for entry, _ in found), end, end < len(data))


def _entries(path: Path, data: bytes) -> Iterator[tuple[Entry, int]]:
    """The whole entries, each with the place at which it ends."""
    at, written = 0, _written(data)
    while at + _HEAD <= len(data):
        lengths = data[at : at + _LENGTHS.size]
        if _SUM.unpack_from(data, at + _LENGTHS.size)[0] != crc32c(lengths):
            if written < at + _HEAD:
                return
            raise _damaged(path, at)
        head_length, body_length = _LENGTHS.unpack(lengths)
        body = at + _HEAD + head_length
        end = body + body_length + _SUM.size
        if end > len(data):
            return
        head_bytes, body_bytes = data[at + _HEAD : body], data[body : body + body_length]
        if _SUM.unpack_from(data, end - _SUM.size)[0] != crc32c(lengths, head_bytes, body_bytes):
            if written < end:
                return
            raise _damaged(path, at)
        yield _entry(path, at, head_bytes, body_bytes), end
        at = end


def _written(data: bytes) -> int:
    """Where the zeros begin that a file ends in: blocks that the file system had reserved, and not written when the
    power failed. Fewer than a checksum has may be part of one."""
    end = len(data.rstrip(b"\0"))
    return end if len(data) - end >= _SUM.size else len(data)


def _entry(path: Path, at: int, head: bytes, body: bytes) -> Entry:
    """The entry of these bytes, whose checksum is right; one that another program wrote may be anything."""
    try:
        found = _ENTRY.decode(head)
        return Entry(found.index, found.term, body, found.pulse, found.final)
    except Undecodable as error:
        raise _damaged(path, at, f"the entry at byte {at} is not one: {error}") from None


def _damaged(path: Path, at: int, reason: str = "") -> Damaged:
    return Damaged(
        path,
        reason or f"the checksum of the entry at byte {at} is wrong",
        "Let the node copy the ingress log from another member; without one, cut the file off there: "
        f"truncate -s {at} {path}",
    )
