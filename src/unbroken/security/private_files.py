"""Keeps rows, logs and tokens from other users of the machine: by directories, not by a umask.

Everything that a process of a flow keeps for itself lies below one directory: that of the run, of the node, or of the
data of its ZooKeeper. A directory of mode 0700 closes all that is below it, whatever process made it and whatever mode
it has: Spark's, RocksDB's and ZooKeeper's files as well as those of earlier versions. A umask would hold for files that
are not for the flow alone, too, which the same process writes: those of sinks (Parquet, JSON, Delta and functions of
the user's), whose modes follow the umask that the user has set.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import IO

PRIVATE = 0o700
PRIVATE_FILE = 0o600

log = logging.getLogger(__name__)


def make_private(directory: Path) -> None:
    """Make a directory for its owner alone, also if it exists already; a warning, if it belongs to another user."""
    directory.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    if stat.S_IMODE(directory.stat().st_mode) == PRIVATE:
        return
    try:
        directory.chmod(PRIVATE)
    except OSError as error:
        log.warning(
            "%s cannot be closed to other users (%s): give it to the user of this process, with mode 0700",
            directory,
            error.strerror,
        )


def append_private(path: Path) -> IO[bytes]:
    """Open a log to append to; a new one is for its owner alone, wherever it is."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE), "ab")
