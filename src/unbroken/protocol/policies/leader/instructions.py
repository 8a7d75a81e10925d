"""What a shell does with the order logs of shards that are ordered by a leader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from unbroken.protocol.policies.leader.orders import Order
from unbroken.protocol.values.ids import ShardId
from unbroken.protocol.vocabulary import PolicyEffects, PolicyInstruction


@dataclass(frozen=True)
class FollowOrders(PolicyInstruction):
    """Read the orders of a shard from its log, those after number ``after``, until the replica is dropped; report each
    by ``Ordered``."""

    shard: ShardId
    after: int

    def carry_out(self, shell: Iterable[PolicyEffects]) -> None:
        OrderEffects.of(shell).follow_orders(self)


@dataclass(frozen=True)
class Lead(PolicyInstruction):
    """Ask the log of a shard for the lead in ``term``; it answers by ``LeaderKnown``, with this ``claim`` if it gives
    it, or ``OrderRefused``."""

    shard: ShardId
    term: int
    claim: int

    def carry_out(self, shell: Iterable[PolicyEffects]) -> None:
        OrderEffects.of(shell).lead(self)


@dataclass(frozen=True)
class Publish(PolicyInstruction):
    """Write orders to the log of a shard; they come back by ``Ordered``, unless ``OrderRefused`` does."""

    shard: ShardId
    term: int
    orders: tuple[Order, ...]

    def carry_out(self, shell: Iterable[PolicyEffects]) -> None:
        OrderEffects.of(shell).publish(self)


class OrderEffects(PolicyEffects, ABC):
    """Reads and writes order logs; what comes of it is reported by events."""

    @abstractmethod
    def follow_orders(self, step: FollowOrders) -> None: ...

    @abstractmethod
    def lead(self, step: Lead) -> None: ...

    @abstractmethod
    def publish(self, step: Publish) -> None: ...
