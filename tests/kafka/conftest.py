"""A Kafka server for the tests in this directory.

``UNBROKEN_KAFKA=host:port`` names one that runs. Without it a broker is started from jars in the cache, which are
fetched with Maven if they are not there; without Maven either, the tests are skipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from kafka.broker import Broker, jar_directory

if TYPE_CHECKING:
    from kafka.server import Server
    from unbroken.connectors.kafka_source import KafkaReader


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a Kafka server; as ``cluster`` they run one after another."""
    for item in items:
        if "kafka" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka)
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def kafka() -> Iterator[Server]:
    """The Kafka server of this test process; ``kafka.servers`` is what clients connect to."""
    pytest.importorskip("confluent_kafka")
    from kafka.server import Server

    if named := os.environ.get("UNBROKEN_KAFKA"):
        server = Server(named)
        yield server
        server.close()
        return
    if not jar_directory().is_dir() and shutil.which("mvn") is None:
        pytest.skip(f"no Kafka: {jar_directory()} is missing, mvn is not on the PATH and UNBROKEN_KAFKA is not set")
    with Broker() as own:
        yield Server(own.servers, own)


@pytest.fixture
def broker(kafka: Server) -> Iterator[Broker]:
    """The broker itself, for tests that kill or restart it; it serves again before the next test."""
    if kafka.broker is None:
        pytest.skip("UNBROKEN_KAFKA names a server that is not the tests' to kill")
    yield kafka.broker
    kafka.broker.start()


@pytest.fixture
def topic(kafka: Server) -> Callable[..., str]:
    """``topic(prefix="test", partitions=1, config=None)`` makes a topic with a name of its own and returns the name."""
    return kafka.create


@pytest.fixture
def opened(kafka: Server) -> Iterator[Callable[..., KafkaReader]]:
    """``opened(topics, **parameters)`` opens a source on the server; its reader is closed at the end."""
    from unbroken import Kafka

    readers: list[KafkaReader] = []

    def open_(topics: Any = (), **parameters: Any) -> KafkaReader:
        source = Kafka(kafka.servers, topics, **parameters)
        assert source.problems() == []
        readers.append(source.open())
        return readers[-1]

    yield open_
    for reader in readers:
        reader.close()
