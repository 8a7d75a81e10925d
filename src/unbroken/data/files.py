"""The file system as far as files need it whose order of writes matters: small, so that it can be simulated.

The simulator has another implementation, whose disk is in memory: it tears, fills up and fails there.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

from unbroken.data.checksum import replace_file
from unbroken.data.durability import force_path


class NewFile(ABC):
    """A file that is being written, from its beginning to its end."""

    @abstractmethod
    def write(self, data: bytes) -> None: ...

    @abstractmethod
    def flush(self) -> None:
        """Hand everything to the operating system: it survives the end of the process, and no power failure."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes that were written so far."""

    @abstractmethod
    def close(self) -> None: ...


class FileSystem(ABC):
    """Files and directories. Everything raises OSError as the operating system does; FileNotFoundError among it."""

    @abstractmethod
    def make(self, directory: Path) -> None:
        """Make a directory and those above it, unless they exist."""

    @abstractmethod
    def names(self, directory: Path) -> list[str]:
        """The names in a directory, sorted; none if it does not exist."""

    @abstractmethod
    def exists(self, path: Path) -> bool: ...

    @abstractmethod
    def read(self, path: Path) -> bytes: ...

    @abstractmethod
    def create(self, path: Path) -> NewFile:
        """Begin a file that does not exist."""

    @abstractmethod
    def truncate(self, path: Path, size: int) -> None:
        """Cut a file off, at once and for good."""

    @abstractmethod
    def replace(self, path: Path, data: bytes) -> None:
        """Put ``data`` in the place of a file, at once and for good."""

    @abstractmethod
    def force(self, path: Path) -> None:
        """Put a file, or the names in a directory, on disk: they survive a power failure then."""

    @abstractmethod
    def link(self, source: Path, target: Path) -> None:
        """Give a file another name."""

    @abstractmethod
    def remove(self, path: Path) -> None:
        """Remove a name; nothing happens if there is none."""


class _NewFile(NewFile):
    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def size(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class SystemFiles(FileSystem):
    """The file system of this machine."""

    def make(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def create(self, path: Path) -> NewFile:
        return _NewFile(path)

    def truncate(self, path: Path, size: int) -> None:
        with path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())

    def replace(self, path: Path, data: bytes) -> None:
        replace_file(path, data)

    def force(self, path: Path) -> None:
        force_path(path)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)


SYSTEM_FILES = SystemFiles()
