"""Opens files that others put into a directory, without being led elsewhere or kept waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from unbroken.errors import UnbrokenError, Unfit

_OF_WRONG_PLACES = frozenset({errno.EINVAL, errno.EOVERFLOW})
"""What a system says of a seek or a read beyond what a file can have, as a damaged file asks for."""


def by_content(error: Exception) -> bool:
    """Whether a failure to decode a file that is open is a function of its bytes, and so the same on every node.

    An error of the system is not, except that of a place which the bytes name: it is of this node, its disk or its
    network. Arrow reports damaged files as OSError, too, but without a number.
    """
    if isinstance(error, OSError):
        return error.errno is None or error.errno in _OF_WRONG_PLACES
    if isinstance(error, UnbrokenError):
        return isinstance(error, Unfit)
    return not isinstance(error, MemoryError)


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
