"""The order logs of a node: opened when the first shard needs one, spoken to in the words of the protocol."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from unbroken.errors import UnbrokenError
from unbroken.node.fair_queue import Sender
from unbroken.node.policies import NodePolicy, PolicyHost
from unbroken.node.policies.leader.log import LogEvent, OrderLog
from unbroken.node.replicas.programs import Programs
from unbroken.protocol.events import Event
from unbroken.protocol.policies.leader.instructions import FollowOrders, Lead, OrderEffects, Publish
from unbroken.protocol.policies.leader.orders import LeaderKnown
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId

KAFKA = "kafka://"

ORDERS = Sender("orders", "orders")
"""The threads of order logs and the loop itself tell in one order how a log goes on."""

OpenOrderLog = Callable[[str, Callable[[LogEvent], None]], OrderLog]
"""Opens the log of a node for a writer of this name, and for the events of the log."""


class OrderLogs(NodePolicy, OrderEffects):
    """Carries out what the protocol says about orders.

    A log knows its writers by names that are never used again, a process each; the protocol knows nodes, and whether
    it was this very process, and which of its questions, that made it the leader. ``place`` is where the logs are kept.
    """

    def __init__(
        self, name: NodeId, programs: Programs, place: str, open_log: OpenOrderLog, post: Callable[[Event], None]
    ) -> None:
        self._programs = programs
        self._place = place
        self._open_log = open_log
        self._post = post
        self._me = f"{name}/{uuid.uuid4().hex[:12]}"
        self._claims: dict[tuple[ShardId, int], int] = {}
        self._log: OrderLog | None = None

    def follow_orders(self, step: FollowOrders) -> None:
        self._opened().follow(step.shard, step.after)

    def lead(self, step: Lead) -> None:
        # Of several questions for one term the first may be the one that is granted.
        self._claims.setdefault((step.shard, step.term), step.claim)
        self._opened().lead(step.shard, step.term)

    def publish(self, step: Publish) -> None:
        self._opened().publish(step.shard, step.term, step.orders)

    def dropped(self, replica: ReplicaId) -> None:
        if self._log is not None and replica.shard.part in self._programs.topology.led:
            self._log.forget(replica.shard)

    def kept_in_zookeeper(self) -> frozenset[str]:
        """The parts whose orders are there."""
        kept = not self._place.startswith(KAFKA)
        return self._programs.topology.led if kept else frozenset()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _heard(self, event: LogEvent) -> None:
        if isinstance(event, LeaderKnown):
            own = event.leader == self._me
            claim = self._claims.get((event.shard, event.term), 0) if own else 0
            self._claims = {key: n for key, n in self._claims.items() if key[0] != event.shard or key[1] >= event.term}
            event = replace(event, leader=_node_of(event.leader), claim=claim)
        self._post(event)

    def _opened(self) -> OrderLog:
        if self._log is None:
            self._log = self._open_log(self._me, self._heard)
        return self._log


def _node_of(writer: str) -> NodeId:
    return writer.rpartition("/")[0]


def open_order_log(host: PolicyHost, me: str, heard: Callable[[LogEvent], None]) -> OrderLog:
    """The order log of a node, for the writer ``me``."""
    settings, client = host.flow.settings, host.zookeeper

    def room(timeout_s: float) -> bool:
        return host.room_of(ORDERS, timeout_s)

    if client is None:
        raise UnbrokenError(f"{host.name} has no ZooKeeper, and orders are given by those it knows")
    if settings.order_log.startswith(KAFKA):
        from unbroken.node.policies.leader.kafka import KafkaOrderLog

        servers, _, topic = settings.order_log.removeprefix(KAFKA).partition("/")
        # Orders of another run must not be taken for those of this one.
        name = f"{topic or f'unbroken-{host.flow.name}'}-{host.run.id}"
        options = settings.order_log_options
        return KafkaOrderLog(servers, name, me, heard, token=host.token, options=options, room=room)
    from unbroken.node.policies.leader.zookeeper import ZooKeeperOrderLog

    return ZooKeeperOrderLog(client, host.flow.name, me, heard, room=room)


def build(host: PolicyHost) -> OrderLogs:
    place = host.flow.settings.order_log
    return OrderLogs(host.name, host.programs, place, partial(open_order_log, host), partial(host.post_from, ORDERS))
