"""What a donor holds for nodes that copy a replica's state from it: pinned files, their manifest, their contents."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.flight as flight

from unbroken.codecs.codec import Codec
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ingress_log import Admission
from unbroken.transport.calls import PinTicket
from unbroken.transport.state.digests import DIGESTS

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
"""Contents per record batch: large enough that a batch costs little beside its bytes, small enough to be paced."""

CHUNK_MINIMUM = 4096
"""A copy at a low rate asks for smaller chunks, or it would not be heard of for longer than a pin lasts."""

PATHS_LIMIT = 1000
"""Files that one call may ask for; a call for many small files then costs one round trip."""

PATH_LIMIT = 1024
NAME_LIMIT = 220
"""Longest path and name in bytes: below the limits of file systems, with room for the name of a partial file."""

CHUNK_SCHEMA = pa.schema([("file", pa.int32()), ("offset", pa.int64()), ("data", pa.large_binary())])
"""``file`` counts within the paths that were asked for, so that no path ever comes with the contents."""

CODE_PREFIX = b"unbroken."
EMPTY_SHA256 = hashlib.sha256().hexdigest()
_PIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._#-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class PinError(UnbrokenError, flight.FlightServerError):  # type: ignore[misc]
    """A refusal that the asking node should hear: it crosses Flight with its sentence and its ``code``."""

    code = CODE_PREFIX + b"refused"

    def __init__(self, message: str) -> None:
        flight.FlightServerError.__init__(self, message, self.code)


class PinGone(PinError):
    """The pin is not there: it expired, was released, or belonged to a process that has ended."""

    code = CODE_PREFIX + b"pin-gone"


class PinLimit(PinError):
    """The donor holds as many pins as it may; the newcomer tries again later or elsewhere."""

    code = CODE_PREFIX + b"pin-limit"


def check_path(path: object) -> str:
    """``path`` itself if it names a file below a directory in the one plain way; otherwise it is refused."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise PinError(f"{path!r} is not the path of a file")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise PinError(f"the path {path!r} leaves its directory or is not in its plain form")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        raise PinError(f"the path {path!r} is not UTF-8") from None
    if max(sizes) > NAME_LIMIT or sum(sizes) + len(parts) > PATH_LIMIT:
        raise PinError(f"the path {path[:100]!r}... is too long")
    return path


