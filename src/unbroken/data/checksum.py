"""Checksums of files that are read back: a flipped bit is found before anything else looks at the bytes.

CRC32C finds every error of up to three bits in the sizes that occur here and every burst of 32, and processors compute
it in hardware. It comes from ``google-crc32c``, which is maintained for Google's storage clients and has wheels with
that code for all platforms; the standard library has only CRC32, in software.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import google_crc32c

from unbroken.data.durability import force_path
from unbroken.errors import UnbrokenError

_MARK = b"\ncrc32c "


class Damaged(UnbrokenError):
    """A file does not hold what was written to it; ``remedy`` is one imperative."""

    def __init__(self, path: Path | str, reason: str, remedy: str) -> None:
        self.path = Path(path)
        self.finding = f"damaged file: {path} ({reason})"
        super().__init__(f"{self.finding}. {remedy}")


def crc32c(*parts: Any, value: int = 0) -> int:
    """The checksum of bytes, or of read-only buffers, that follow each other and what has the checksum ``value``."""
    for part in parts:
        value = int(google_crc32c.extend(value, part))
    return value


def sealed(data: bytes) -> bytes:
    """A small document with its checksum in the last line."""
    return data + _MARK + b"%08x\n" % crc32c(data)


def unsealed(path: Path, raw: bytes, remedy: str) -> bytes:
    """The document that was sealed; raises Damaged if it is not that."""
    data, _, _ = raw.rpartition(_MARK)
    if sealed(data) != raw:
        raise Damaged(path, "its checksum is wrong", remedy)
    return data


def replace_file(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of a file, at once and for good: forced to disk, with its name."""
    unfinished = path.with_name(f"{path.name}.tmp")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    force_path(path.parent)
