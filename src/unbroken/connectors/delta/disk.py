"""Brings the commits of a Delta table in a directory to disk, which the library leaves to the system.

A unit that is reported as delivered is not delivered again, so it has to survive a machine that loses its power. So do
the commits before it, whoever made them: a log with a gap cannot be read.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

SETTLED_S = 600.0
"""What was written so long ago is on disk anyway; systems wait half a minute."""

LOG = "_delta_log"


def settled(root: Path, version: int) -> int:
    """The last version up to ``version`` that was committed so long ago that it is on disk; -1 if there is none."""
    oldest = time.time() - SETTLED_S
    while version >= 0:
        try:
            if _commit(root, version).stat().st_mtime < oldest:
                return version
        except FileNotFoundError:
            return version  # Removed from the log, because it is old.
        version -= 1
    return version


def bring_to_disk(root: Path, after: int, version: int) -> None:
    """Sync all commits behind version ``after`` up to ``version``: their data, then they themselves, and the names."""
    directories = {root.parent, root, root / LOG}
    commits = [_commit(root, number) for number in range(after + 1, version + 1)]
    for commit in commits:
        for file in _added(root, commit):
            _sync(file)
            directories.update(parent for parent in file.parents if parent.is_relative_to(root))
    for commit in commits:
        _sync(commit)
        _sync(commit.with_suffix(".checkpoint.parquet"))
    _sync(root / LOG / "_last_checkpoint")
    for directory in directories:
        # Some network file systems refuse, and keep names anyway.
        with contextlib.suppress(OSError):
            _sync(directory)


def _commit(root: Path, version: int) -> Path:
    return root / LOG / f"{version:020d}.json"


def _added(root: Path, commit: Path) -> Iterator[Path]:
    """The files that a commit adds to the table; those of other places are not the sink's."""
    try:
        lines = commit.read_text().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        action = json.loads(line).get("add")
        if action is not None and "://" not in action["path"] and not action["path"].startswith("/"):
            yield root / unquote(action["path"])


def _sync(path: Path) -> None:
    """Whoever wrote it. A file that is not there was compacted or cleaned up meanwhile, or never was."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
