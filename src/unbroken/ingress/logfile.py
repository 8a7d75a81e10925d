"""The ingress log on disk: length-prefixed entries in segment files, dropped from the front when done with."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from unbroken.protocol.ingress import Entry

SEGMENT_BYTES = 16 * 1024 * 1024
"""Size at which a segment file is closed; whole segments are deleted, so this is the slack of the trimming."""

_LENGTHS = struct.Struct(">II")


class IngressLogFile:
    """Appends entries to ``<number>-<first index>.log`` files; files are numbered in the order they are written.

    An entry written again replaces the earlier one and everything that followed it, as in the log in memory.
    ``append`` flushes to the operating system: an acknowledged entry survives the kill of every process. A file
    that an earlier process left is never appended to, because it may end in a torn entry.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = None

    def append(self, entry: Entry) -> None:
        if self._file is None or self._file.tell() >= SEGMENT_BYTES:
            self._open(entry.index)
        head = json.dumps([entry.index, entry.term, entry.pulse, entry.final]).encode()
        file = self._file
        assert file is not None
        file.write(_LENGTHS.pack(len(head), len(entry.body)) + head + entry.body)
        file.flush()

    def read(self) -> list[Entry]:
        """Every entry on disk in order; a torn entry at the end was never acknowledged and is left out."""
        entries: dict[int, Entry] = {}
        for path in self._segments():
            data = path.read_bytes()
            at = 0
            while at + _LENGTHS.size <= len(data):
                head_length, body_length = _LENGTHS.unpack_from(data, at)
                end = at + _LENGTHS.size + head_length + body_length
                if end > len(data):
                    break
                head = json.loads(data[at + _LENGTHS.size : at + _LENGTHS.size + head_length])
                index, term, pulse, final = int(head[0]), int(head[1]), int(head[2]), bool(head[3])
                while entries and next(reversed(entries)) >= index:
                    entries.popitem()
                entries[index] = Entry(index, term, data[end - body_length : end], pulse, final)
                at = end
        return list(entries.values())

    def trim(self, through: int) -> None:
        """Delete segments of which only entries up to ``through`` are left."""
        segments = self._segments()
        for path, following in pairwise(segments):
            if int(following.stem.partition("-")[2]) <= through + 1:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, first: int) -> None:
        self.close()
        present = self._segments()
        number = int(present[-1].stem.partition("-")[0]) + 1 if present else 1
        self._file = (self._directory / f"{number:08d}-{first:016d}.log").open("xb")

    def _segments(self) -> list[Path]:
        return sorted(self._directory.glob("*.log"))
