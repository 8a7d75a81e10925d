"""Seals over the records of an order log that others may write to: without the flow's token none can be made."""

from __future__ import annotations

import hmac

from unbroken.node.policies.leader.records import OrderRecord
from unbroken.protocol.values.ids import ShardId
from unbroken.security.keys import derive

CODE_CHARS = 64


class RecordSeal:
    """Seals the records of one shard's topic: ``<HMAC-SHA256 in hex>``, a line end, and the record as it is.

    The key is that of the topic, whose name holds the run, and of the shard: a sealed record is none in another place.
    One that is repeated in its own topic is harmless. Its mark stays true, and readers pass over what has been there.
    """

    def __init__(self, token: str, topic: str, shard: ShardId) -> None:
        place = f"{topic}\n{shard}".encode()
        self._key = hmac.digest(derive(token, "orders"), place, "sha256")

    def seal(self, record: OrderRecord) -> bytes:
        data = record.to_bytes()
        return self._code(data) + b"\n" + data

    def open(self, data: bytes | None) -> OrderRecord | None:
        """None if this is no record that was sealed for this place, whatever it is: all readers pass over it alike."""
        if data is None or data[CODE_CHARS : CODE_CHARS + 1] != b"\n":
            return None
        record = data[CODE_CHARS + 1 :]
        return OrderRecord.from_bytes(record) if hmac.compare_digest(data[:CODE_CHARS], self._code(record)) else None

    def _code(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256").hex().encode()
