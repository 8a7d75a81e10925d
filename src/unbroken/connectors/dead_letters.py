"""Where rows go that the flow continues without, so that nothing is lost without a trace.

There is one directory per flow and run. It is private, bounded in size, age and number of files, and the flow never
waits for it: rows that cannot be written are counted as lost, and that is reported once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa

from unbroken.data.rows.json.output import json_lines
from unbroken.data.rows.parsed import BadRow
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.sinks import DeadLettersUnwritten, DeadLettersWritten

log = logging.getLogger(__name__)

MOST_FILES = 10_000
"""Files of one run. Each has the bad rows of one source and pulse: a bad row in every pulse makes 345,600 in a day."""

FILE_BYTES = 16_000_000
"""Bytes of one file; rows beyond are counted in its last line."""

TIDY_S = 30.0
"""How often old files are looked for at most, if what was written since does not make it necessary earlier."""

LEFTOVER_S = 60.0
"""A temporary file that is older belongs to a process that is gone."""

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_PLACE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Retention:
    """What is kept of dead letters: so many bytes in all, and none that is older than this."""

    most_bytes: float = 1_000_000_000
    most_age_s: float = 30 * 86_400.0


_BEGAN_S, _BEGAN_MONOTONIC_S = time.time(), time.monotonic()


def _now_s() -> float:
    """The time by which files age: never further than this process has seen time pass, if the clock is set ahead."""
    return min(time.time(), _BEGAN_S + time.monotonic() - _BEGAN_MONOTONIC_S)


class DeadLetters:
    """A directory with one file of JSON lines per source and pulse, or stream and unit, that had such rows.

    Several nodes may write the same file, at the same time and once more after a restart: the rows are the same
    everywhere, the first file stays. Links are never followed, files are for their owner only.

    It may be used by several threads. Writing raises no error, whatever the disk or the rows are like. The directory is
    made when there is something to be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        retention: Retention | None = None,
        tell: Callable[[Notice], None] = lambda notice: log.warning("%s", notice),
    ) -> None:
        self.directory = Path(directory)
        self.lost = 0
        self.removed = 0
        self._retention = retention or Retention()
        self.tell = tell
        self._failing = ""
        self._tidied: float | None = None
        self._since_bytes = 0
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def write(self, source: str, pulse: int, bad: Sequence[BadRow]) -> bool:
        """Keep the bad rows of a pulse; False if they were there already, there are none, or they are lost."""
        if not bad:
            return False
        first = {"source": source, "pulse": pulse}
        lines = (
            json.dumps({**first, "origin": row.origin, "reason": row.reason, "raw": row.raw}).encode() + b"\n"
            for row in bad
        )
        return self._publish(f"{source}-{pulse:010d}.jsonl", lines, len(bad))

    def write_unit(self, stream: StreamId, number: int, table: pa.Table, reason: str) -> bool:
        """Keep the rows of a unit that a sink refuses; False if they were there already or are lost.

        The first line says which unit it is and why, the others are its rows.
        """
        head = {"stream": str(stream), "unit": number, "rows": table.num_rows, "reason": reason}
        lines = chain([json.dumps(head).encode() + b"\n"], _single(json_lines(table)))
        return self._publish(f"{str(stream).replace('>', '-to-')}-{number:010d}.jsonl", lines, table.num_rows)

    def tidy(self) -> None:
        """Remove what is too old or too much, if that has not been looked at for a while."""
        now = time.monotonic()
        with self._lock:
            if not self.directory.exists():
                return
            grown = self._since_bytes > self._retention.most_bytes / 10
            if self._tidied is not None and now < self._tidied + TIDY_S and not grown:
                return
            self._tidied, self._since_bytes = now, 0
            with self._reporting(0), self._open() as place:
                self._tidy(place)

    def count(self, source: str) -> int:
        """How many bad rows of ``source`` are kept."""
        name_of = re.compile(re.escape(source) + r"-[0-9]{10,}\.jsonl")
        with self._open() as place:
            return sum(self._lines(place, name) for name in os.listdir(place) if name_of.fullmatch(name))

    # --- files ------------------------------------------------------------------------------------------

    def _publish(self, name: str, lines: Iterable[bytes], rows: int) -> bool:
        with self._lock:
            written = False
            with self._reporting(rows), self._open() as place:
                written = self._written(place, name, lines)
        self.tidy()
        return written

    def _written(self, place: int, name: str, lines: Iterable[bytes]) -> bool:
        """Write a file whole under a name of its own, then give it its real name unless that is taken."""
        with contextlib.suppress(FileNotFoundError):
            os.stat(name, dir_fd=place, follow_symlinks=False)
            return False
        temporary = f".{name}.{uuid.uuid4().hex}.tmp"
        try:
            with os.fdopen(os.open(temporary, _NEW, 0o600, dir_fd=place), "wb") as file:
                for line in _bounded(lines):
                    file.write(line)
                self._since_bytes += file.tell()
                file.flush()
                os.fsync(file.fileno())
            return _reveal(place, temporary, name)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=place)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        """The directory, made if it is not there. One that is a link is not used."""
        outer = self.directory.parent
        outer.parent.mkdir(parents=True, exist_ok=True)
        for path in (outer, self.directory):
            with contextlib.suppress(FileExistsError):
                path.mkdir(0o700)
        above = os.open(outer, _PLACE)
        try:
            place = os.open(self.directory.name, _PLACE, dir_fd=above)
        finally:
            os.close(above)
        try:
            yield place
        finally:
            os.close(place)

    @contextlib.contextmanager
    def _reporting(self, rows: int) -> Iterator[None]:
        """Report trouble with the disk when it begins and when it is over, and continue."""
        try:
            yield
        except Exception as error:
            # Whatever it is: rows that are set aside must not stop the flow in this way either.
            self.lost += rows
            if self._failing != str(error):
                self._failing = str(error)
                self.tell(DeadLettersUnwritten(str(self.directory), str(error)))
        else:
            if self._failing and rows:
                self._failing = ""
                self.tell(DeadLettersWritten(str(self.directory), self.lost))

    # --- bounds -----------------------------------------------------------------------------------------

    def _tidy(self, place: int) -> None:
        now = _now_s()
        files: list[tuple[float, int, str]] = []
        for name in os.listdir(place):
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=place, follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode):
                    continue
                if name.endswith(".tmp") and now - found.st_mtime < LEFTOVER_S:
                    continue
                files.append((found.st_mtime, found.st_size, name))
        files.sort()
        kept_bytes, kept = sum(size for _, size, _ in files), len(files)
        for written, size, name in files:
            old = now - written > self._retention.most_age_s or name.endswith(".tmp")
            if not old and kept_bytes <= self._retention.most_bytes and kept <= MOST_FILES:
                continue
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=place)
                self.removed += 1
            self._counts.pop(name, None)
            kept_bytes, kept = kept_bytes - size, kept - 1

    def _lines(self, place: int, name: str) -> int:
        # Files never change, so each is counted once.
        if name not in self._counts:
            with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=place), "rb") as file:
                self._counts[name] = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
        return self._counts[name]


