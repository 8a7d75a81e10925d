"""Simulated order logs: one per leader-ordered shard, where only the newest term can add orders."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unbroken.errors import require
from unbroken.protocol.ids import NodeId, ShardId
from unbroken.protocol.instructions import Lead, Publish
from unbroken.protocol.orders import LeaderKnown, Order, Ordered, OrderRefused


@dataclass
class OrderLog:
    """The log of one shard. What is in it stays as it is; ``processes`` are those that asked for each term."""

    shard: ShardId
    orders: list[Order] = field(default_factory=list)
    leaders: list[LeaderKnown] = field(default_factory=list)
    processes: list[object] = field(default_factory=list)

    def take(self, name: NodeId, process: object, request: Lead | Publish) -> OrderRefused | None:
        """Write what a node wants written, or say why not."""
        term = self.leaders[-1].term if self.leaders else 0
        if isinstance(request, Lead):
            if request.term != term + 1:
                return OrderRefused(self.shard, request.term, "another term has begun")
            self.leaders.append(LeaderKnown(self.shard, request.term, name, len(self.orders), request.claim))
            self.processes.append(process)
            return None
        for order in request.orders:
            if request.term != term or order.number > len(self.orders) + 1:
                return OrderRefused(self.shard, request.term, "another leads")
            if order.number == len(self.orders) + 1:
                before = self.orders[-1].cut if self.orders else {}
                require(all(order.cut[stream] >= unit for stream, unit in before.items()), f"{order} goes back")
                require(order.cut != before, f"{order} orders nothing")
                self.orders.append(order)
            else:
                require(self.orders[order.number - 1] == order, f"{order} is ordered in another way")
        return None


@dataclass
class Follower:
    """How far one node has read the log of a shard."""

    read: int
    term: int = 0

    def next(self, log: OrderLog, process: object) -> Ordered | LeaderKnown | None:
        """What comes next for this reader; None if it has read everything."""
        news = [known for known in log.leaders if known.term > self.term]
        if news and (self.read >= news[0].last or len(log.orders) <= self.read):
            self.term = news[-1].term
            own = log.processes[-1] is process
            return replace(news[-1], claim=news[-1].claim if own else 0)
        if self.read < len(log.orders):
            self.read += 1
            return Ordered(log.shard, (log.orders[self.read - 1],))
        return None
