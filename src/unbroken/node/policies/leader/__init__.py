"""Leader ordering: the logs to which the leader of a shard publishes its orders, in ZooKeeper or in Kafka."""

from __future__ import annotations

from unbroken.node.policies.leader.order_logs import build as build

SHARD_DOCUMENTS = ("orders",)
