"""The order logs of a node: opened when the first shard needs one, spoken to in the words of the protocol."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from unbroken.coordination.orders.log import LogEvent, OrderLog
from unbroken.errors import UnbrokenError
from unbroken.protocol.instructions import FollowOrders, Lead, Publish
from unbroken.protocol.leader.orders import LeaderKnown
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId

if TYPE_CHECKING:
    from unbroken.node.node import Node

KAFKA = "kafka://"


def kept_in_kafka(order_log: str) -> bool:
    """Whether this setting keeps orders, and who leads, outside of ZooKeeper."""
    return order_log.startswith(KAFKA)


class Orders:
    """Carries out what the protocol says about orders.

    A log knows its writers by names that are never used again, a process each; the protocol knows nodes, and whether
    it was this very process, and which of its questions, that made it the leader.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._me = f"{node.name}/{uuid.uuid4().hex[:12]}"
        self._claims: dict[tuple[ShardId, int], int] = {}
        self._log: OrderLog | None = None

    def follow(self, step: FollowOrders) -> None:
        self._opened().follow(step.shard, step.after)

    def lead(self, step: Lead) -> None:
        # Of several questions for one term the first may be the one that is granted.
        self._claims.setdefault((step.shard, step.term), step.claim)
        self._opened().lead(step.shard, step.term)

    def publish(self, step: Publish) -> None:
        self._opened().publish(step.shard, step.term, step.orders)

    def forget(self, replica: ReplicaId) -> None:
        if self._log is not None and replica.shard.part in self._node.programs.topology.led:
            self._log.forget(replica.shard)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _heard(self, event: LogEvent) -> None:
        if isinstance(event, LeaderKnown):
            own = event.leader == self._me
            claim = self._claims.get((event.shard, event.term), 0) if own else 0
            self._claims = {key: n for key, n in self._claims.items() if key[0] != event.shard or key[1] >= event.term}
            event = replace(event, leader=_node_of(event.leader), claim=claim)
        self._node.post_order(event)

    def _opened(self) -> OrderLog:
        if self._log is None:
            self._log = self._open()
        return self._log

    def _open(self) -> OrderLog:
        node = self._node
        where = node.settings.order_log
        if node.coordination is None:
            raise UnbrokenError(f"{node.name} has no ZooKeeper, and orders are given by those it knows")
        client = node.coordination.client
        if kept_in_kafka(where):
            from unbroken.coordination.orders.kafka import KafkaOrderLog

            servers, _, topic = where.removeprefix(KAFKA).partition("/")
            # Orders of another run must not be taken for those of this one.
            name = f"{topic or f'unbroken-{node.flow.name}'}-{node.run.id}"
            options = node.settings.order_log_options
            room, token = node.room_for_orders, node.token
            return KafkaOrderLog(servers, name, self._me, self._heard, token=token, options=options, room=room)
        from unbroken.coordination.orders.zookeeper import ZooKeeperOrderLog

        return ZooKeeperOrderLog(client, node.flow.name, self._me, self._heard, room=node.room_for_orders)


def _node_of(writer: str) -> NodeId:
    return writer.rpartition("/")[0]
