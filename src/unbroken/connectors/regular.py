"""Opens files that others put into a directory, without being led elsewhere or kept waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

PASSING = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.ENOMEM),
        *(errno.EMFILE, errno.ENFILE, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN),
        *(errno.ENETUNREACH, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ESHUTDOWN),
        *(errno.ENODEV, errno.ENOLINK, errno.EBUSY, errno.ENOBUFS, errno.ENOLCK),
    }
)
"""What a disk or a network file system reports that may be able to read the file later."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    A link is not followed, because it may lead to a file that only this process can read; a pipe, device or socket is
    not waited for.

    Raises
    ------
    OSError
        If it cannot be opened, also because it is a link.
    ValueError
        If it is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is not a regular file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise
