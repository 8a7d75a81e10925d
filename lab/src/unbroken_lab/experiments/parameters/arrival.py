"""Replicas that nobody orders, for comparison only: each takes whatever has arrived at it when it has time for more.

Unbroken has no such mode, and a flow that runs like this gives wrong results. It is made of a flow that is ordered by
leaders by giving every node an order log of its own, in its memory: each replica then leads itself, and is told its own
orders at once. What is measured is the rest of the product, without agreement. Everything else is as it is, also the
comparison of digests, which finds that replicas differ and stops one of them; for a measurement of times that is
switched off, or there would be no replicas to measure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from unbroken.node.policies import PolicyHost
from unbroken.node.policies.leader import order_logs
from unbroken.node.policies.leader.log import NOT_FOLLOWED, Delivery, LogEvent, OrderLog, Standing, check_orders
from unbroken.protocol.output.divergence import DigestBook, Divergence
from unbroken.protocol.policies.leader.orders import Order, OrderRefused
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest


class OwnOrders(OrderLog):
    """An order log that nobody else reads: whoever asks leads, and what is published comes back at once.

    It keeps the contract of a log for the one node that has it, and breaks it between nodes: a number of a shard has
    another content for each of them. Orders are not kept, so it can only be followed on, not read again.
    """

    def __init__(self, node: NodeId, post: Callable[[LogEvent], None]) -> None:
        self._node = node
        self._post = post
        self._deliveries: dict[ShardId, Delivery] = {}
        self._standings: dict[ShardId, Standing] = {}

    def follow(self, shard: ShardId, after: int) -> None:
        self.forget(shard)
        self._deliveries[shard] = Delivery(shard, after, self._post)
        term = self._standings.get(shard, Standing()).term
        self._standings[shard] = Standing(term, "", after, after)

    def forget(self, shard: ShardId) -> None:
        followed = self._deliveries.pop(shard, None)
        if followed is not None:
            followed.end()

    def lead(self, shard: ShardId, term: int) -> None:
        delivery = self._deliveries.get(shard)
        if delivery is None:
            self._post(OrderRefused(shard, term, NOT_FOLLOWED))
            return
        known = self._standings[shard]
        if term <= known.term:
            # The term of a replica that was here before: the next question will be for a later one.
            delivery.refused(term, f"term {known.term} has begun")
            delivery.repeat_leader(Standing(known.term, self._node, delivery.last, delivery.last))
            return
        self._standings[shard] = Standing(term, self._node, delivery.last, delivery.last)
        delivery.leader(self._standings[shard])

    def publish(self, shard: ShardId, term: int, orders: Sequence[Order]) -> None:
        check_orders(term, orders)
        delivery = self._deliveries.get(shard)
        if delivery is None:
            self._post(OrderRefused(shard, term, NOT_FOLLOWED))
            return
        refusal = self._standings[shard].refusal(self._node, term)
        if refusal is not None:
            delivery.refused(term, refusal)
        else:
            delivery.orders(orders)

    def close(self) -> None:
        for shard in list(self._deliveries):
            self.forget(shard)


def take_what_arrives(*, compare: bool) -> None:
    """Let the leader-ordered segments of this process take their input in the order of arrival.

    To be called by the file of a flow. It has an effect in processes that are nodes and in no other, since the one that
    starts the nodes loads the file, too. With ``compare`` digests are compared as always.
    """
    if sys.argv[1:2] != ["node"]:
        return
    setattr(order_logs, "open_order_log", _open_own)  # noqa: B010
    if not compare:
        setattr(DigestBook, "note", _pass_over)  # noqa: B010


def _open_own(_host: PolicyHost, me: str, heard: Callable[[LogEvent], None]) -> OrderLog:
    return OwnOrders(me, heard)


def _pass_over(
    book: DigestBook, replica: ReplicaId, stream: StreamId, number: int, digest: Digest
) -> Divergence | None:
    return None
