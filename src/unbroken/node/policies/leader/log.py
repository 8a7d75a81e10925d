"""The order log: where the leader of a shard publishes its orders, and from where every replica of it takes them.

One contract, two kinds: `unbroken.node.policies.leader.zookeeper` and `unbroken.node.policies.leader.kafka`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unbroken.errors import require
from unbroken.protocol.policies.leader.orders import LeaderKnown, Order, Ordered, OrderRefused, OrdersLost
from unbroken.protocol.values.ids import NodeId, ShardId

DEADLINE_S = 5.0
"""How long a log tries to write before it refuses. A server that is restarted, or another that takes over, is back
sooner; the orders of a leader that is told later would be late anyway."""

WAITING_LIMIT = 1_000
"""Orders, and wishes to lead, of one shard that wait to be written. A leader has a few of them under way; more are
refused at once."""

NOT_FOLLOWED = "the orders of this shard are not followed here"


LogEvent = Ordered | LeaderKnown | OrderRefused | OrdersLost

Room = Callable[[float], bool]
"""Waits until more events can be posted, for so many seconds at most; False if they cannot. Threads of a log ask before
they read on: ``post`` itself never waits, it is called where the loop may have to wait for it."""


def always_room(timeout_s: float) -> bool:
    return True


class OrderLog(ABC):
    """A dense, numbered sequence of orders for each shard, written by one leader at a time.

    Guarantees
    ----------
    - Each number of a shard has one content for everybody, for ever, and no number is left out.
    - A term belongs to one node. Once a term has begun nothing of an earlier one is added, however late a frozen or
      delayed leader writes.
    - ``LeaderKnown.last`` is the newest order before that term; the orders of the term follow it.
    - Publishing an order again in its term changes nothing.

    Each following posts in the order of the log: every order after the first once, and the beginning of a term behind
    the orders that it goes on from and before its own. Terms that were over before this node got to look may be left
    out.

    Nothing here waits for a server: calls hand over to threads of the log, and ``post`` is called from those, or at
    once by the caller's; it must return at once, too. While the log is away what is to be written is tried until the
    deadline and refused then; following goes on by itself when the log is back. A refusal because of a deadline says
    that nobody knows: what was refused may still turn up in the log, with its old content, and counts then.

    A node leads and publishes for shards that it follows.
    """

    @abstractmethod
    def follow(self, shard: ShardId, after: int) -> None:
        """Post the orders from ``after`` + 1 on, and every leader from the one that is found first.

        Asked again for a shard it begins anew from ``after``. If the orders are not there any more `OrdersLost` is
        posted, and following has ended.
        """

    @abstractmethod
    def forget(self, shard: ShardId) -> None:
        """Stop following: nothing more is posted about this shard, and nothing that waits is written.

        What is on its way already may arrive.
        """

    @abstractmethod
    def lead(self, shard: ShardId, term: int) -> None:
        """Try to become the leader in ``term``, one more than the last known.

        If this node does, `LeaderKnown` tells it; if not, `OrderRefused`, and `LeaderKnown` who does instead.
        """

    @abstractmethod
    def publish(self, shard: ShardId, term: int, orders: Sequence[Order]) -> None:
        """Add orders, which come back as `Ordered`, or `OrderRefused` is posted.

        After a refusal the leader looks at what has come back, and goes on from there.
        """

    @abstractmethod
    def close(self) -> None:
        """End all threads of the log; nothing is posted afterwards."""


@dataclass(frozen=True)
class Standing:
    """How things stand at a place in a log: who leads in which term, and the newest order.

    ``before`` is the newest order before the term began.
    """

    term: int = 0
    leader: NodeId = ""
    before: int = 0
    last: int = 0

    def begin(self, term: int, node: NodeId) -> Standing:
        """The standing behind the beginning of a term."""
        require(term > self.term, f"term {term} cannot follow term {self.term}")
        return Standing(term, node, self.last, self.last)

    def refusal(self, node: NodeId, term: int) -> str | None:
        """Why ``node`` cannot publish in ``term``; None if it can."""
        if (term, node) == (self.term, self.leader):
            return None
        if not self.term:
            return f"nobody leads yet, in no term; {node} has to lead in term {term} first"
        return f"{self.leader} leads in term {self.term}"


def check_orders(term: int, orders: Sequence[Order]) -> None:
    """Assert that orders can be published together: all of this term, numbered without a gap."""
    for order, expected in zip(orders, range(orders[0].number if orders else 1, 1 << 62), strict=False):
        require(order.number == expected >= 1, f"order {order.number} is published where {expected} belongs")
        require(order.term == term >= 1, f"order {order.number} of term {order.term} is published in term {term}")


@dataclass(frozen=True)
class OrderWrite:
    """Something to be written by a time: orders, or without them the beginning of a term."""

    term: int
    until: float
    orders: tuple[Order, ...] | None = None


class Delivery:
    """Posts what one following of a shard comes to know.

    Invariant: orders are posted without a gap, each once, up to ``last``; terms only grow, up to ``term``; nothing is
    posted once it has ended.
    """

    def __init__(self, shard: ShardId, after: int, post: Callable[[LogEvent], None]) -> None:
        self.shard = shard
        self.last = after
        self.term = 0
        self._post = post
        self._lock = threading.Lock()
        self._ended = False

    @property
    def ended(self) -> bool:
        return self._ended

    def orders(self, orders: Sequence[Order]) -> None:
        """Post orders that follow ``last``."""
        if not orders:
            return
        for expected, order in enumerate(orders, start=self.last + 1):
            require(
                order.number == expected, f"order {order.number} of {self.shard} follows {expected - 1}", self.shard
            )
        self._give(Ordered(self.shard, tuple(orders)))
        self.last = orders[-1].number

    def leader(self, standing: Standing) -> None:
        """Post who leads, unless it is known, or a later term is."""
        if standing.term > self.term:
            require(
                standing.before <= self.last,
                f"term {standing.term} of {self.shard} begins behind {self.last}",
                self.shard,
            )
            self.repeat_leader(standing)
            self.term = standing.term

    def repeat_leader(self, standing: Standing) -> None:
        """Post who leads although it is known; to one that asks to lead where it does already."""
        self._give(LeaderKnown(self.shard, standing.term, standing.leader, standing.before))

    def refused(self, term: int, reason: str) -> None:
        self._give(OrderRefused(self.shard, term, reason))

    def lost(self, first: int, reason: str) -> None:
        """Post that the next order cannot be had, and end."""
        self._give(OrdersLost(self.shard, self.last, first, reason))
        self.end()

    def end(self) -> None:
        with self._lock:
            self._ended = True

    def _give(self, event: LogEvent) -> None:
        with self._lock:
            if not self._ended:
                self._post(event)
