"""Orders: the cuts of a leader-ordered shard, as they are agreed through its order log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from unbroken.protocol.values.ids import NodeId, ShardId, StreamId

MOST_BRACKETS = 16
"""Brackets in one JSON text about orders; two are needed, and names may have some."""


@dataclass(frozen=True)
class Order:
    """Micro-batch ``number`` of a shard takes its input up to these units, by stream.

    Orders of a shard are numbered from 1 without a gap, and what is ordered once never changes: whoever reads an order
    again reads the same. ``term`` is that of the leader who gave it.
    """

    number: int
    cut: Mapping[StreamId, int]
    term: int

    def to_bytes(self) -> bytes:
        cut = {str(stream): last for stream, last in self.cut.items()}
        return json.dumps({"number": self.number, "term": self.term, "cut": cut}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Order:
        """ValueError if ``data`` is no order, whatever it is."""
        match flat_json(data):
            case {"number": number, "term": term, "cut": dict(cut)}:
                streams = {StreamId.parse(stream): whole(last) for stream, last in cut.items()}
                return cls(whole(number), streams, whole(term))
        raise ValueError("an order has a number, a term and a cut")


def flat_json(data: bytes) -> Any:
    """The value of a JSON text that is hardly nested; ValueError for any other.

    How deep a parser gets depends on the stack below it, so two readers could disagree about the same text. The number
    of brackets does not depend on anything.
    """
    if data.count(b"{") + data.count(b"[") > MOST_BRACKETS:
        raise ValueError(f"there are more than {MOST_BRACKETS} brackets")
    return json.loads(data, parse_constant=_no_number)


def whole(value: object) -> int:
    """A whole number that is not negative and fits into 64 bits; ValueError for anything else."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("a whole number is needed")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


@dataclass(frozen=True)
class Ordered:
    """Orders were read from the log of a shard, in their order; every replica of the shard gets to read all of them."""

    shard: ShardId
    orders: tuple[Order, ...]


@dataclass(frozen=True)
class LeaderKnown:
    """The log of a shard says who leads it in which term; ``last`` is the newest order before that term began.

    A leader learns from this that it may go on from ``last``: no order of an earlier term can follow. ``claim`` is the
    number by which this very process has asked for that term, 0 if another one has: a process that was started again
    does not know what the one before it has under way.
    """

    shard: ShardId
    term: int
    leader: NodeId
    last: int
    claim: int = 0


@dataclass(frozen=True)
class OrderRefused:
    """The log did not take what this node wanted to write in ``term``: somebody else leads by now, or it is away."""

    shard: ShardId
    term: int
    reason: str


@dataclass(frozen=True)
class OrdersLost:
    """Order ``after`` + 1 of a shard cannot be had, so following has ended; nothing was skipped.

    ``first`` is the oldest order from which on the log can be followed; 0 if it cannot be at all. If it is not larger
    than ``after``, the log ends before what this follower has seen: it was deleted, or is another one.
    """

    shard: ShardId
    after: int
    first: int
    reason: str = ""
