"""Statuses as bytes: JSON that is derived from the types of the schema."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from unbroken.errors import UnbrokenError
from unbroken.observe.status.flow import FlowStatus
from unbroken.observe.status.node import SCHEMA, NodeStatus

T = TypeVar("T", NodeStatus, FlowStatus)


class UnreadableStatus(UnbrokenError):
    """A status of another version, or bytes that are no status."""


class _Version(Struct):
    schema: int


# Made here and not by the first thread that reads a status: msgspec crashes if two threads look into a type at once.
_VERSION = msgspec.json.Decoder(_Version)
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (NodeStatus, FlowStatus)
}


def encode(status: Struct) -> bytes:
    """A status, or any part of the schema, as JSON; every field is present."""
    return msgspec.json.encode(status)


def decode(kind: type[T], data: bytes, sender: str = "the flow") -> T:
    """Read a status that ``sender`` has sent.

    Raises
    ------
    UnreadableStatus
        If it has another version of the schema, or does not fit it; the message says where.
    """
    try:
        found = _VERSION.decode(data).schema
        if found != SCHEMA:
            raise UnreadableStatus(
                f"the status of {sender} has schema {found}, this program reads schema {SCHEMA}. {_remedy(sender)}"
            )
        status: T = _DECODERS[kind].decode(data)
        return status
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableStatus(f"the status of {sender} cannot be read: {error}. {_remedy(sender)}") from error


def decode_node(data: bytes, node: str) -> NodeStatus:
    """Read the status that a node has sent; UnreadableStatus if it cannot be, or is of another node."""
    found = decode(NodeStatus, data, node)
    if found.node != node:
        raise UnreadableStatus(f"the status of {node} is that of {found.node!r}. Look which node has its address.")
    return found


def _remedy(sender: str) -> str:
    return f"Use the unbroken command of the version that {sender} runs."
