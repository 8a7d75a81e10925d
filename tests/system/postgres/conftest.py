"""A PostgreSQL server for the tests in this directory.

``UNBROKEN_POSTGRES=url`` names one that runs. Without it one is started, from the wheel with its binaries or from an
installation; without either, the tests are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kit.postgres.pg_server import Server
    from kit.postgres.place import Place


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a server."""
    for item in items:
        if "place" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.postgres)
            item.add_marker(pytest.mark.servers)


@pytest.fixture(scope="session")
def own_server() -> Iterator[Server | None]:
    """The server that is started for the tests; None if there is one already."""
    pytest.importorskip("psycopg")
    if os.environ.get("UNBROKEN_POSTGRES"):
        yield None
        return
    from kit.postgres.pg_server import NoServerError, Server

    try:
        server = Server()
    except NoServerError as error:
        pytest.skip(f"no PostgreSQL, and UNBROKEN_POSTGRES is not set: {error}")
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def place(own_server: Server | None) -> Iterator[Place]:
    """A schema for a test."""
    from kit.postgres.place import Place

    place = Place(os.environ["UNBROKEN_POSTGRES"] if own_server is None else own_server.url, own_server)
    place.query(f"CREATE SCHEMA {place.schema}")
    yield place
    place.query(f"DROP SCHEMA {place.schema} CASCADE")


@pytest.fixture
def server(place: Place) -> Iterator[Server]:
    """The server itself, for tests that stop it; it serves again before the next test."""
    if place.server is None:
        pytest.skip("UNBROKEN_POSTGRES names a server that is not the tests' to stop")
    yield place.server
    if place.server.process is None:
        place.server.start()
