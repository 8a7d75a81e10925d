"""The tables of a PostgreSQL sink: the one results go to and its ledger, as they are made and as they are found."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from unbroken.connectors.postgres.rows import sql_type, takes
from unbroken.connectors.sink_ledger import SinkMark
from unbroken.errors import Unfit

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import SQL, Composable, Composed, Identifier

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
class Status:
    """The columns by which rows say how they stand, beside those of the results.

    ``column`` says 'stable' or 'tentative', ``pulse`` the pulse that the row's unit completes. Of a tentative row,
    ``since`` is the pulse before those that it covers, and ``stream`` whose stable units will replace it.
    """

    column: str

    @property
    def pulse(self) -> str:
        return f"{self.column}_pulse"

    @property
    def since(self) -> str:
        return f"{self.column}_since"

    @property
    def stream(self) -> str:
        return f"{self.column}_stream"

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (
            pa.field(self.column, pa.string()),
            pa.field(self.pulse, pa.int64()),
            pa.field(self.since, pa.int64()),
            pa.field(self.stream, pa.string()),
        )


@dataclass(frozen=True)
class Column:
    """A column of an existing table. ``base`` is its type by PostgreSQL's own name, of a domain what is beneath it."""

    name: str
    type: str
    base: str
    generated: bool
    required: bool


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

    columns = "sink text, stream text, number bigint NOT NULL, run text NOT NULL, PRIMARY KEY (sink, stream)"
    _create(connection, ledger, SQL(columns))


def create_table(
    connection: psycopg.Connection, table: str, schema: pa.Schema, upsert: Upsert | None, status: Status | None = None
) -> None:
    """Make a table for results with ``schema``, unless it is there."""
    from psycopg.sql import SQL, Identifier

    fields = [*schema, *(status.fields if status is not None else ())]
    parts: list[Composable] = [SQL("{} {}").format(Identifier(field.name), raw(sql_type(field))) for field in fields]
    if upsert is not None:
        # A group without a key is a group like any other, so null has to be found again.
        modern = connection.info.server_version >= NULLS_NOT_DISTINCT
        rule = SQL("UNIQUE NULLS NOT DISTINCT ({})" if modern else "PRIMARY KEY ({})")
        parts.append(rule.format(name_list((*upsert.key, *((status.column,) if status is not None else ())))))
    more: Composable = SQL("")
    if status is not None:
        parts.append(SQL("CHECK ({} IN ('stable', 'tentative'))").format(Identifier(status.column)))
        # Every stable unit looks for tentative rows; there are none nearly all of the time.
        more = SQL("; CREATE INDEX ON {} ({}) WHERE {} = 'tentative'").format(
            identifier(table), name_list((status.stream, status.pulse)), Identifier(status.column)
        )
    _create(connection, table, SQL(", ").join(parts), more)


def check_names(schema: pa.Schema, status: Status | None) -> None:
    """Raise Unfit if results with ``schema`` have a column of the name of one that says how rows stand."""
    taken = [field.name for field in status.fields if field.name in schema.names] if status is not None else []
    if taken:
        names = ", ".join(f'"{name}"' for name in taken)
        raise Unfit(
            f"The results have a column {names} themselves; give status another name, or that column in the segment."
        )


def check_fit(
    schema: pa.Schema, columns: dict[str, Column], table: str, upsert: Upsert | None, status: Status | None = None
) -> None:
    """Raise Unfit, naming the column, if results with ``schema`` cannot go into a table with ``columns``."""
    wrong = _missing(schema, table, upsert) + _status_wrong(columns, table, status)
    filled = {*schema.names, *((status.column, status.pulse) if status is not None else ())}
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
        if column.required and column.name not in filled
    ]
    if wrong:
        raise Unfit(f"The results do not fit the table {table}: {'; and '.join(wrong)}.")


def mark_of(connection: psycopg.Connection, ledger: str, sink: str, stream: str) -> SinkMark | None:
    """The last unit of a stream that the ledger knows."""
    from psycopg.sql import SQL

    query = SQL("SELECT number, run FROM {} WHERE sink = {} AND stream = {}")
    row = connection.execute(query.format(identifier(ledger), sink, stream)).fetchone()
    return None if row is None else SinkMark(*row)


def runs_of(connection: psycopg.Connection, ledger: str, sink: str) -> frozenset[str]:
    """The runs of which the ledger knows a unit of a sink; it may not be there at all."""
    from psycopg.sql import SQL

    if not columns_of(connection, ledger):
        return frozenset()
    query = SQL("SELECT DISTINCT run FROM {} WHERE sink = {}")
    return frozenset(row[0] for row in connection.execute(query.format(identifier(ledger), sink)).fetchall())


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


def _status_wrong(columns: dict[str, Column], table: str, status: Status | None) -> list[str]:
    """What keeps rows from saying how they stand."""
    wrong = []
    for field in status.fields if status is not None else ():
        column, kind = columns.get(field.name), sql_type(field)
        if column is None:
            wrong.append(
                f'it has no column "{field.name}", which status needs; ALTER TABLE {table} ADD COLUMN "{field.name}" '
                f"{kind}"
            )
        elif column.generated or not takes(column.base, field):
            wrong.append(
                f'its column "{field.name}", which status needs, is of type {column.type}; let it be an ordinary {kind}'
            )
    return wrong


def _create(connection: psycopg.Connection, table: str, content: Composable, more: Composable | None = None) -> None:
    """Create a table unless it is there. Looked up first: who may not create tables may still write to them."""
    from psycopg import errors
    from psycopg.sql import SQL

    if columns_of(connection, table):
        return
    # Another replica may be first.
    with suppress(errors.DuplicateTable, errors.DuplicateObject, errors.UniqueViolation):
        connection.execute(SQL("CREATE TABLE {} ({}){}").format(identifier(table), content, more or SQL("")))


def identifier(name: str) -> Identifier:
    """The name of a table as part of a statement."""
    from psycopg.sql import Identifier

    return Identifier(*name_parts(name))


def name_list(names: Sequence[str]) -> Composed:
    """Names of columns as part of a statement."""
    from psycopg.sql import SQL, Identifier

    return SQL(", ").join(Identifier(name) for name in names)


def _quoted(connection: psycopg.Connection, table: str) -> str:
    return identifier(table).as_string(connection)


def raw(text: str) -> SQL:
    """The name of a type, which the server gave or which is one of ours."""
    from psycopg.sql import SQL

    return SQL(text)
