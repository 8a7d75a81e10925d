"""Small disks: the directory of a node as a file system of its own, which can be filled up and has space again."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from unbroken.errors import UnbrokenError

SIZE_MB = 64
"""Spark's scratch files, state and units of a test's flow take a few megabytes."""

BALLAST = "ballast"
REFILL_S = 0.02
COMMAND_S = 20.0


@functools.cache
def mountable() -> str:
    """Why this process cannot make a small disk; empty if it can, found out by trying."""
    if not sys.platform.startswith("linux"):
        return "small file systems need Linux"
    if os.geteuid() != 0:
        return "a file system can only be mounted by root"
    with tempfile.TemporaryDirectory(prefix="unbroken-disk-") as directory:
        failure = _mount(Path(directory), 1)
        if not failure:
            _run("umount", directory)
        return failure


class SmallDisk:
    """A directory that is mounted as a small file system in memory. It outlives processes, and ends with `close`."""

    def __init__(self, path: Path, size_mb: int = SIZE_MB) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        if failure := mountable() or _mount(path, size_mb):
            raise UnbrokenError(
                f"error: no small disk at {path}: {failure}. Leave out DiskFull, or run as root on Linux."
            )
        self._filling: threading.Thread | None = None
        self._over = threading.Event()

    @property
    def full(self) -> bool:
        return self._filling is not None

    def fill(self) -> None:
        """Take all space, also what is deleted later, as the log of another program would."""
        if self._filling is None:
            self._over.clear()
            self._take(self.path / BALLAST)
            self._filling = threading.Thread(target=self._keep_full, name="full-disk", daemon=True)
            self._filling.start()

    def free(self) -> None:
        """Give the space back; a disk that is not full stays as it is."""
        if self._filling is not None:
            self._over.set()
            self._filling.join()
            self._filling = None
            (self.path / BALLAST).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the file system with everything on it; closing again does nothing."""
        self.free()
        if os.path.ismount(self.path):
            # Lazily: a process that is being killed may have a file open for a moment longer.
            _run("umount", "--lazy", str(self.path))

    def _keep_full(self) -> None:
        while not self._over.wait(REFILL_S):
            self._take(self.path / BALLAST)

    @staticmethod
    def _take(ballast: Path) -> None:
        with contextlib.suppress(FileNotFoundError), ballast.open("ab", buffering=0) as file:
            for piece in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(BlockingIOError):
                    _write_until_full(file.fileno(), b"\0" * piece)


def _write_until_full(handle: int, piece: bytes) -> None:
    try:
        while True:
            os.write(handle, piece)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def _mount(path: Path, size_mb: int) -> str:
    return _run("mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(path))


def _run(*command: str) -> str:
    """What went wrong; empty if nothing did."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=COMMAND_S)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"{command[0]} ended with {done.returncode}"
