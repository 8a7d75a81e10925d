"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the Spark session, so that ``-m "not spark"`` runs the quick ones."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of this test process, started when the first test asks for it."""
    from unbroken.config import Settings
    from unbroken.spark.session import start_session

    # State stores are looked after every minute by default, which no test is long enough to see.
    maintenance = {"spark.sql.streaming.stateStore.maintenanceInterval": "5s"}
    session = start_session("unbroken-tests", Settings(spark=maintenance))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
