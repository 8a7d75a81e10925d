"""Members of a shard as the order log sees them: they remember what they were told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from kit.support import wait_until
from unbroken.node.policies.leader.log import LogEvent, OrderLog
from unbroken.protocol.policies.leader.orders import LeaderKnown, Order, Ordered, OrderRefused, OrdersLost
from unbroken.protocol.values.ids import NodeId, ShardId, StreamId

SHARD = ShardId("counts", 0)
INPUT = StreamId(ShardId("source", 0), SHARD)
WAIT_S = 20.0


def order(number: int, term: int, last: int | None = None) -> Order:
    """An order with a content that tells who gave it, if ``last`` does."""
    return Order(number, {INPUT: number if last is None else last}, term)


def orders(first: int, last: int, term: int) -> list[Order]:
    return [order(number, term) for number in range(first, last + 1)]


class Service(Protocol):
    """A running server with order logs; each test has logs of its own in it."""

    kind: str
    address: str
    name: str

    def open(self, node: NodeId, post: Callable[[LogEvent], None], deadline_s: float) -> OrderLog: ...


class Member:
    """One node that uses the order log; checks with every event what must hold for all of them."""

    def __init__(self, service: Service, name: NodeId, deadline_s: float = 5.0) -> None:
        self.name = name
        self.events: list[LogEvent] = []
        self.problems: list[str] = []
        self._next: dict[ShardId, int] = {}
        self._lock = threading.Lock()
        self.log = service.open(name, self._post, deadline_s)

    def _post(self, event: LogEvent) -> None:
        with self._lock:
            self.events.append(event)
            if isinstance(event, Ordered):
                for each in event.orders:
                    if each.number != self._next.get(event.shard, 1):
                        self.problems.append(f"{self.name}: order {each.number} instead of {self._next[event.shard]}")
                    self._next[event.shard] = each.number + 1
            elif isinstance(event, LeaderKnown) and event.last >= self._next.get(event.shard, 1):
                self.problems.append(f"{self.name}: {event} came before the orders it follows")

    def follow(self, shard: ShardId = SHARD, after: int = 0) -> Member:
        self._next[shard] = after + 1
        self.log.follow(shard, after)
        return self

    def orders(self, shard: ShardId = SHARD) -> list[Order]:
        return [each for e in list(self.events) if isinstance(e, Ordered) and e.shard == shard for each in e.orders]

    def leaders(self, shard: ShardId = SHARD) -> list[LeaderKnown]:
        return [event for event in list(self.events) if isinstance(event, LeaderKnown) and event.shard == shard]

    def refusals(self, shard: ShardId = SHARD) -> list[OrderRefused]:
        return [event for event in list(self.events) if isinstance(event, OrderRefused) and event.shard == shard]

    def lost(self, shard: ShardId = SHARD) -> list[OrdersLost]:
        return [event for event in list(self.events) if isinstance(event, OrdersLost) and event.shard == shard]

    def lead(self, term: int, shard: ShardId = SHARD) -> LeaderKnown:
        """Lead in a term and wait until that is so."""
        self.log.lead(shard, term)
        found = self.wait_leader(term, shard)
        assert (found.term, found.leader) == (term, self.name), found
        return found

    def wait_leader(self, term: int = 1, shard: ShardId = SHARD) -> LeaderKnown:
        """Wait until a term has begun, or a later one; the last leader that is known."""
        self.wait(lambda: bool(self.leaders(shard)) and self.leaders(shard)[-1].term >= term, f"term {term}")
        return self.leaders(shard)[-1]

    def wait_orders(self, last: int, shard: ShardId = SHARD) -> list[Order]:
        """Wait until order ``last`` has come; all that have come."""
        self.wait(lambda: self._next.get(shard, 1) > last, f"order {last} of {shard}")
        return self.orders(shard)

    def wait_refusal(self, term: int, shard: ShardId = SHARD, count: int = 1) -> OrderRefused:
        """Wait until something was refused so often in a term; the last refusal."""

        def found() -> list[OrderRefused]:
            return [each for each in self.refusals(shard) if each.term == term]

        self.wait(lambda: len(found()) >= count, f"refusal {count} in term {term}")
        return found()[-1]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, WAIT_S, lambda: f"{self.name}: {what}; the last events: {self.events[-5:]}", 0.002)

    def close(self) -> None:
        self.log.close()
        assert not self.problems, self.problems