def walk(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything below ``root`` with its relative path, directories before what is in them; links are not followed."""
    waiting = [(str(root), "")]
    while waiting:
        directory, prefix = waiting.pop()
        with os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                yield prefix + entry.name, entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, f"{prefix}{entry.name}/"))


@dataclass(frozen=True)
class PinnedFile:
    """One file of a pin: its path below the pin's directory, its size and the SHA-256 of its contents."""

    path: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        check_path(self.path)
        if type(self.size) is not int or self.size < 0:
            raise PinError(f"the size of {self.path!r} is {self.size!r}")
        if not isinstance(self.sha256, str) or not _SHA256.fullmatch(self.sha256):
            raise PinError(f"the digest of {self.path!r} is {self.sha256!r}")
        if self.size == 0 and self.sha256 != EMPTY_SHA256:
            raise PinError(f"the file {self.path!r} is empty but its digest is not that of an empty file")


@dataclass(frozen=True)
class Manifest:
    """What a pin holds. Paths are safe to be joined to a directory, differ from each other and do not lie within
    each other: a manifest for which that does not hold cannot be made, wherever it comes from.

    The node that copies is told the ``version`` of the state, and of a log the leader's ``admission``.
    """

    pin: str
    files: tuple[PinnedFile, ...]
    version: int = 0
    admission: Admission | None = None

    def __post_init__(self) -> None:
        _check_pin_id(self.pin)
        if len(self.by_path) < len(self.files):
            raise PinError(f"the manifest of the pin {self.pin} names a file twice")
        within = self.directories & self.by_path.keys()
        if within:
            raise PinError(f"the manifest of the pin {self.pin} has {min(within)!r} as a file and as a directory")

    @cached_property
    def by_path(self) -> dict[str, PinnedFile]:
        return {file.path: file for file in self.files}

    @cached_property
    def directories(self) -> set[str]:
        """The directories that the files lie in."""
        found: set[str] = set()
        for file in self.files:
            parent = file.path.rpartition("/")[0]
            while parent and parent not in found:
                found.add(parent)
                parent = parent.rpartition("/")[0]
        return found

    @cached_property
    def total(self) -> int:
        """Bytes in all files."""
        return sum(file.size for file in self.files)


MANIFEST = Codec(Manifest, "manifest", readable=True)
"""Bytes with a path that leads elsewhere are none, as all others that no manifest can be made of."""


@dataclass
class _Pin:
    home: Path
    touched: float
    manifest: Manifest | None = None

    @property
    def files(self) -> Path:
        return self.home / "files"


class Pins:
    """The pins of one node, each a directory ``<root>/<pin id>@...`` of hard links that keep files from vanishing.

    A pin is made (``directory``), filled by the caller, sealed, read, and released. At most ``limit`` of them
    exist at a time, and one that nobody has read from for ``longest_s`` is dropped by ``expire``: a newcomer that died
    must not hold the disk for ever. Pins end with the process; ``clear`` removes what an earlier one left.

    Pinned files may be appended to after they were sealed (logs are): what was sealed is served, and no more.
    All methods may be called from any thread.
    """

    def __init__(self, root: Path, limit: int, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._limit = limit
        self._longest_s = longest_s
        self._clock = clock
        self._lock = threading.Lock()
        self._pins: dict[str, _Pin] = {}

    def clear(self) -> None:
        """Remove every pin, known or left by an earlier process; calls that still read from one are refused."""
        for pin_id in self.ids():
            self.release(pin_id)
        with self._lock:
            homes = {pin.home for pin in self._pins.values()}
            left = [path for path in self._root.glob("*") if path not in homes]
        for path in left:
            self._remove(path)

    def directory(self, pin_id: str) -> Path:
        """Begin a pin and give the empty directory that the caller links files into before it calls ``seal``."""
        _check_pin_id(pin_id)
        self.expire(self._clock())
        with self._lock:
            if pin_id in self._pins:
                raise PinError(f"the pin {pin_id} exists already; release it first or use another name")
            if len(self._pins) >= self._limit:
                raise PinLimit(
                    f"this node already holds {len(self._pins)} pins for transfers, and at most {self._limit} "
                    "are allowed at a time; try again when one of them has ended, or ask another node"
                )
            # Each pin gets a directory of its own making: one that was dropped while it was still being filled must not
            # get in the way of another one with the same name.
            self._root.mkdir(parents=True, exist_ok=True)
            pin = _Pin(Path(tempfile.mkdtemp(prefix=f"{pin_id}@", dir=self._root)), self._clock())
            pin.files.mkdir()
            self._pins[pin_id] = pin
        return pin.files

    def seal(self, pin_id: str, version: int = 0, admission: Admission | None = None) -> Manifest:
        """Take stock of the pin's files; from here on they can be read. A pin that cannot be sealed is dropped.

        A symbolic link, or anything else that is neither file nor directory, is refused.
        """
        pin = self._get(pin_id)
        if pin.manifest is not None:
            raise PinError(f"the pin {pin_id} is sealed already")
        try:
            files = tuple(self._take_stock(pin_id, pin))
            manifest = Manifest(pin_id, files, version, admission)
            (pin.home / "manifest.json").write_bytes(MANIFEST.encode(manifest))
        except FileNotFoundError as error:
            self._get(pin_id)  # dropped while it was read: that is then the reason
            self.release(pin_id)
            raise PinError(f"a file of the pin {pin_id} vanished before it was sealed: {error.filename}") from error
        except BaseException:
            self.release(pin_id)
            raise
        with self._lock:
            if self._pins.get(pin_id) is not pin:
                raise self._gone(pin_id)
            pin.manifest = manifest
        return manifest

    def manifest(self, pin_id: str) -> Manifest:
        """The manifest of a sealed pin; ``PinGone`` if there is no such pin."""
        manifest = self._get(pin_id).manifest
        if manifest is None:
            raise PinError(f"the pin {pin_id} is not sealed yet; ask again in a moment")
        return manifest

    def release(self, pin_id: str) -> bool:
        """Drop a pin; false if it is not there, which is fine: releasing may be repeated."""
        with self._lock:
            pin = self._pins.pop(pin_id, None)
        if pin is not None:
            self._remove(pin.home)
        return pin is not None

    def expire(self, now: float) -> list[str]:
        """Drop the pins that have not been touched for ``longest_s`` at the time ``now`` of the clock."""
        with self._lock:
            late = [pin_id for pin_id, pin in self._pins.items() if now - pin.touched >= self._longest_s]
        for pin_id in late:
            log.warning("the pin %s was not read from for %g s and is dropped", pin_id, self._longest_s)
            self.release(pin_id)
        return late

    def ids(self) -> list[str]:
        with self._lock:
            return list(self._pins)

    def stream(self, ticket: PinTicket) -> flight.GeneratorStream:
        """The contents that a ticket asks for."""
        batches = self.chunks(ticket.pin, ticket.paths, ticket.offset, ticket.chunk)
        return flight.GeneratorStream(CHUNK_SCHEMA, batches)

    def chunks(
        self, pin_id: str, paths: Sequence[str], offset: int = 0, chunk: int = CHUNK_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """The contents of ``paths`` one after another, the first from ``offset`` on, as batches of ``CHUNK_SCHEMA``.

        Small files share a batch. Everything asked for is checked before the first batch; ``PinGone`` comes at any
        batch if the pin is dropped meanwhile.
        """
        known = self.manifest(pin_id).by_path
        if not 0 < len(paths) <= PATHS_LIMIT:
            raise PinError(f"{len(paths)} files were asked for at once; ask for 1 to {PATHS_LIMIT}")
        files = [known.get(check_path(path)) for path in paths]
        for path, file in zip(paths, files, strict=True):
            if file is None:
                raise PinError(f"the pin {pin_id} has no file {path!r}")
        present = [file for file in files if file is not None]
        if not 0 <= offset <= present[0].size:
            raise PinError(f"{paths[0]!r} has {present[0].size} bytes and cannot be read from {offset} on")
        if chunk < CHUNK_MINIMUM:
            raise PinError(f"chunks of {chunk} bytes were asked for; ask for {CHUNK_MINIMUM} or more")
        return self._read(pin_id, present, offset, min(chunk, CHUNK_BYTES))

    def _read(self, pin_id: str, files: list[PinnedFile], offset: int, chunk: int) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[int, int, bytes]] = []
        room = chunk
        for index, file in enumerate(files):
            position = offset if index == 0 else 0
            with self._open(pin_id, file) as source:
                source.seek(position)
                while position < file.size:
                    data = source.read(min(room, file.size - position))
                    if not data:
                        raise PinError(f"the pinned file {file.path!r} is shorter than when it was pinned")
                    rows.append((index, position, data))
                    position += len(data)
                    room -= len(data)
                    if room == 0:
                        self._get(pin_id)
                        yield _batch(rows)
                        rows, room = [], chunk
        if rows:
            self._get(pin_id)
            yield _batch(rows)

    def _open(self, pin_id: str, file: PinnedFile) -> BinaryIO:
        root = self._get(pin_id).files
        path = root / file.path
        try:
            # The path is one that was sealed; this guards against links that were put in its way since.
            if os.path.realpath(path) != os.path.join(os.path.realpath(root), file.path):
                raise PinError(f"the pinned file {file.path!r} has become a symbolic link")
            return _open_regular(path)
        except OSError as error:
            self._get(pin_id)  # dropped since: that is then the reason
            raise PinError(f"the pinned file {file.path!r} cannot be read: {error.strerror}") from error

    def _get(self, pin_id: str) -> _Pin:
        """The pin, which counts as touched."""
        with self._lock:
            pin = self._pins.get(pin_id)
            if pin is None:
                raise self._gone(pin_id)
            pin.touched = self._clock()
            return pin

    def _gone(self, pin_id: str) -> PinGone:
        return PinGone(
            f"the pin {pin_id} is gone: it was released, was not read from for {self._longest_s:g} s, "
            "or the node was restarted; ask for another one"
        )

    def _take_stock(self, pin_id: str, pin: _Pin) -> Iterator[PinnedFile]:
        for path, entry in walk(pin.files):
            if entry.is_dir(follow_symlinks=False):
                continue
            if not entry.is_file(follow_symlinks=False):
                raise PinError(f"{path!r} cannot be pinned: it is a symbolic link or a special file")
            with _open_regular(Path(entry.path)) as source:
                digest, size = DIGESTS.of(source, lambda: self._still_there(pin_id))
            yield PinnedFile(path, size, digest)

    def _still_there(self, pin_id: str) -> None:
        self._get(pin_id)

    @staticmethod
    def _remove(path: Path) -> None:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:  # left for ``clear`` at the next start
            log.warning("cannot remove %s: %s", path, error)


def _check_pin_id(pin_id: object) -> None:
    if not isinstance(pin_id, str) or not _PIN_ID.fullmatch(pin_id):
        raise PinError(f"{pin_id!r} cannot be the name of a pin; letters, digits and . _ # - are allowed")


def _open_regular(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise PinError(f"{str(path)!r} is not a regular file")
    return file


def _batch(rows: list[tuple[int, int, bytes]]) -> pa.RecordBatch:
    indices, offsets, contents = zip(*rows, strict=True)
    columns = [pa.array(indices, pa.int32()), pa.array(offsets, pa.int64()), pa.array(contents, pa.large_binary())]
    return pa.record_batch(columns, schema=CHUNK_SCHEMA)
