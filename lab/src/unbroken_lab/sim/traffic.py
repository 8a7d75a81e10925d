"""Bytes of simulated messages by purpose, counted as a node counts what it sends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from unbroken.protocol.ingress.log import Append
from unbroken.protocol.messages import Delivered, Message
from unbroken.transport.codec import MESSAGE, purpose


@dataclass
class Traffic:
    """Counts messages as they would be encoded.

    What a simulated pulse says about its sources is not what a real one says: with ``entry_bytes``, entries of the log
    count with that many bytes instead of their own. Of units for ``clients``, who take them themselves, replicas do not
    tell each other that they are delivered.
    """

    entry_bytes: int | None = None
    clients: frozenset[str] = frozenset()
    bytes: Counter[str] = field(default_factory=Counter)

    def sent(self, message: Message) -> None:
        if isinstance(message, Delivered) and message.stream.consumer.part in self.clients:
            return
        size = len(MESSAGE.encode(message))
        if self.entry_bytes is not None and isinstance(message, Append) and message.entry is not None:
            size += self.entry_bytes - len(message.entry.body)
        self.bytes[purpose(message)] += size
