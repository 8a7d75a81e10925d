"""Orders: the cuts of a leader-ordered shard, as they are agreed through its order log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unbroken.protocol.values.ids import NodeId, ShardId, StreamId
from unbroken.protocol.vocabulary import PolicyEvent


@dataclass(frozen=True)
class Order:
    """Micro-batch ``number`` of a shard takes its input up to these units, by stream.

    Orders of a shard are numbered from 1 without a gap, and what is ordered once never changes: whoever reads an order
    again reads the same. ``term`` is that of the leader who gave it.
    """

    number: int
    cut: Mapping[StreamId, int]
    term: int


@dataclass(frozen=True)
class Ordered(PolicyEvent):
    """Orders were read from the log of a shard, in their order; every replica of the shard gets to read all of them."""

    shard: ShardId
    orders: tuple[Order, ...]


@dataclass(frozen=True)
class LeaderKnown(PolicyEvent):
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
class OrderRefused(PolicyEvent):
    """The log did not take what this node wanted to write in ``term``: somebody else leads by now, or it is away."""

    shard: ShardId
    term: int
    reason: str


@dataclass(frozen=True)
class OrdersLost(PolicyEvent):
    """Order ``after`` + 1 of a shard cannot be had, so following has ended; nothing was skipped.

    ``first`` is the oldest order from which on the log can be followed; 0 if it cannot be at all. If it is not larger
    than ``after``, the log ends before what this follower has seen: it was deleted, or is another one.
    """

    shard: ShardId
    after: int
    first: int
    reason: str = ""
