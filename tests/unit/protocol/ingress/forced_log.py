"""A member of the ingress log whose disk is done at once, and messages between two of them."""

from __future__ import annotations

from unbroken.protocol.ingress.log import IngressLog, IngressMessage
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.messages import Message
from unbroken.protocol.values.ids import NodeId


class ForcedLog(IngressLog):
    """A log whose disk is done at once."""

    def append(self, body: bytes, pulse: int = 0, final: bool = False) -> list[Instruction]:
        return super().append(body, pulse, final) + self._forced()

    def receive(self, sender: NodeId, message: Message) -> list[Instruction]:
        assert isinstance(message, IngressMessage)
        return super().receive(sender, message) + self._forced()

    def _forced(self) -> list[Instruction]:
        return self.persisted(len(self.writing)) if self.writing else []
