"""A Kafka server for all tests that want one.

``UNBROKEN_KAFKA=host:port`` names one that runs. Without it a broker is started from jars in the cache, which are
fetched with Maven if they are not there; without Maven either, the tests are skipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kit.kafka.broker import Broker, jar_directory

if TYPE_CHECKING:
    from kit.kafka.server import Server


@pytest.fixture(scope="session")
def kafka() -> Iterator[Server]:
    """The Kafka server of this test process; ``kafka.servers`` is what clients connect to."""
    pytest.importorskip("confluent_kafka")
    from kit.kafka.server import Server

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
