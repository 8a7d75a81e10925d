"""The ingress log on disk: entries with checksums in segment files, dropped from the front when done with."""

from __future__ import annotations

import contextlib
import threading
from itertools import pairwise
from pathlib import Path

from unbroken.data.checksum import Damaged
from unbroken.data.files import SYSTEM_FILES, FileSystem, NewFile
from unbroken.errors import UnbrokenError
from unbroken.node.ingress.base import FILE_NAME, IngressBase
from unbroken.node.ingress.records import entry_bytes, read_segment
from unbroken.protocol.ingress.log import Admission, Entry
from unbroken.protocol.values.recovery import LogState

SEGMENT_BYTES = 4 * 1024 * 1024
"""Size at which a segment file is closed; whole segments are deleted, so this is the slack of the trimming."""

BASE_PULSES = 20
"""Pulses between two bases if no segment can be deleted: a restart repeats that many, and a sync is not free."""

LINK_ATTEMPTS = 100
"""Times a base that vanishes while it is linked is looked for again; it is replaced once in twenty pulses."""

COPY = "Let the node copy the ingress log from another member: remove the directory of this log and restart the node."


class IngressLogFile:
    """Appends entries to ``<number>-<first index>.log`` files; files are numbered in the order they are written.

    An entry written again replaces the earlier one and everything that followed it, as in the log in memory.
    ``append`` hands entries to the operating system: they survive the kill of every process. ``force`` puts what was
    appended on disk, with the names of its files: then they survive a power failure. The last file may end in a torn
    entry, which a crash left: it was never acknowledged. A process that starts cuts it off before it begins a file of
    its own. Anything else that is not as it was written is damage, and is reported instead of read.

    What is found in the directory counts as not forced: the process that wrote it may have been killed before it did
    that. The first ``force`` includes it.

    ``base.json`` stands for the entries that are done with. It is written before they are deleted, and after the
    entries that it relies on are on disk, so base and entries together are always the whole log. One thread appends and
    forces, another may trim or pin meanwhile.
    """

    def __init__(self, directory: Path, files: FileSystem = SYSTEM_FILES, segment_bytes: int | None = None) -> None:
        self._directory = directory
        self._files = files
        self._segment_bytes = segment_bytes
        self._opened = 0
        files.make(directory)
        # The directory of a replica may be as new as its log, and so may the one above.
        base = [directory / FILE_NAME] if files.exists(directory / FILE_NAME) else []
        found = [*self._segments(), *base, directory, *list(directory.parents)[:2]]
        self._unforced: dict[Path, int] = dict.fromkeys(found, self._opened)
        self._file: NewFile | None = None
        self._path: Path | None = None
        self._base = IngressBase.read(directory, files) or IngressBase()
        self._lock = threading.Lock()

    @property
    def base(self) -> IngressBase:
        """The base on disk; the empty one if there is none."""
        return self._base

    def append(self, *entries: Entry) -> None:
        """Hand entries to the operating system, in one piece as far as they go to one file."""
        with self._lock:
            for entry in entries:
                if self._file is None or self._file.size >= (self._segment_bytes or SEGMENT_BYTES):
                    self._open(entry.index)
                assert self._file is not None
                self._file.write(entry_bytes(entry))
            if self._file is not None:
                self._file.flush()

    def force(self) -> None:
        """Put everything that was appended or found on disk; from any thread. Nothing else waits for it."""
        with self._lock:
            unforced = dict(self._unforced)
        for path in unforced:
            with contextlib.suppress(FileNotFoundError):
                self._files.force(path)
        with self._lock:
            for path, opened in unforced.items():
                # The file that is being written will be written to again, and another may have been begun meanwhile.
                if path != self._path and self._unforced.get(path) == opened:
                    del self._unforced[path]

    def read(self) -> list[Entry]:
        """The entries after the base in order; a torn entry at the end was never acknowledged and is left out."""
        entries = [entry for entry in self.read_all() if entry.index > self._base.index]
        for index, entry in enumerate(entries, start=self._base.index + 1):
            if entry.index != index:
                raise Damaged(self._directory, f"entry {index} is missing", COPY)
        return entries

    def read_waiting(self) -> list[Entry]:
        """The pushes before the base that are cut by a pulse after it: all of them were acknowledged."""
        wanted = {index for indexes in self._base.waiting.values() for index in indexes}
        found = [entry for entry in self.read_all() if entry.index in wanted] if wanted else []
        missing = sorted(wanted - {entry.index for entry in found})
        if missing:
            raise Damaged(self._directory, f"entry {missing[0]}, which the base relies on, is missing", COPY)
        return found

    def read_all(self) -> list[Entry]:
        """Every entry on disk, also those that only share a file with one that is needed."""
        entries: dict[int, Entry] = {}
        segments = self._segments()
        for path in segments:
            segment = read_segment(path, self._files)
            if segment.torn and path != segments[-1]:
                raise Damaged(path, f"it ends within the entry at byte {segment.end}, and others follow it", COPY)
            for entry in segment.entries:
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
        self.force()
        base.write(self._directory, self._files)
        self._base = base
        with self._lock:
            for path in needless:
                self._files.remove(path)
        return True

    def pin(self, target: Path) -> None:
        """Make ``target`` a log as this one is at this moment, which stays so whatever happens to this one.

        The files share their bytes, except the one that is being written.
        """
        self._files.make(target)
        with self._lock:
            self._link_base(target)
            for path in self._segments():
                if path != self._path or self._file is None:
                    self._files.link(path, target / path.name)
                    continue
                copy = self._files.create(target / path.name)
                try:
                    copy.write(self._files.read(path)[: self._file.size])
                finally:
                    copy.close()

    def _link_base(self, target: Path) -> None:
        """Link the base, if there is one. A base that is replaced at this moment is not found either."""
        base = self._directory / FILE_NAME
        for _ in range(LINK_ATTEMPTS):
            if not self._files.exists(base):
                return
            with contextlib.suppress(FileNotFoundError):
                self._files.link(base, target / FILE_NAME)
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
        self._opened += 1
        if self._path is None and present:
            _cut_torn_entry(present[-1], self._files)
        number = int(present[-1].stem.partition("-")[0]) + 1 if present else 1
        self._path = self._directory / f"{number:08d}-{first:016d}.log"
        self._file = self._files.create(self._path)
        self._unforced |= {self._path: self._opened, self._directory: self._opened}

    def _needless(self, through: int) -> list[Path]:
        """The segments of which only entries up to ``through`` are left."""
        pairs = pairwise(self._segments())
        return [path for path, following in pairs if int(following.stem.partition("-")[2]) <= through + 1]

    def _segments(self) -> list[Path]:
        return [self._directory / name for name in self._files.names(self._directory) if name.endswith(".log")]


def log_state(directory: Path, admission: Admission | None = None, files: FileSystem = SYSTEM_FILES) -> LogState:
    """What a process can continue from that finds a log in ``directory``, all of it forced to disk.

    A fresh copy comes with the ``admission`` of its member.

    Raises
    ------
    Damaged
        If something in it is not as it was written.
    """
    base = IngressBase.read(directory, files)
    entries: tuple[Entry, ...] = ()
    if files.exists(directory):
        log = IngressLogFile(directory, files)
        entries = tuple(log.read())
        # What is returned is acknowledged to others, whatever process has written it.
        log.force()
    found = IngressBase() if base is None else base
    return LogState(found.index, entries, found.pulse, found.finished, admission, found.units)


def _cut_torn_entry(path: Path, files: FileSystem) -> None:
    """Remove what a crash left of an entry at the end of a file, before other files follow it."""
    segment = read_segment(path, files)
    if segment.torn:
        files.truncate(path, segment.end)
