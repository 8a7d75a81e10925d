"""Servers for the order logs: an embedded ZooKeeper, and the Kafka of the other tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unbroken.local.zookeeper_server import EmbeddedZooKeeper

if TYPE_CHECKING:
    from kit.orders.members import Member, Service
    from kit.orders.services import KafkaService, ZooKeeperService


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a server."""
    for item in items:
        if Path(__file__).parent in item.path.parents and "member" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.servers)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    directory: Path = tmp_path_factory.mktemp("zookeeper")
    with EmbeddedZooKeeper(directory / "zk", directory / "zk.log") as running:
        yield running


@pytest.fixture
def in_zookeeper(zookeeper: EmbeddedZooKeeper) -> Iterator[ZooKeeperService]:
    """Logs in ZooKeeper; it serves again before the next test."""
    from kit.orders.services import ZooKeeperService

    yield ZooKeeperService(zookeeper.address)
    zookeeper.start()


@pytest.fixture
def in_kafka(request: pytest.FixtureRequest) -> KafkaService:
    server = request.getfixturevalue("kafka")
    from kit.orders.services import KafkaService

    return KafkaService(server.servers)


@pytest.fixture(params=["zookeeper", pytest.param("kafka", marks=pytest.mark.kafka)])
def service(request: pytest.FixtureRequest) -> Service:
    """Logs of either kind."""
    found: Service = request.getfixturevalue(f"in_{request.param}")
    return found


@pytest.fixture
def member() -> Iterator[Callable[..., Member]]:
    """``member(service, name, deadline_s=5)`` is a node that uses the log; checked and closed after the test."""
    from kit.orders.members import Member

    opened: list[Member] = []

    def make(service: Service, name: str, deadline_s: float = 5.0) -> Member:
        opened.append(Member(service, name, deadline_s))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
