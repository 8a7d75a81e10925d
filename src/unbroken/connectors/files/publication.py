"""Puts files into a directory so that each name appears once, whole, whoever of several writers is first.

A file is written under a hidden name of its own, brought to disk, and then linked to its real name. Linking
fails if the name is taken, so exactly one of several writers succeeds and no reader ever sees half a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

from unbroken.errors import UnbrokenError

LEFTOVER_S = 60.0
"""A temporary file untouched for this long belongs to a writer that is gone."""

CLAIM_S = 10.0
"""A claim older than this belongs to a writer that died between two system calls."""

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_ATTEMPTS = 3


def publish(directory: Path, name: str, write: Callable[[BinaryIO], None]) -> bool:
    """Let ``write`` fill the file ``name``; False if the name was there already or another writer was first.

    Raises
    ------
    UnbrokenError
        If the file cannot be written; nothing is left behind under its name then.
    """
    if (directory / name).exists():
        return False
    try:
        for _ in range(_ATTEMPTS):
            temporary = write_temporary(directory, name, write)
            try:
                _look_again(directory)
                return reveal(temporary, directory / name)
            except FileNotFoundError:
                continue  # Taken for a leftover and removed; writing it again helps.
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UnbrokenError(f"{directory / name} cannot be written: {error}. Check space and permissions.") from error
    raise UnbrokenError(f"Temporary files in {directory} are removed while they are written; keep others out of it.")


def write_temporary(directory: Path, name: str, write: Callable[[BinaryIO], None]) -> Path:
    """The first step: the whole content, on disk, under a hidden name that nobody else uses."""
    temporary = directory / f".{name}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def reveal(temporary: Path, final: Path) -> bool:
    """The second step: give it its name unless the name is taken. The temporary name may stay behind."""
    try:
        os.link(temporary, final)
    except FileExistsError:
        # A network file system may repeat a link whose answer was lost, and then meet its own work.
        won = os.path.samestat(os.stat(temporary), os.stat(final))
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        won = rename_claimed(temporary, final)
    else:
        won = True
    if won:
        _sync_directory(final.parent)
    return won


def rename_claimed(temporary: Path, final: Path, claim_s: float = CLAIM_S) -> bool:
    """The second step where links are not supported: whoever creates the claim may rename.

    Of a writer that dies holding the claim, the claim is removed after ``claim_s``. If its owner was only slow,
    both rename: the name then holds the whole content of one of them, which is the same unit.
    """
    claim = final.parent / f".{final.name}.claim"
    deadline, seen = time.monotonic() + 3 * claim_s, Sightings()
    while not final.exists():
        try:
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            seen.remove_if_unchanged(claim, claim_s)
            if time.monotonic() > deadline:
                raise UnbrokenError(f"{claim} does not go away; remove it if no node runs.") from None
            time.sleep(0.02)
            continue
        try:
            if final.exists():
                return False
            os.rename(temporary, final)
            return True
        finally:
            claim.unlink(missing_ok=True)
    return False


class Sightings:
    """Since when files have not changed, as far as this process has looked at them.

    The times of a file and the clock of the machine do not tell: the clock may have been set since.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[Path, tuple[tuple[int, int, int], float]] = {}

    def remove_if_unchanged(self, path: Path, age_s: float) -> bool:
        """Remove a file that was the same for ``age_s`` whenever it was looked at; whether it was."""
        with contextlib.suppress(OSError):
            found, now_s = path.stat(), self._clock()
            same = (found.st_ino, found.st_size, found.st_mtime_ns)
            known, since_s = self._since.get(path, (None, 0.0))
            if known != same:
                self._since[path] = (same, now_s)
            elif now_s - since_s > age_s:
                path.unlink()
                del self._since[path]
                return True
        return False

    def keep(self, paths: Collection[Path]) -> None:
        """Forget all files but these."""
        self._since = {path: since for path, since in self._since.items() if path in paths}


class _Sweep:
    """The leftovers in one directory, and when they were looked for last."""

    def __init__(self) -> None:
        self.seen = Sightings()
        self.looked_s = time.monotonic()


_sweeps: dict[Path, _Sweep] = {}


def remove_leftovers(directory: Path) -> int:
    """Look for temporary files of writers that are gone; how many were removed.

    They are removed when they are found a second time, `LEFTOVER_S` later and the same. `publish` looks again.
    """
    sweep = _sweeps.setdefault(directory, _Sweep())
    sweep.looked_s = time.monotonic()
    paths: list[Path] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        paths = [Path(entry.path) for entry in entries if _TEMPORARY.fullmatch(entry.name)]
    sweep.seen.keep(paths)
    return sum(sweep.seen.remove_if_unchanged(path, LEFTOVER_S) for path in paths)


def _look_again(directory: Path) -> None:
    sweep = _sweeps.get(directory)
    if sweep is not None and time.monotonic() - sweep.looked_s > LEFTOVER_S:
        remove_leftovers(directory)


def _sync_directory(directory: Path) -> None:
    """Bring the name itself to disk; some network file systems refuse, and keep it anyway."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
