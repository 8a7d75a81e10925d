"""What is sent to PostgreSQL for each unit: made once, from the columns of the results and those of the table.

Tentative rows
--------------
In a sink with a `Status`, rows of tentative units stand beside the stable ones, and those never touch each other: an
upsert finds the row that has the same key *and* the same status.

Next to the entry of a stream, the ledger has one that ends in ``~``: the highest pulse of that stream which the table
has, stable or tentative. Every delivery begins with locking it, and looks at the table with a statement that follows.
So of a stable unit and a tentative one that are delivered at the same time, the second sees all that the first has
done: no tentative row is missed by the unit that replaces it, and none comes after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from unbroken.connectors.postgres.table import Column, Status, Upsert, identifier, name_list, raw
from unbroken.connectors.sink_ledger import stream_name
from unbroken.protocol.values.run import RunIdentity
from unbroken.protocol.values.units import UnitHeader

if TYPE_CHECKING:
    from psycopg.sql import Composable, Composed

STAGE = "unbroken_stage"
"""The temporary table that takes the rows of a unit; every connection has its own."""

LAST_PULSE = 2**63 - 1
"""The greatest number that a column of pulses holds."""

STABLE, TENTATIVE = "stable", "tentative"
"""What the column of a `Status` says."""


@dataclass(frozen=True)
class Statements:
    """What is sent for the units of results with certain columns; ``base_types`` are their types in the table."""

    table: str
    ledger: str
    base_types: dict[str, str]
    stage: Composed
    copy: Composed
    upsert: Upsert | None
    status: Status | None

    def put(self, sink: str, run: RunIdentity, header: UnitHeader) -> Composed:
        """Take the unit's place in the ledger, write the rows if it was free, and commit: one message.

        The last of its answers that has a row is 1 then, and 0 if the place was taken: by a unit of ``run`` that is not
        before this one, or by a run that this one does not supersede. Transactions that have written the same place and
        have not ended are waited for.
        """
        from psycopg.sql import SQL

        stream = stream_name(header.stream)
        if self.status is None:
            return self._write(self._take(sink, stream, run, header), {})
        owner = f"{sink}/{stream}"
        lock = self._lock(sink, reach_of(stream), run)
        if run.supersedes:
            lock = SQL("; ").join([lock, *self._supersede(sink, stream, owner, run)])
        if header.stable:
            given: dict[str, str | int] = {self.status.column: STABLE, self.status.pulse: header.pulse}
            steps = [lock, self._reached(sink, stream, run, header), self._remove(owner, 0, header.pulse)]
            return SQL("; ").join([*steps, self._write(self._take(sink, stream, run, header), given)])
        given = {
            self.status.column: TENTATIVE,
            self.status.pulse: header.pulse,
            self.status.since: header.since,
            self.status.stream: owner,
        }
        free = self._free(sink, stream, run, header)
        remove = SQL("{} AND {}").format(self._remove(owner, header.since, header.pulse), free)
        taken = SQL("{} RETURNING 1").format(self._reached(sink, stream, run, header))
        return SQL("; ").join([lock, remove, self._write(taken, given)])

    def _take(self, sink: str, stream: str, run: RunIdentity, header: UnitHeader) -> Composed:
        """Enter a stable unit, unless it or a later one is there; what a superseded run has left is begun anew."""
        from psycopg.sql import SQL

        return SQL(
            "INSERT INTO {} AS known (sink, stream, number, run) VALUES ({}, {}, {}, {}) "
            "ON CONFLICT (sink, stream) DO UPDATE SET number = excluded.number, run = excluded.run "
            "WHERE (known.run = excluded.run AND known.number < excluded.number) OR known.run = ANY({}) RETURNING 1"
        ).format(identifier(self.ledger), sink, stream, header.number, run.id, sorted(run.supersedes))

    def _lock(self, sink: str, entry: str, run: RunIdentity) -> Composed:
        from psycopg.sql import SQL

        return SQL(
            "INSERT INTO {} AS known (sink, stream, number, run) VALUES ({}, {}, 0, {}) "
            "ON CONFLICT (sink, stream) DO UPDATE SET number = known.number"
        ).format(identifier(self.ledger), sink, entry, run.id)

    def _supersede(self, sink: str, stream: str, owner: str, run: RunIdentity) -> list[Composed]:
        """Begin the entry of the highest pulse anew if a superseded run has left it, without its tentative rows: no
        stable ones will come for them."""
        from psycopg.sql import SQL

        entry = SQL("sink = {} AND stream = {} AND run = ANY({})").format(
            sink, reach_of(stream), sorted(run.supersedes)
        )
        left = SQL(" AND EXISTS (SELECT FROM {} WHERE {})").format(identifier(self.ledger), entry)
        remove = SQL("{}{}").format(self._remove(owner, 0, LAST_PULSE), left)
        begin = SQL("UPDATE {} SET number = 0, run = {} WHERE {}").format(identifier(self.ledger), run.id, entry)
        return [remove, begin]

    def _reached(self, sink: str, stream: str, run: RunIdentity, header: UnitHeader) -> Composed:
        from psycopg.sql import SQL

        return SQL("UPDATE {} SET number = {} WHERE sink = {} AND stream = {} AND run = {} AND number < {}").format(
            identifier(self.ledger), header.pulse, sink, reach_of(stream), run.id, header.pulse
        )

    def _free(self, sink: str, stream: str, run: RunIdentity, header: UnitHeader) -> Composed:
        from psycopg.sql import SQL

        return SQL("EXISTS (SELECT FROM {} WHERE sink = {} AND stream = {} AND run = {} AND number < {})").format(
            identifier(self.ledger), sink, reach_of(stream), run.id, header.pulse
        )

    def _remove(self, owner: str, since: int, pulse: int) -> Composed:
        """Remove the tentative rows that cover nothing but pulses after ``since`` up to ``pulse``; 0 is the beginning.

        What reaches back before ``since`` stays, since nothing else tells of that.
        """
        from psycopg.sql import SQL, Identifier

        assert self.status is not None
        condition = SQL("{} = {} AND {} = {} AND {} <= {}").format(
            Identifier(self.status.column),
            TENTATIVE,
            Identifier(self.status.stream),
            owner,
            Identifier(self.status.pulse),
            pulse,
        )
        if since:
            condition += SQL(" AND {} >= {}").format(Identifier(self.status.since), since)
        return SQL("DELETE FROM {} WHERE {}").format(identifier(self.table), condition)

    def _write(self, taken: Composed, given: dict[str, str | int]) -> Composed:
        """Move the rows of the temporary table, each with the columns that are ``given``, if ``taken`` has a row."""
        from psycopg.sql import SQL

        names = [*self.base_types, *given]
        rows = self._appended(given) if self.upsert is None else self._upserted(self.upsert, given)
        return SQL(
            "WITH taken AS ({}), written AS (INSERT INTO {} AS target ({}) {}) SELECT count(*) FROM taken; COMMIT"
        ).format(taken, identifier(self.table), name_list(names), rows)

    def _selected(self, given: dict[str, str | int]) -> Composed:
        from psycopg.sql import SQL, Identifier, Literal

        values: list[Composable] = [Identifier(name) for name in self.base_types]
        return SQL(", ").join([*values, *(Literal(value) for value in given.values())])

    def _appended(self, given: dict[str, str | int]) -> Composed:
        from psycopg.sql import SQL

        return SQL("SELECT {} FROM {} WHERE EXISTS (SELECT FROM taken)").format(self._selected(given), _stage())

    def _upserted(self, upsert: Upsert, given: dict[str, str | int]) -> Composed:
        """Rows in the order of their keys, so that two streams that write the same ones do not lock each other up."""
        from psycopg.sql import SQL, Identifier

        key, selected = name_list(upsert.key), self._selected(given)
        found_by = found_by_key(upsert, self.status)
        others = [Identifier(name) for name in (*self.base_types, *given) if name not in found_by]
        update = SQL(", ").join(SQL("{0} = excluded.{0}").format(name) for name in others)
        action = SQL("UPDATE SET {}").format(update) if others else SQL("NOTHING")
        conflict = SQL("ON CONFLICT ({}) DO {}").format(name_list(found_by), action)
        if upsert.latest is None:
            return SQL("SELECT {} FROM {} WHERE EXISTS (SELECT FROM taken) ORDER BY {} {}").format(
                selected, _stage(), key, conflict
            )
        latest = Identifier(upsert.latest)
        # Of rows that are equal in ``latest`` the same one is taken whatever order they came in.
        rows = SQL(
            "SELECT DISTINCT ON ({}) {} FROM {} AS staged WHERE EXISTS (SELECT FROM taken) "
            "ORDER BY {}, {} DESC NULLS LAST, staged::text DESC {} "
        ).format(key, selected, _stage(), key, latest, conflict)
        return rows + SQL("WHERE target.{0} IS NULL OR target.{0} <= excluded.{0}").format(latest)


def statements(
    schema: pa.Schema,
    columns: dict[str, Column],
    table: str,
    ledger: str,
    upsert: Upsert | None,
    status: Status | None = None,
) -> Statements:
    """What is sent for the units of results with ``schema`` that go into a table with ``columns``."""
    from psycopg.sql import SQL, Identifier

    names: Sequence[str] = schema.names
    typed = [SQL("{} {}").format(Identifier(name), raw(columns[name].type)) for name in names]
    return Statements(
        table,
        ledger,
        {name: columns[name].base for name in names},
        SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS").format(Identifier(STAGE), SQL(", ").join(typed)),
        SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(_stage(), name_list(names)),
        upsert,
        status,
    )


def reach_of(stream: str) -> str:
    """The entry of the ledger with the highest pulse of a stream."""
    return f"{stream}~"


def found_by_key(upsert: Upsert, status: Status | None) -> tuple[str, ...]:
    """The columns by which a row finds the one it replaces."""
    return (*upsert.key, *((status.column,) if status is not None else ()))


def _stage() -> Composable:
    from psycopg.sql import Identifier

    return Identifier("pg_temp", STAGE)
