"""Copying what a donor has pinned: resumable, verified, paced, and over as soon as it is told to stop."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa

from unbroken.transport.calls import PinTicket
from unbroken.transport.state.digests import DIGESTS
from unbroken.transport.state.donor_calls import (
    POLL_S,
    Broken,
    DonorStream,
    TransferError,
    TransferStopped,
    refusal,
    said,
)
from unbroken.transport.state.pins import (
    CHUNK_BYTES,
    CHUNK_MINIMUM,
    CHUNK_SCHEMA,
    PATHS_LIMIT,
    Manifest,
    PinnedFile,
    walk,
)

log = logging.getLogger(__name__)

RETRY_S = 0.1
"""Pause between attempts to reach a donor that does not answer."""

CHUNK_S = 0.5
"""Chunks are no larger than what the rate allows in this time: a slow copy moves on evenly and often enough for the
donor to see that its pin is used."""

PATIENCE_S = 30.0
CALL_S = 10.0
"""A call is ended after this time and the copy goes on with another one, so a donor that hangs is noticed.
Going on costs a round trip and what was on its way: little beside what 10 s bring."""


@dataclass(frozen=True)
class Fetched:
    """A finished copy: its files, the bytes that came over the network and those that were there already."""

    files: int
    fetched: int
    reused: int
    seconds: float


class Pace:
    """Says how long to wait after each piece so that all of them together keep to a rate."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._due = 0.0

    @property
    def chunk_bytes(self) -> int:
        """How much to ask for at a time."""
        if self._bytes_per_s is None:
            return CHUNK_BYTES
        return min(CHUNK_BYTES, max(CHUNK_MINIMUM, int(self._bytes_per_s * CHUNK_S)))

    def after(self, size: int, now: float) -> float:
        """Seconds to wait at the time ``now``, when ``size`` bytes have been taken. Idle time is not saved up."""
        if self._bytes_per_s is None:
            return 0.0
        self._due = max(self._due, now) + size / self._bytes_per_s
        return self._due - now