def remove_old_runs(directory: Path, flow: str, run: str, most_age_s: float) -> int:
    """Remove the dead letters of earlier runs of a flow that are older than what is kept; how many runs those were."""
    removed = 0
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            mine = re.fullmatch(re.escape(flow) + "-[0-9a-f]{32}", entry.name) and entry.name != f"{flow}-{run}"
            if not mine or not entry.is_dir(follow_symlinks=False):
                continue
            if _now_s() - entry.stat(follow_symlinks=False).st_mtime > most_age_s:
                shutil.rmtree(entry.path, ignore_errors=True)
                removed += 1
    return removed


def _bounded(lines: Iterable[bytes]) -> Iterator[bytes]:
    """As many lines as a file may have, and how many there are beyond."""
    size = more = 0
    for line in lines:
        if more or size + len(line) > FILE_BYTES:
            more += 1
        else:
            size += len(line)
            yield line
    if more:
        yield json.dumps({"more": more, "reason": f"a file has at most {FILE_BYTES} bytes"}).encode() + b"\n"


def _single(blocks: Iterable[bytes]) -> Iterator[bytes]:
    for block in blocks:
        yield from block.splitlines(keepends=True)


def _reveal(place: int, temporary: str, name: str) -> bool:
    try:
        os.link(temporary, name, src_dir_fd=place, dst_dir_fd=place, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without links two writers may both win: they have the same rows.
        os.rename(temporary, name, src_dir_fd=place, dst_dir_fd=place)
    return True
