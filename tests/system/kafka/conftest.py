"""Topics and sources on the Kafka server of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from kit.support import wait_until

if TYPE_CHECKING:
    from kit.kafka.server import Server
    from unbroken.connectors.kafka.source import KafkaReader


@pytest.fixture
def topic(kafka: Server) -> Callable[..., str]:
    """``topic(prefix="test", partitions=1, config=None)`` makes a topic with a name of its own and returns the name.

    The broker knows it everywhere then, which takes a moment.
    """

    def known(name: str) -> bool:
        return kafka.admin.list_topics(name, timeout=10.0).topics[name].error is None

    def make(*arguments: Any, **more: Any) -> str:
        name = kafka.create(*arguments, **more)
        wait_until(lambda: known(name), 60.0, f"the broker to know {name}")
        return name

    return make


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
