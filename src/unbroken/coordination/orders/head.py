"""The head of a shard's order log in ZooKeeper: one small document that says what there is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from unbroken.coordination.orders.log import Standing
from unbroken.protocol.leader.orders import Order

BATCH = 50
BATCH_BYTES = 200_000
"""Orders written in one transaction, or read at a time. They are in it twice, and ZooKeeper takes 1 MB."""


@dataclass(frozen=True)
class Head:
    """What the head of a shard's log says; orders from ``first`` to the newest are there, ``recent`` are the newest."""

    standing: Standing = field(default_factory=Standing)
    first: int = 1
    recent: tuple[Order, ...] = ()

    def add(self, orders: Sequence[Order], keep: int) -> Head:
        """The head after these orders, with as many kept."""
        standing = replace(self.standing, last=orders[-1].number)
        return Head(standing, max(self.first, standing.last - keep + 1), tuple(orders))

    def to_bytes(self) -> bytes:
        said = {"term": self.standing.term, "leader": self.standing.leader, "before": self.standing.before}
        said |= {"last": self.standing.last, "first": self.first}
        orders = b",".join(order.to_bytes() for order in self.recent)
        return json.dumps(said).encode()[:-1] + b', "recent": [' + orders + b"]}"

    @classmethod
    def from_bytes(cls, data: bytes) -> Head:
        said = json.loads(data)
        standing = Standing(int(said["term"]), str(said["leader"]), int(said["before"]), int(said["last"]))
        recent = tuple(Order.from_bytes(json.dumps(each).encode()) for each in said["recent"])
        return cls(standing, int(said["first"]), recent)


def fitting(orders: Sequence[Order], keep: int) -> int:
    """How many of these orders can be added at once to a log that keeps so many; at least one."""
    size, count = 0, 0
    for order in orders[: min(BATCH, keep)]:
        size += len(order.to_bytes())
        if count and size > BATCH_BYTES:
            break
        count += 1
    return count