class Fetch:
    """Copies every file of ``manifest`` from the donor at ``address`` into ``target``, which then equals the manifest.

    A file gets its name only when it is whole and its digest is right; until then it is
    ``<name>.<begin of its digest>.part``, so that a part is gone on with only for the contents it belongs to.
    Files in ``target`` that have the right digest are not copied again, whatever fetch brought them. What the manifest
    does not name is removed at the very end: a fetch that fails takes nothing away from a following one.

    ``run`` blocks; ``total``, ``fetched`` and ``reused`` (bytes) may be read from any thread meanwhile. It ends within
    a second of ``stop`` being set, and fails when the donor sends nothing for ``patience_s``.
    """

    def __init__(
        self,
        address: str,
        token: str,
        manifest: Manifest,
        target: Path,
        rate_limit_bytes_s: float | None = None,
        stop: threading.Event | None = None,
        *,
        patience_s: float = PATIENCE_S,
        call_s: float = CALL_S,
    ) -> None:
        self.total = manifest.total
        self.fetched = 0
        self.reused = 0
        self._address = address
        self._token = token
        self._manifest = manifest
        self._target = target
        self._pace = Pace(rate_limit_bytes_s)
        self._stop = stop if stop is not None else threading.Event()
        self._patience_s = patience_s
        self._call_s = call_s
        self._heard = 0.0
        self._pending: deque[PinnedFile] = deque()
        self._damaged: set[str] = set()
        self._part: _Part | None = None

    def run(self) -> Fetched:
        """Copy, once; returns when ``target`` equals the manifest, otherwise raises a ``TransferError``."""
        since = time.monotonic()
        try:
            self._clear_the_way()
            missing = [file for file in self._manifest.files if not self._is_here(file)]
            # Empty ones first: they are made without asking, and no contents would come for them within a call.
            self._pending.extend(sorted(missing, key=lambda file: file.size > 0))
            self._check_room()
            self._heard = time.monotonic()
            while self._pending:
                self._copy_some()
            self._remove_strangers()
        except OSError as error:
            raise self._disk_error(error) from error
        finally:
            if self._part is not None:
                with contextlib.suppress(OSError):  # a full disk is reported where it was found
                    self._part.close()
        return Fetched(len(self._manifest.files), self.fetched, self.reused, time.monotonic() - since)

    def _copy_some(self) -> None:
        """Make one call for the next files and take what it brings; connection loss is met with another call."""
        while self._open_part().is_full:
            self._finish_file()
            if not self._pending:
                return
        before = self.fetched
        left_s = self._heard + self._patience_s - time.monotonic()
        error: Exception | None = None
        stream = DonorStream(self._address, self._token, self._ticket(), min(self._call_s, max(left_s, POLL_S)))
        try:
            expected = 0
            while (batch := stream.next(self._check_stop)) is not None:
                expected = self._take(batch, expected)
                self._heard = time.monotonic()
        except Broken as broken:
            error = broken.cause
        finally:
            stream.close()
        if error is not None and (refused := refusal(error, self._address)) is not None:
            raise refused from error
        if self.fetched == before and self._pending:
            self._try_again(error)

    def _ticket(self) -> PinTicket:
        """Asks for the first file from where its part ends, and for those behind it that begin at their beginning."""
        first = self._pending[0]
        fresh = takewhile(lambda file: not self._part_path(file).exists(), islice(self._pending, 1, PATHS_LIMIT))
        paths = (first.path, *(file.path for file in fresh))
        return PinTicket(self._manifest.pin, paths, self._open_part().length, self._pace.chunk_bytes)

    def _take(self, batch: pa.RecordBatch, expected: int) -> int:
        """Write the rows of a batch. ``expected`` is the number, within the call, of the file that is in turn."""
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise TransferError(f"{self._address} sent data that cannot be read: {error}") from error
        if not batch.schema.equals(CHUNK_SCHEMA) or any(column.null_count for column in batch.columns):
            raise TransferError(f"{self._address} sent something else than contents of files: {batch.schema}")
        indices, offsets = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        size = 0
        for index, offset, content in zip(indices, offsets, batch.column(2), strict=True):
            data = content.as_buffer()
            part = self._open_part() if self._pending else None
            if part is None or (index, offset) != (expected, part.length) or not 0 < data.size <= part.missing:
                raise TransferError(
                    f"{self._address} sent {data.size} bytes at {offset} of file {index} of a call, "
                    f"which is not what comes next; the pin {self._manifest.pin} cannot be copied from there"
                )
            part.write(data)
            size += data.size
            self.fetched += data.size
            if part.is_full:
                self._finish_file()
                expected += 1
        self._wait(self._pace.after(size, time.monotonic()))
        return expected

    def _open_part(self) -> _Part:
        """The part of the file that is in turn."""
        if self._part is None:
            file = self._pending[0]
            self._part = _Part(self._part_path(file), file, self._check_stop)
            self.reused += self._part.length
            self._heard = time.monotonic()  # what was there had to be read, for which the donor is not to blame
        return self._part

    def _finish_file(self) -> None:
        """Give the file in turn its name if its digest is right; if not, have it fetched again, but only once."""
        file = self._pending.popleft()
        part, self._part = self._part, None
        assert part is not None
        part.close()
        if part.digest.hexdigest() == file.sha256:
            part.path.replace(self._target / file.path)
            return
        part.path.unlink()
        if file.path in self._damaged:
            raise TransferError(
                f"the file {file.path!r} came from {self._address} with a wrong digest twice; its copy there or the "
                "network damages it. Copy from another replica, and check that node's disk"
            )
        log.warning("the file %r came from %s with a wrong digest and is fetched again", file.path, self._address)
        self._damaged.add(file.path)
        self._pending.append(file)

    def _part_path(self, file: PinnedFile) -> Path:
        return self._target / f"{file.path}.{file.sha256[:16]}.part"

    def _try_again(self, error: Exception | None) -> None:
        """Pause before the next call, unless the donor's time is up."""
        silent_s = time.monotonic() - self._heard
        reason = said(error) if error is not None else "its answer ended early"
        if silent_s + RETRY_S > self._patience_s:
            raise TransferError(
                f"{self._address} sent nothing of the pin {self._manifest.pin} for {self._patience_s:g} s: {reason}. "
                "What has arrived is kept; fetch again, or from another replica"
            )
        log.debug("copy from %s interrupted: %s", self._address, reason)
        self._wait(RETRY_S)

    def _clear_the_way(self) -> None:
        """Remove what cannot stay: links, and files and directories where the manifest has the other."""
        self._target.mkdir(parents=True, exist_ok=True)
        parts = {str(self._part_path(file).relative_to(self._target)) for file in self._manifest.files}
        clash = parts & (self._manifest.by_path.keys() | self._manifest.directories)
        if clash:
            raise TransferError(f"{min(clash)!r} is the name of a partial file and cannot be copied")
        for path, entry in list(walk(self._target)):
            if entry.is_dir(follow_symlinks=False):
                if path in self._manifest.by_path or path in parts:
                    shutil.rmtree(entry.path)
            elif path in self._manifest.directories or not entry.is_file(follow_symlinks=False):
                Path(entry.path).unlink(missing_ok=True)
        for directory in self._manifest.directories:
            (self._target / directory).mkdir(parents=True, exist_ok=True)

    def _is_here(self, file: PinnedFile) -> bool:
        path = self._target / file.path
        if not path.exists() or path.stat().st_size != file.size:
            return False
        with path.open("rb", buffering=0) as source:
            if DIGESTS.of(source, self._check_stop)[0] != file.sha256:
                return False
        self.reused += file.size
        return True

    def _check_room(self) -> None:
        """Fail before the disk is full rather than then: other replicas of this node live on it too."""
        parts = (self._part_path(file) for file in self._pending)
        there = sum(part.stat().st_size for part in parts if part.exists())
        needed = sum(file.size for file in self._pending) - there
        if needed > shutil.disk_usage(self._target).free:
            raise OSError(errno.ENOSPC, f"{needed} bytes are needed")

    def _remove_strangers(self) -> None:
        for path, entry in list(walk(self._target)):
            if entry.is_dir(follow_symlinks=False):
                if path not in self._manifest.directories and os.path.exists(entry.path):  # gone with its parent
                    shutil.rmtree(entry.path)
            elif path not in self._manifest.by_path:
                Path(entry.path).unlink(missing_ok=True)

    def _disk_error(self, error: OSError) -> TransferError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return TransferError(
                f"the disk is full: the {self.total} bytes of the pin {self._manifest.pin} do not fit into "
                f"{self._target} ({error.strerror}). Make room there, then fetch again: what has arrived is kept"
            )
        return TransferError(f"cannot write to {error.filename or self._target}: {error.strerror or error}")

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            self._stop.wait(seconds)
        self._check_stop()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise TransferStopped(f"the copy of {self._manifest.pin} from {self._address} was stopped")


class _Part:
    """A file on its way: what is there of it on disk, and the digest of that."""

    def __init__(self, path: Path, file: PinnedFile, check_stop: Callable[[], None]) -> None:
        self.path = path
        self.size = file.size
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._file = os.fdopen(descriptor, "r+b")
        try:
            if os.fstat(descriptor).st_size > file.size:
                self._file.truncate(0)
            self.digest = _hash(self._file, check_stop)
            self.length = self._file.tell()
        except BaseException:
            self._file.close()
            raise

    @property
    def missing(self) -> int:
        return self.size - self.length

    @property
    def is_full(self) -> bool:
        return self.length == self.size

    def write(self, data: pa.Buffer) -> None:
        self._file.write(data)
        self.digest.update(data)
        self.length += data.size

    def close(self) -> None:
        self._file.close()


def _hash(source: Any, check_stop: Callable[[], None]) -> Any:
    """The digest of what is left of a file, which is read to its end."""
    digest = hashlib.sha256()
    while data := source.read(CHUNK_BYTES):
        digest.update(data)
        check_stop()
    return digest
