"""Simulated order logs: one per leader-ordered shard, where only the newest term can add orders; and who reads them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from unbroken.errors import require
from unbroken.protocol.policies.leader.instructions import FollowOrders, Lead, Publish
from unbroken.protocol.policies.leader.orders import LeaderKnown, Order, Ordered, OrderRefused
from unbroken.protocol.values.ids import NodeId, ShardId

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


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


class Orders:
    """A node's dealings with the order logs of its leader-ordered shards."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process
        self._following: dict[ShardId, Follower] = {}

    def follow(self, step: FollowOrders) -> None:
        self._process.world.zookeeper.logs.setdefault(step.shard, OrderLog(step.shard))
        self._following[step.shard] = Follower(step.after)
        self.look(step.shard)

    def forget(self, shard: ShardId) -> None:
        self._following.pop(shard, None)

    def ask(self, request: Lead | Publish) -> None:
        """Send the log what it is to take; out of reach of it, that is refused after a while."""
        store = self._process.world.zookeeper
        store.kernel.after(store.model.latency_ms, self._arrive, request)

    def _arrive(self, request: Lead | Publish) -> None:
        process, store = self._process, self._process.world.zookeeper
        away = not store.up or not store.network.reaches(process.name, "zookeeper")
        if away:
            refused: OrderRefused | None = OrderRefused(request.shard, request.term, "the log is away")
        else:
            log: OrderLog = store.logs[request.shard]
            refused = log.take(process.name, process, request)
            if refused is None:
                store.notify(f"orders {request.shard}")
        if refused is not None and process.alive:
            answer = refused
            process.later(store.model.retry_ms if away else store.model.latency_ms, lambda _: process.post(answer))

    def look_at_all(self) -> None:
        for shard in self._following:
            self.look(shard)

    def look(self, shard: ShardId) -> None:
        """There may be something to read."""
        store = self._process.world.zookeeper
        if shard in self._following:
            jitter = store.kernel.random("orders").random() * store.model.watch_ms
            store.kernel.after(store.model.latency_ms + jitter, self._read, shard)

    def _read(self, shard: ShardId) -> None:
        process, store = self._process, self._process.world.zookeeper
        while process.client.reachable and (follower := self._following.get(shard)) is not None:
            news = follower.next(store.logs[shard], process)
            if news is None:
                return
            process.post(news)
