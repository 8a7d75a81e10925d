"""The head of a shard's order log in ZooKeeper: one small document that says what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from unbroken.codecs.codec import Codec
from unbroken.node.policies.leader.log import Standing
from unbroken.protocol.policies.leader.orders import Order

BATCH = 50
BATCH_BYTES = 200_000
"""Orders written in one transaction, or read at a time. They are in it twice, and ZooKeeper takes 1 MB."""


@dataclass(frozen=True)
class OrderLogHead:
    """What the head of a shard's log says; orders from ``first`` to the newest are there, ``recent`` are the newest."""

    standing: Standing = field(default_factory=Standing)
    first: int = 1
    recent: tuple[Order, ...] = ()

    def add(self, orders: Sequence[Order], keep: int) -> OrderLogHead:
        """The head after these orders, with as many kept."""
        standing = replace(self.standing, last=orders[-1].number)
        return OrderLogHead(standing, max(self.first, standing.last - keep + 1), tuple(orders))


HEAD = Codec(OrderLogHead, "order-head", readable=True)
ORDER = Codec(Order, "order", readable=True)


def fitting(orders: Sequence[Order], keep: int) -> int:
    """How many of these orders can be added at once to a log that keeps so many; at least one."""
    size, count = 0, 0
    for order in orders[: min(BATCH, keep)]:
        size += len(ORDER.encode(order))
        if count and size > BATCH_BYTES:
            break
        count += 1
    return count
