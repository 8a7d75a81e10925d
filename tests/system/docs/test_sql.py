"""The SQL of the documentation runs on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from docs.pages import blocks, pages_with

if TYPE_CHECKING:
    from kit.postgres.place import Place


@pytest.mark.postgres
@pytest.mark.servers
@pytest.mark.parametrize("page", pages_with("sql"))
def test_sql_runs(page: str, place: Place) -> None:
    import psycopg

    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {place.schema}")
        for block in blocks(page):
            if block.language == "sql" and block.not_run is None:
                connection.execute(block.text)
