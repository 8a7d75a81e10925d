"""Seals over documents: without the flow's token none can be made, and none moved to another path."""

from __future__ import annotations

import hashlib
import hmac
import re

from unbroken.errors import UnbrokenError
from unbroken.security.keys import derive

NUMBERED = re.compile(r"^(/unbroken/[^/]+/(?:history|controller)/[^/]*?)[0-9]{10}$")
"""Paths to which ZooKeeper adds a number when it creates them: the number is not known when they are sealed."""


class ForgedDocument(UnbrokenError):
    """A document whose seal is missing or wrong."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the document {path} in ZooKeeper does not carry the seal of the flow's token and is ignored. Find out "
            "who wrote it, and see that all nodes and commands use the same token."
        )
        self.path = path


class Seal:
    """Seals documents: ``<HMAC-SHA256 in hex>``, a line end, and the document as it is.

    The code covers the path, so that a sealed document is good for one place only. An older document of the same path
    is good as well: compare-and-set, versions and generations within the documents are what tells them apart.
    """

    def __init__(self, token: str) -> None:
        self._key = derive(token, "documents")

    def seal(self, path: str, data: bytes) -> bytes:
        return self._code(path, data) + b"\n" + data

    def unseal(self, path: str, data: bytes | None) -> bytes:
        """What was sealed for this path; raises ForgedDocument."""
        code, _, content = (data or b"").partition(b"\n")
        if not hmac.compare_digest(code, self._code(path, content)):
            raise ForgedDocument(path)
        return content

    def _code(self, path: str, data: bytes) -> bytes:
        numbered = NUMBERED.match(path)
        place = (numbered.group(1) if numbered else path).encode()
        message = len(place).to_bytes(4, "big") + place + data
        return hmac.new(self._key, message, hashlib.sha256).hexdigest().encode()
