"""The two kinds of servers that keep order logs, and how a process of its own opens one of them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

from kit.support import TOKEN
from unbroken.coordination.documents import connect
from unbroken.node.policies.leader.kafka import KafkaOrderLog
from unbroken.node.policies.leader.log import LogEvent, OrderLog
from unbroken.node.policies.leader.zookeeper import KEEP, ZooKeeperOrderLog
from unbroken.protocol.values.ids import NodeId

SESSION_S = 2.0
_names = (f"orders-{os.getpid()}-{number}" for number in itertools.count())


class ZooKeeperService:
    """Order logs in ZooKeeper, each member with a session of its own."""

    kind = "zookeeper"

    def __init__(self, address: str, name: str | None = None) -> None:
        self.address = address
        self.name = name or next(_names)

    def open(
        self, node: NodeId, post: Callable[[LogEvent], None], deadline_s: float, keep: int = KEEP
    ) -> ZooKeeperOrderLog:
        client = connect(self.address, SESSION_S, token=TOKEN)

        class Log(ZooKeeperOrderLog):
            def close(self) -> None:
                super().close()
                client.stop()
                client.close()

        return Log(client, self.name, node, post, deadline_s=deadline_s, keep=keep)


class KafkaService:
    """Order logs in Kafka."""

    kind = "kafka"

    def __init__(self, address: str, name: str | None = None) -> None:
        self.address = address
        self.name = name or next(_names)

    def open(self, node: NodeId, post: Callable[[LogEvent], None], deadline_s: float) -> KafkaOrderLog:
        return KafkaOrderLog(self.address, self.name, node, post, token=TOKEN, replication=1, deadline_s=deadline_s)


KINDS: dict[str, Callable[[str, str], ZooKeeperService | KafkaService]] = {
    "zookeeper": ZooKeeperService,
    "kafka": KafkaService,
}


def open_log(kind: str, address: str, name: str, node: NodeId, post: Callable[[LogEvent], None]) -> OrderLog:
    return KINDS[kind](address, name).open(node, post, 5.0)
