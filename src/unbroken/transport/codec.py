"""Messages as bytes, and what their bytes are spent on. Nothing is ever unpickled."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.codecs.codec import Codec
from unbroken.protocol.ingress.log import Append, AppendAck
from unbroken.protocol.messages import Ack, Claimed, Delivered, Message
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.vocabulary import PolicyMessage

MESSAGE: Codec[Message] = Codec(Message, "message")


@dataclass(frozen=True)
class Hello:
    """The first word of a link: who opens it."""

    peer: NodeId


HELLO = Codec(Hello, "hello")


def purpose(message: Message) -> str:
    """What the bytes of a message are spent on: acknowledgements, copies of the ingress log, or keeping in touch."""
    match message:
        case Ack() | AppendAck() | Delivered() | Claimed() | PolicyMessage(acknowledges=True):
            return "acknowledgements"
        case Append():
            return "redundancy"
        case _:
            return "coordination"
