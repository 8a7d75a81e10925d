"""The tables of a PostgreSQL sink: the one results go to, its ledger, and the statements that fill them.

All statements of a sink are made here, from the columns of a result and those of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from unbroken.connectors.postgres_rows import sql_type, takes
from unbroken.connectors.sink_ledger import Mark
from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import SQL, Composable, Composed, Identifier

STAGE = "unbroken_stage"
"""The temporary table that takes the rows of a unit; every connection has its own."""

_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(b.typname, t.typname),
           a.attidentity = 'a' OR a.attgenerated <> '',
           a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""

NULLS_NOT_DISTINCT = 150_000
"""The first version of the server that can take two nulls for the same key."""


@dataclass(frozen=True)
class Upsert:
    """How rows find the ones they replace: by ``key``; not those that are greater in ``latest``, if that is given."""

    key: tuple[str, ...]
    latest: str | None = None


@dataclass(frozen=True)
class Column:
    """A column of an existing table. ``base`` is its type by PostgreSQL's own name, of a domain what is beneath it."""

    name: str
    type: str
    base: str
    generated: bool
    required: bool


@dataclass(frozen=True)
class Statements:
    """What is sent for the units of results that have certain columns; ``base_types`` are their types in the table."""

    stage: Composed
    copy: Composed
    ledger: Identifier
    written: Composed
    base_types: dict[str, str]

    def put(self, sink: str, stream: str, mark: Mark) -> Composed:
        """Take the unit's place in the ledger, write the rows if it was free, and commit: one message.

        It answers 1 then, and 0 if the place was taken. A transaction that has written the same place and has not
        ended is waited for.
        """
        from psycopg.sql import SQL, Literal

        return SQL(
            "WITH taken AS ("
            "INSERT INTO {} AS known (sink, stream, number, cut_ms) VALUES ({}, {}, {}, {}) "
            "ON CONFLICT (sink, stream) DO UPDATE SET number = excluded.number, cut_ms = excluded.cut_ms "
            "WHERE known.number < excluded.number RETURNING 1"
            "), written AS ({}) SELECT count(*) FROM taken; COMMIT"
        ).format(self.ledger, Literal(sink), Literal(stream), Literal(mark.number), Literal(mark.cut_ms), self.written)


def name_parts(name: str) -> tuple[str, ...]:
    """``schema.table`` taken apart; names are as they are written, upper case stays upper case."""
    return tuple(name.split("."))


def columns_of(connection: psycopg.Connection, table: str) -> dict[str, Column]:
    """The columns of a table; none if there is no such table."""
    found = connection.execute(_COLUMNS, [_quoted(connection, table)]).fetchall()
    return {row[0]: Column(*row) for row in found}


def create_ledger(connection: psycopg.Connection, ledger: str) -> None:
    """Make the ledger, unless it is there."""
    from psycopg.sql import SQL

    columns = "sink text, stream text, number bigint NOT NULL, cut_ms bigint NOT NULL, PRIMARY KEY (sink, stream)"
    _create(connection, ledger, SQL(columns))


def create_table(connection: psycopg.Connection, table: str, schema: pa.Schema, upsert: Upsert | None) -> None:
    """Make a table for results with ``schema``, unless it is there."""
    from psycopg.sql import SQL, Identifier

    parts: list[Composable] = [SQL("{} {}").format(Identifier(field.name), _raw(sql_type(field))) for field in schema]
    if upsert is not None:
        # A group without a key is a group like any other, so null has to be found again.
        modern = connection.info.server_version >= NULLS_NOT_DISTINCT
        rule = SQL("UNIQUE NULLS NOT DISTINCT ({})" if modern else "PRIMARY KEY ({})")
        parts.append(rule.format(_list(upsert.key)))
    _create(connection, table, SQL(", ").join(parts))


def check_fit(schema: pa.Schema, columns: dict[str, Column], table: str, upsert: Upsert | None) -> None:
    """Raise UnbrokenError, naming the column, if results with ``schema`` cannot go into a table with ``columns``."""
    wrong = _missing(schema, table, upsert)
    for field in schema:
        column = columns.get(field.name)
        kind = sql_type(field)
        if column is None:
            wrong.append(
                f'it has no column "{field.name}"; ALTER TABLE {table} ADD COLUMN "{field.name}" {kind}, '
                "or leave it out in the segment"
            )
        elif column.generated:
            wrong.append(
                f'its column "{column.name}" is generated; leave it out in the segment, or let it be an ordinary one'
            )
        elif not takes(column.base, field):
            wrong.append(
                f'its column "{column.name}" is of type {column.type}, which does not hold every {kind} unchanged; '
                "cast it in the segment, or change the type of the column"
            )
    wrong += [
        f'its column "{column.name}" may not be null and the results do not have it; give it a default'
        for column in columns.values()
        if column.required and column.name not in schema.names
    ]
    if wrong:
        raise UnbrokenError(f"The results do not fit the table {table}: {'; and '.join(wrong)}.")


