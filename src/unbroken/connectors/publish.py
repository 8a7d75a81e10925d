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
from collections.abc import Callable
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


def rename_claimed(temporary: Path, final: Path) -> bool:
    """The second step where links are not supported: whoever creates the claim may rename.

    Of a writer that dies holding the claim, the claim is removed after `CLAIM_S`. If its owner was only slow,
    both rename: the name then holds the whole content of one of them, which is the same unit.
    """
    claim = final.parent / f".{final.name}.claim"
    deadline = time.monotonic() + 3 * CLAIM_S
    while not final.exists():
        try:
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            _remove_if_older(claim, CLAIM_S)
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


def remove_leftovers(directory: Path) -> int:
    """Remove temporary files of writers that are gone; how many there were."""
    found = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                found += _remove_if_older(Path(entry.path), LEFTOVER_S)
    return found


def _remove_if_older(path: Path, age_s: float) -> bool:
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > age_s:
            path.unlink()
            return True
    return False


def _sync_directory(directory: Path) -> None:
    """Bring the name itself to disk; some network file systems refuse, and keep it anyway."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
