"""Digests of files that were read once: a copy that is brought up to date must not read everything again.

Files of checkpoints and units never change under their names, and hard links to one are one file. What was read is
therefore known by the identity of the file, its size and the time of its last change.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import BinaryIO

CHUNK_BYTES = 1 << 20
MOST = 20_000
"""Files remembered: a copy of a large state has some hundreds, and each costs less than 200 bytes here."""

_Key = tuple[int, int, int, int]


class Digests:
    """Remembers the SHA-256 of the files that it was asked for last; may be used from several threads."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[_Key, str] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, file: BinaryIO, check: Callable[[], None]) -> tuple[str, int]:
        """Digest and size of an open file; ``check`` is called now and then, and may raise to end it."""
        key = _identity(file)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known, key[2]
        digest, size = hashlib.sha256(), 0
        while data := file.read(CHUNK_BYTES):
            digest.update(data)
            size += len(data)
            check()
        found = digest.hexdigest()
        if size == key[2] and _identity(file) == key:
            with self._lock:
                self._known[key] = found
                while len(self._known) > self._most:
                    self._known.popitem(last=False)
        return found, size


def _identity(file: BinaryIO) -> _Key:
    stat = os.fstat(file.fileno())
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


DIGESTS = Digests()
"""Those of this process, which is donor and newcomer at once."""