def statements(
    schema: pa.Schema, columns: dict[str, Column], table: str, ledger: str, upsert: Upsert | None
) -> Statements:
    """What is sent for the units of results with ``schema`` that go into a table with ``columns``."""
    from psycopg.sql import SQL, Identifier

    names = schema.names
    typed = [SQL("{} {}").format(Identifier(name), _raw(columns[name].type)) for name in names]
    rows = _appended(names) if upsert is None else _upserted(names, upsert)
    return Statements(
        SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS").format(Identifier(STAGE), SQL(", ").join(typed)),
        SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(Identifier("pg_temp", STAGE), _list(names)),
        _identifier(ledger),
        SQL("INSERT INTO {} AS target ({}) {}").format(_identifier(table), _list(names), rows),
        {name: columns[name].base for name in names},
    )


def mark_of(connection: psycopg.Connection, ledger: str, sink: str, stream: str) -> Mark | None:
    """The last unit of a stream that the ledger knows."""
    from psycopg.sql import SQL

    query = SQL("SELECT number, cut_ms FROM {} WHERE sink = {} AND stream = {}")
    row = connection.execute(query.format(_identifier(ledger), sink, stream)).fetchone()
    return None if row is None else Mark(*row)


def has_entries(connection: psycopg.Connection, ledger: str, sink: str) -> bool:
    """Whether the ledger knows a unit of a sink; it may not be there at all."""
    from psycopg.sql import SQL

    if not columns_of(connection, ledger):
        return False
    query = SQL("SELECT EXISTS (SELECT FROM {} WHERE sink = {})")
    row = connection.execute(query.format(_identifier(ledger), sink)).fetchone()
    return row is not None and bool(row[0])


def _appended(names: Sequence[str]) -> Composed:
    from psycopg.sql import SQL, Identifier

    return SQL("SELECT {} FROM {} WHERE EXISTS (SELECT FROM taken)").format(_list(names), Identifier("pg_temp", STAGE))


def _upserted(names: Sequence[str], upsert: Upsert) -> Composed:
    """Rows in the order of their keys, so that two streams that write the same ones do not lock each other up."""
    from psycopg.sql import SQL, Identifier

    key, stage = _list(upsert.key), Identifier("pg_temp", STAGE)
    others = [Identifier(name) for name in names if name not in upsert.key]
    update = SQL(", ").join(SQL("{0} = excluded.{0}").format(name) for name in others)
    action = SQL("UPDATE SET {}").format(update) if others else SQL("NOTHING")
    if upsert.latest is None:
        return SQL("SELECT {} FROM {} WHERE EXISTS (SELECT FROM taken) ORDER BY {} ON CONFLICT ({}) DO {}").format(
            _list(names), stage, key, key, action
        )
    latest = Identifier(upsert.latest)
    # Of rows that are equal in ``latest`` the same one is taken whatever order they came in.
    rows = SQL(
        "SELECT DISTINCT ON ({}) {} FROM {} AS staged WHERE EXISTS (SELECT FROM taken) "
        "ORDER BY {}, {} DESC NULLS LAST, staged::text DESC ON CONFLICT ({}) DO {} "
    ).format(key, _list(names), stage, key, latest, key, action)
    return rows + SQL("WHERE target.{0} IS NULL OR target.{0} <= excluded.{0}").format(latest)


def _missing(schema: pa.Schema, table: str, upsert: Upsert | None) -> list[str]:
    if upsert is None:
        return []
    wanted = [*upsert.key, *([upsert.latest] if upsert.latest else [])]
    return [
        f'the results have no column "{name}", by which they are to be found in it; their columns are '
        f"{', '.join(schema.names)}"
        for name in wanted
        if name not in schema.names
    ]


def _create(connection: psycopg.Connection, table: str, content: Composable) -> None:
    """Create a table unless it is there. Looked up first: who may not create tables may still write to them."""
    from psycopg import errors
    from psycopg.sql import SQL

    if columns_of(connection, table):
        return
    # Another replica may be first.
    with suppress(errors.DuplicateTable, errors.DuplicateObject, errors.UniqueViolation):
        connection.execute(SQL("CREATE TABLE {} ({})").format(_identifier(table), content))


def _identifier(name: str) -> Identifier:
    from psycopg.sql import Identifier

    return Identifier(*name_parts(name))


def _list(names: Sequence[str]) -> Composed:
    from psycopg.sql import SQL, Identifier

    return SQL(", ").join(Identifier(name) for name in names)


def _quoted(connection: psycopg.Connection, table: str) -> str:
    return _identifier(table).as_string(connection)


def _raw(text: str) -> SQL:
    """The name of a type, which the server gave or which is one of ours."""
    from psycopg.sql import SQL

    return SQL(text)
