"""A simulated disk: files in memory, of which a power failure leaves no more than what was forced.

The code of a node writes to it as to a real one. It can be full, fail, lose its power within any operation, and the
process that uses it can end between any two of them.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from unbroken.data.files import FileSystem, NewFile

BLOCK = 4
"""The fewest bytes that a disk writes at once; far more in truth, and files are far longer there."""


class Interrupted(BaseException):
    """The process ends at this operation; nothing that follows it is done."""


@dataclass(eq=False, slots=True)
class _Inode:
    """The bytes of a file, of which the first ``forced`` survive a power failure."""

    data: bytearray = field(default_factory=bytearray)
    forced: int = 0


class _SimulatedFile(NewFile):
    def __init__(self, files: SimulatedFiles, inode: _Inode) -> None:
        self._files = files
        self._inode = inode

    def write(self, data: bytes) -> None:
        room = self._files.operate(writes=True, most=len(data))
        self._inode.data += data[:room]
        if room < len(data):
            self._files.fail(errno.ENOSPC)

    def flush(self) -> None:
        """What is written is with the operating system at once."""

    @property
    def size(self) -> int:
        return len(self._inode.data)

    def close(self) -> None:
        """Nothing waits."""


class SimulatedFiles(FileSystem):
    """The file system of one machine.

    ``full`` takes no more bytes: the last write is torn, as far as there is room. ``failing`` refuses to write and to
    force. ``fuse`` is the number of operations that are still done before the process is `Interrupted`.
    """

    def __init__(self, random: Random) -> None:
        self.full = False
        self.failing = False
        self.fuse: int | None = None
        self._random = random
        self._directories: set[Path] = set()
        self._names: dict[Path, _Inode] = {}
        self._lasting: dict[Path, _Inode] = {}

    # --- what a process does ----------------------------------------------------------------------------

    def make(self, directory: Path) -> None:
        self._directories.update((directory, *directory.parents))

    def names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self._names if path.parent == directory)

    def exists(self, path: Path) -> bool:
        return path in self._names or path in self._directories

    def read(self, path: Path) -> bytes:
        return bytes(self._inode(path).data)

    def create(self, path: Path) -> NewFile:
        self.operate(writes=True)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        inode = self._names[path] = _Inode()
        return _SimulatedFile(self, inode)

    def truncate(self, path: Path, size: int) -> None:
        self.operate(writes=True)
        inode = self._inode(path)
        del inode.data[size:]
        inode.forced = size

    def replace(self, path: Path, data: bytes) -> None:
        room = self.operate(writes=True, most=len(data))
        unfinished, inode = path.with_name(f"{path.name}.tmp"), _Inode(bytearray(data[:room]))
        self._names[unfinished] = inode
        if room < len(data):
            self.fail(errno.ENOSPC)
        self.operate(writes=True)
        inode.forced = len(inode.data)
        self.operate()
        self._names[path] = self._names.pop(unfinished)
        self.force(path.parent)

    def force(self, path: Path) -> None:
        self.operate(writes=True)
        if path in self._directories:
            for name in [name for name in self._lasting if name.parent == path and name not in self._names]:
                del self._lasting[name]
            self._lasting |= {name: inode for name, inode in self._names.items() if name.parent == path}
            return
        inode = self._inode(path)
        inode.forced = len(inode.data)

    def link(self, source: Path, target: Path) -> None:
        self.operate()
        self._names[target] = self._inode(source)

    def remove(self, path: Path) -> None:
        self.operate()
        self._names.pop(path, None)

    # --- what happens to it -----------------------------------------------------------------------------

    def power_failure(self) -> None:
        self.fuse = None
        self._lose_unforced()

    def _lose_unforced(self) -> None:
        """Only what was forced is certain to be there: of the rest, any part of a name's changes, and of a file's
        bytes any beginning, which may be followed by blocks of zeros."""
        names: dict[Path, _Inode] = {}
        for path in sorted({*self._names, *self._lasting}):
            now, before = self._names.get(path), self._lasting.get(path)
            found = now if now is before or self._random.random() < 0.5 else before
            if found is not None:
                names[path] = found
        for inode in dict.fromkeys(names.values()):
            self._tear(inode)
        self._names = names
        self._lasting = dict(names)

    def _tear(self, inode: _Inode) -> None:
        length = len(inode.data)
        kept = self._random.randint(inode.forced, length)
        del inode.data[kept:]
        if length - kept >= BLOCK and self._random.random() < 0.25:
            inode.data += bytes(length - kept)
        inode.forced = len(inode.data)

    def copied(self, directory: Path) -> dict[str, bytes]:
        """The files in a directory; they stay as they are."""
        return {name: self.read(directory / name) for name in self.names(directory)}

    def put(self, directory: Path, files: dict[str, bytes]) -> None:
        """Make files those of a directory, forced: a copy that has come over a link."""
        size = sum(map(len, files.values()))
        if self.operate(writes=True, most=size) < size:
            self.fail(errno.ENOSPC)
        self.clear(directory)
        self.make(directory)
        for name, data in files.items():
            inode = _Inode(bytearray(data), len(data))
            self._names[directory / name] = self._lasting[directory / name] = inode

    def clear(self, directory: Path) -> None:
        """Remove a directory with all that is in it, for good."""
        for names in (self._names, self._lasting):
            for path in [path for path in names if path.parent == directory]:
                del names[path]
        self._directories.discard(directory)

    def operate(self, *, writes: bool = False, most: int = 0) -> int:
        """An operation begins: how many of ``most`` bytes there is room for."""
        if self.fuse is not None:
            if self.fuse == 0:
                raise Interrupted
            self.fuse -= 1
        if writes and self.failing:
            self.fail(errno.EIO)
        return self._random.randint(0, max(0, most - 1)) if self.full and most else most

    def fail(self, code: int) -> None:
        raise OSError(code, os.strerror(code))

    def _inode(self, path: Path) -> _Inode:
        found = self._names.get(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return found
