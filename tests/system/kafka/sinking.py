"""What tests of the Kafka sink share: reading topics, and writers here and in other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from system.kafka.sink_child import header, sink, table
from unbroken.connectors.kafka.sink import KafkaSinkWriter
from unbroken.errors import UnbrokenError

confluent_kafka = pytest.importorskip("confluent_kafka")

Topic = Callable[..., str]
CHILD = Path(__file__).with_name("sink_child.py")
DEADLINE_S = 60.0


def read(servers: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """All messages of a topic, partition by partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "test",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        count = len(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
        consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in range(count)])
        messages, ended, end = [], 0, time.monotonic() + DEADLINE_S
        while ended < count:
            assert time.monotonic() < end, "the topic could not be read to its end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                messages.append(message)
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended += 1
        return sorted(messages, key=lambda message: (message.partition(), message.offset()))
    finally:
        consumer.close()


def rows(servers: str, topic: str, isolation: str = "read_committed") -> list[tuple[int, int]]:
    values = [json.loads(message.value()) for message in read(servers, topic, isolation)]
    return [(value["unit"], value["row"]) for value in values]


def whole(first: int, last: int, count: int = 3) -> list[tuple[int, int]]:
    """What readers must see: each unit once, in order, with all its rows."""
    return [(unit, row) for unit in range(first, last + 1) for row in range(count)]


@contextmanager
def child(servers: str, topic: str, first: int, last: int, **what: Any) -> Iterator[subprocess.Popen[str]]:
    """Another process that delivers these units."""
    what |= {"servers": servers, "topic": topic, "first": first, "last": last}
    path = os.pathsep.join(each for each in sys.path if each)
    command = [sys.executable, str(CHILD), json.dumps(what)]
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def delivered(process: subprocess.Popen[str]) -> dict[int, bool]:
    """What a child did with each unit; waits until it has ended."""
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode in (0, -signal.SIGKILL)
    lines = [line.split() for line in output.splitlines() if not line.startswith("#")]
    return {int(number): written == "True" for number, written in lines}


def wait_stopped(process: subprocess.Popen[str]) -> None:
    pid, status = os.waitpid(process.pid, os.WUNTRACED)
    assert pid == process.pid and os.WIFSTOPPED(status), status


def deliver_all(writer: KafkaSinkWriter, first: int, last: int, count: int = 3) -> dict[int, bool]:
    """Deliver units as a node does: one that fails is tried again."""
    done, end = {}, time.monotonic() + DEADLINE_S
    for unit in range(first, last + 1):
        while unit not in done:
            try:
                done[unit] = writer.deliver(header(unit), table(unit, count))
            except UnbrokenError:
                assert time.monotonic() < end
    return done


@contextmanager
def opened(*arguments: Any, **parameters: Any) -> Iterator[KafkaSinkWriter]:
    writer = sink(*arguments, **parameters).open(Path())
    try:
        yield writer
    finally:
        writer.close()


def at_once(*work: Callable[[], object]) -> None:
    """Do all of it at the same time; what one raises is raised here."""
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(each) for each in work]:
            done.result(DEADLINE_S)
