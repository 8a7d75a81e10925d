"""Where a test has its tables."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from kit.delivering import IDENTITY
from kit.postgres.pg_server import Server
from unbroken.connectors.postgres.sink import PostgreSQL, PostgresWriter


@dataclass
class Place:
    """A schema of a test's own. ``server`` is the server, if it belongs to the tests."""

    url: str
    server: Server | None
    schema: str = field(default_factory=lambda: f"ub_{uuid.uuid4().hex[:12]}")

    def sink(self, table: str = "results", **parameters: Any) -> PostgreSQL:
        sink = PostgreSQL(**{**self.parameters(table), **parameters})
        sink.identity = IDENTITY
        assert sink.problems() == []
        return sink

    def writer(self, table: str = "results", **parameters: Any) -> PostgresWriter:
        return self.sink(table, **parameters).open(Path())

    def parameters(self, table: str = "results") -> dict[str, Any]:
        return {"url": self.url, "table": f"{self.schema}.{table}", "ledger": f"{self.schema}.ledger"}

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement with the schema in its path."""
        options = f"-csearch_path={self.schema} -cTimeZone=UTC"
        with psycopg.connect(self.url, autocommit=True, options=options) as connection:
            connection.execute("SET client_min_messages = warning")
            cursor = connection.execute(text.encode())
            return [] if cursor.description is None else cursor.fetchall()

    def units(self) -> list[tuple[Any, ...]]:
        return self.query("SELECT stream, unit, row FROM results ORDER BY 1, 2, 3")
