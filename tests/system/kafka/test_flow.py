"""A flow from Kafka to Kafka whose delivering node is killed: readers of the output see every change once, in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from kit.faults import strike
from kit.support import wait_until
from unbroken.flow.environment import variables
from unbroken.local.launcher import LocalCluster
from unbroken.testing.faults import Kill

if TYPE_CHECKING:
    from kit.kafka.server import Server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

KEYS = 5
BATCH = 200
FIRST_S, RESULTS_S = 300.0, 120.0


class Output:
    """What a consumer that reads committed messages only has seen of the counts."""

    def __init__(self, servers: str, topic: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "test", "isolation.level": "read_committed"}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self.counts: dict[int, list[int]] = {}

    def total(self) -> int:
        """The rows that are counted in what has come so far."""
        for message in self._consumer.consume(1_000, timeout=0.2):
            assert message.error() is None, message.error()
            row = json.loads(message.value() or b"")
            self.counts.setdefault(row["k"], []).append(row["count"])
        return sum(counts[-1] for counts in self.counts.values())

    def close(self) -> None:
        self._consumer.close()


def test_a_node_is_killed(kafka: Server, topic: Callable[..., str], tmp_path: Path) -> None:
    source, target = topic("in", partitions=2), topic("out")
    where = {"UNBROKEN_TEST_KAFKA": kafka.servers, "UNBROKEN_TEST_IN": source, "UNBROKEN_TEST_OUT": target}
    output, sent = Output(kafka.servers, target), 0

    def send() -> None:
        nonlocal sent
        rows = [json.dumps({"k": n % KEYS, "v": n}) for n in range(sent, sent + BATCH)]
        kafka.produce(source, rows, partition=(sent // BATCH) % 2)
        sent += BATCH

    with (
        variables(where),
        LocalCluster(Path(__file__).with_name("counting_flow.py"), tmp_path / "state") as cluster,
    ):
        cluster.start()
        send()
        wait_until(lambda: output.total() == sent, FIRST_S, "the first counts")
        kafka.produce(source, [b"{not json"], partition=0)
        send()
        (delivering, *_) = sorted(
            cluster.status(), key=lambda state: -max(s.written_here for s in state.sinks.values())
        )
        strike(cluster, Kill(delivering.node))
        for _ in range(3):
            send()
            wait_until(lambda: output.total() == sent, RESULTS_S, f"the counts of {sent} rows")
    output.close()
    for key, counts in output.counts.items():
        assert counts == sorted(set(counts)), f"counts of {key} came twice or out of order: {counts}"
    assert {key: counts[-1] for key, counts in output.counts.items()} == dict.fromkeys(range(KEYS), sent // KEYS)
    letters = [path.read_text() for path in (tmp_path / "state" / "dead-letters").rglob("*.jsonl")]
    assert any("{not json" in text for text in letters), "what cannot be read is kept"
