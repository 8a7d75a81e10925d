"""The ingress log on disk: length-prefixed entries in segment files, dropped from the front when done with."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from unbroken.errors import UnbrokenError
from unbroken.ingress.base import FILE_NAME, IngressBase
from unbroken.protocol.ingress import Entry

SEGMENT_BYTES = 4 * 1024 * 1024
"""Size at which a segment file is closed; whole segments are deleted, so this is the slack of the trimming."""

BASE_PULSES = 20
"""Pulses between two bases if no segment can be deleted: a restart repeats that many, and a sync is not free."""

LINK_ATTEMPTS = 100
"""Times a base that vanishes while it is linked is looked for again; it is replaced once in twenty pulses."""

_LENGTHS = struct.Struct(">II")


class IngressLogFile:
    """Appends entries to ``<number>-<first index>.log`` files; files are numbered in the order they are written.

    An entry written again replaces the earlier one and everything that followed it, as in the log in memory.
    ``append`` flushes to the operating system: an acknowledged entry survives the kill of every process. A file
    that an earlier process left is never appended to, because it may end in a torn entry.

    ``base.json`` stands for the entries that are done with. It is written before they are deleted, so base and
    entries together are always the whole log. One thread appends, another may trim or pin meanwhile.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        self._base = IngressBase.read(directory) or IngressBase()
        self._lock = threading.Lock()

    @property
    def base(self) -> IngressBase:
        """The base on disk; the empty one if there is none."""
        return self._base

    def append(self, entry: Entry) -> None:
        head = json.dumps([entry.index, entry.term, entry.pulse, entry.final]).encode()
        with self._lock:
            if self._file is None or self._file.tell() >= SEGMENT_BYTES:
                self._open(entry.index)
            file = self._file
            assert file is not None
            file.write(_LENGTHS.pack(len(head), len(entry.body)) + head + entry.body)
            file.flush()

    def read(self) -> list[Entry]:
        """The entries after the base in order; a torn entry at the end was never acknowledged and is left out."""
        return [entry for entry in self.read_all() if entry.index > self._base.index]

    def read_waiting(self) -> list[Entry]:
        """The pushes before the base that are cut by a pulse after it."""
        wanted = {index for indexes in self._base.waiting.values() for index in indexes}
        return [entry for entry in self.read_all() if entry.index in wanted] if wanted else []

    def read_all(self) -> list[Entry]:
        """Every entry on disk, also those that only share a file with one that is needed."""
        entries: dict[int, Entry] = {}
        for path in self._segments():
            for entry in _entries_in(path):
                while entries and next(reversed(entries)) >= entry.index:
                    entries.popitem()
                entries[entry.index] = entry
        return list(entries.values())

    def rebase(self, base: IngressBase) -> bool:
        """Go on from ``base`` and delete the segments that it makes needless; False if it is not worth it yet."""
        if base.index <= self._base.index:
            return False
        needless = self._needless(base.done_through)
        if not needless and not base.finished and base.pulse - self._base.pulse < BASE_PULSES:
            return False
        base.write(self._directory)
        self._base = base
        with self._lock:
            for path in needless:
                path.unlink(missing_ok=True)
        return True

    def pin(self, target: Path) -> None:
        """Make ``target`` a log as this one is at this moment, which stays so whatever happens to this one.

        The files share their bytes, except the one that is being written.
        """
        target.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._link_base(target)
            for path in self._segments():
                if path != self._path or self._file is None:
                    os.link(path, target / path.name)
                    continue
                with path.open("rb") as source, (target / path.name).open("xb") as copy:
                    copy.write(source.read(self._file.tell()))

    def _link_base(self, target: Path) -> None:
        """Link the base, if there is one. A base that is replaced at this moment is not found either."""
        base = self._directory / FILE_NAME
        for _ in range(LINK_ATTEMPTS):
            if not base.exists():
                return
            with contextlib.suppress(FileNotFoundError):
                os.link(base, target / FILE_NAME)
                return
        raise UnbrokenError(f"{base} is replaced all the time and cannot be pinned")

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            # On a full disk this fails; what could not be written was never acknowledged.
            with contextlib.suppress(OSError):
                file.close()

    def _open(self, first: int) -> None:
        self._close()
        present = self._segments()
        number = int(present[-1].stem.partition("-")[0]) + 1 if present else 1
        self._path = self._directory / f"{number:08d}-{first:016d}.log"
        self._file = self._path.open("xb")

    def _needless(self, through: int) -> list[Path]:
        """The segments of which only entries up to ``through`` are left."""
        pairs = pairwise(self._segments())
        return [path for path, following in pairs if int(following.stem.partition("-")[2]) <= through + 1]

    def _segments(self) -> list[Path]:
        return sorted(self._directory.glob("*.log"))


def _entries_in(path: Path) -> Iterator[Entry]:
    """The whole entries of a segment file."""
    data = path.read_bytes()
    at = 0
    while at + _LENGTHS.size <= len(data):
        head_length, body_length = _LENGTHS.unpack_from(data, at)
        end = at + _LENGTHS.size + head_length + body_length
        if end > len(data):
            return
        head = json.loads(data[at + _LENGTHS.size : at + _LENGTHS.size + head_length])
        index, term, pulse, final = int(head[0]), int(head[1]), int(head[2]), bool(head[3])
        yield Entry(index, term, data[end - body_length : end], pulse, final)
        at = end
