"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from kit.kafka.fixtures import broker as broker
from kit.kafka.fixtures import kafka as kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long an example takes is a matter of what else the machine does.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the Spark session or the Kafka server, so that the quick ones can be run alone."""
    for item in items:
        used = getattr(item, "fixturenames", ())
        if "spark" in used:
            item.add_marker(pytest.mark.spark)
        if "kafka" in used:
            item.add_marker(pytest.mark.kafka)
            item.add_marker(pytest.mark.servers)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of this test process, started when the first test asks for it."""
    from unbroken.flow.settings import Settings
    from unbroken.spark.session import start_session

    # State stores are looked after every minute by default, which no test is long enough to see.
    maintenance = {"spark.sql.streaming.stateStore.maintenanceInterval": "5s"}
    session = start_session("unbroken-tests", Settings(spark=maintenance))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
