"""PostgreSQL as a sink: rows and the ledger of what was delivered change in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from unbroken.connectors.base import SinkConnector, SinkWriter
from unbroken.connectors.failures import is_passing
from unbroken.connectors.postgres.rows import copy_data, unfit_text
from unbroken.connectors.postgres.session import DatabaseAddress, connect, deadline
from unbroken.connectors.postgres.statements import Statements, found_by_key, reach_of, statements
from unbroken.connectors.postgres.table import (
    Status,
    Upsert,
    check_fit,
    check_names,
    columns_of,
    create_ledger,
    create_table,
    mark_of,
    name_parts,
    runs_of,
)
from unbroken.connectors.sink_ledger import is_delivered, own_mark, stream_name
from unbroken.errors import Flaw, UnbrokenError, Unfit
from unbroken.protocol.values.units import UnitHeader
from unbroken.quantities import is_number, shown
from unbroken.security.secret import Secret, reference

if TYPE_CHECKING:
    import psycopg

MODES = ("append", "upsert")
LOOK_UP_S = 10.0
"""Longest wait for the answer to whether a sink is occupied; a person waits for it."""

LONGEST_REASON = 500
"""Characters of a reason that are shown: the server quotes rows, which may be long."""


class PostgreSQL(SinkConnector):
    """Rows go into a table of a PostgreSQL database, each unit in one transaction with its entry in a ledger.

    Parameters
    ----------
    url
        ``postgresql://user@host:5432/database`` or libpq's ``key=value`` pairs, without a password.
    table
        ``table`` or ``schema.table``, as it is written.
    mode
        'append' adds every row; 'upsert' replaces the row that has the same ``key``.
    key
        With 'upsert': the columns that tell rows apart. The table must have a unique constraint on exactly these.
    latest
        With 'upsert': of several rows with the same key the one that is greatest in this column stays. Without it a
        later unit replaces what an earlier one wrote, and a unit that has a key twice is refused: its rows have no
        order. (In update mode a unit has each group once.)
    create
        Create the table with the columns of the first results if it is not there.
    ledger
        The table that says which units were delivered, of all sinks that write to this database.
    timeout
        Seconds that a unit may take; then the connection is given up and the unit is tried again.
    password
        A `Secret`. Without it libpq looks for one on the nodes: ``PGPASSWORD``, ``~/.pgpass`` or a service file.
    status
        Take tentative results as well: the name of a column that says of each row whether it is 'stable' or
        'tentative'. Three more columns, named ``<status>_pulse``, ``<status>_since`` and ``<status>_stream``, are the
        sink's own. Stable rows take the place of tentative ones in the transaction that writes them. With 'upsert'
        there may be a row of each kind with the same key.
    """

    def __init__(
        self,
        url: str,
        table: str,
        mode: str = "append",
        key: str | Sequence[str] = (),
        latest: str | None = None,
        create: bool = True,
        ledger: str = "unbroken_ledger",
        timeout: float = 60.0,
        status: str | None = None,
        password: Secret | Mapping[str, str] | None = None,
    ) -> None:
        self.address = DatabaseAddress(url, reference(password))
        self.table = table
        self.mode = mode
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.latest = latest
        self.create = create
        self.ledger = ledger
        self.timeout = timeout
        self.status = None if status is None else Status(status)
        self.tentative = status is not None

    def __repr__(self) -> str:
        return f"PostgreSQL({self.address!r}, {self.table!r})"

    @property
    def upsert(self) -> Upsert | None:
        return Upsert(self.key, self.latest) if self.mode == "upsert" else None

    def problems(self) -> list[Flaw]:
        address = self.address.problem()
        found = [address] if address is not None else []
        for what, name in (("table", self.table), ("ledger", self.ledger)):
            if not all(name_parts(name)) or len(name_parts(name)) > 2:
                found.append(Flaw(f"The {what} is {name!r}", "write its name, or schema.name"))
        if self.mode not in MODES:
            found.append(Flaw(f"The mode is {self.mode!r}", f"write one of {', '.join(MODES)}"))
        elif self.mode == "upsert" and not self.key:
            found.append(Flaw("mode='upsert' has no key", "name the columns that tell rows apart: key=[...]"))
        elif self.mode == "append" and (self.key or self.latest):
            found.append(
                Flaw("key and latest mean nothing with mode='append'", "leave them out, or write mode='upsert'")
            )
        if self.status is not None and (not self.status.column or self.status.column in (*self.key, self.latest)):
            found.append(Flaw(f"The status is {self.status.column!r}", "name a column that the results do not have"))
        if not is_number(self.timeout) or self.timeout <= 0:
            found.append(Flaw(f"The timeout is {shown(self.timeout)} s", "give a number of seconds above 0"))
        return found

    def runs(self) -> frozenset[str]:
        connection = self.connect(min(self.timeout, LOOK_UP_S))
        try:
            with deadline(connection, min(self.timeout, LOOK_UP_S)):
                return runs_of(connection, self.ledger, self.identity)
        except Exception as error:
            raise self.failure(error) from None
        finally:
            connection.close()

    def occupied(self) -> str | None:
        if not self.runs():
            return None
        return f"{self.where} says that results of an earlier run are in {self.table}; {self.remedy}"

    @property
    def where(self) -> str:
        return f"the ledger {self.ledger} of {self.address!r}"

    @property
    def remedy(self) -> str:
        return f"to write them again, empty the table and DELETE FROM {self.ledger} WHERE sink = '{self.identity}'"

    def open(self, flow_dir: Path) -> PostgresWriter:
        return PostgresWriter(self)

    def connect(self, timeout_s: float) -> psycopg.Connection:
        try:
            return connect(self.address, f"unbroken {self.identity}", timeout_s)
        except UnbrokenError:
            raise
        except Exception as error:
            raise self.failure(error) from None

    def failure(self, error: Exception) -> UnbrokenError:
        """What went wrong, in one sentence without secrets."""
        return UnbrokenError(self.address.masked(f"{self.table} of {self.address!r}: {_reason(self, error)}"))


class PostgresWriter(SinkWriter):
    """Delivers units over a connection of its own, which is opened with the first unit that has rows.

    A unit takes four steps: the ledger is asked whether the unit is there; the rows are copied into a temporary table
    that only this connection sees; one message takes the place in the ledger, moves the rows and commits; and its
    answer is read. Whichever of them a writer dies in, either all of the unit is there or nothing.

    No lock that others could wait for is held while the server waits for a writer: the only message that takes one also
    commits, and the server carries it out without further word. So a frozen writer holds nobody up. (Copying straight
    into the table would hold the place in the ledger while rows are sent. No timeout of the server ends a COPY whose
    client is silent, so somebody would have to end that writer's session from outside.) When it wakes up, it finds
    the place taken or its session ended.

    Every error closes the connection; the next delivery opens another one and looks at the tables again.
    """

    def __init__(self, sink: PostgreSQL) -> None:
        self._sink = sink
        self._connection: psycopg.Connection | None = None
        self._schema: pa.Schema | None = None
        self._statements: Statements | None = None

    def deliver(self, header: UnitHeader, table: pa.Table) -> bool:
        # One without rows may have tentative rows to replace.
        return self._deliver(header, table) if table.num_rows or self._sink.tentative else True

    def deliver_tentative(self, header: UnitHeader, table: pa.Table) -> bool:
        if not self._sink.tentative:
            raise UnbrokenError(f"{self._sink!r} takes stable results only; name a column for others with status=.")
        return self._deliver(header, table) if table.num_rows else True

    def _deliver(self, header: UnitHeader, table: pa.Table) -> bool:
        if self._schema is not None and not table.schema.equals(self._schema):
            self.close()  # Other code produces these results, with other columns.
        try:
            connection = self._connect()
            with deadline(connection, self._sink.timeout):
                prepared = self._prepare(connection, table.schema)
                if self._is_delivered(connection, header):
                    return False
                self._stage(connection, prepared, table)
                if self._put(connection, prepared, header):
                    return True
                self._is_delivered(connection, header)
                return False
        except UnbrokenError:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise self._failure(error, table) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._schema = self._statements = None
        if connection is not None:
            connection.close()

    def _connect(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self.close()
            self._connection = self._sink.connect(self._sink.timeout)
        return self._connection

    def _prepare(self, connection: psycopg.Connection, schema: pa.Schema) -> Statements:
        """Make sure that there are a ledger and a table that results with ``schema`` fit into."""
        if self._statements is not None:
            return self._statements
        sink = self._sink
        check_names(schema, sink.status)
        create_ledger(connection, sink.ledger)
        if sink.create:
            create_table(connection, sink.table, schema, sink.upsert, sink.status)
        columns = columns_of(connection, sink.table)
        if not columns:
            raise UnbrokenError(
                f"{sink.address!r} has no table {sink.table}; create it, or let the sink do it with create=True."
            )
        check_fit(schema, columns, sink.table, sink.upsert, sink.status)
        prepared = statements(schema, columns, sink.table, sink.ledger, sink.upsert, sink.status)
        connection.execute(prepared.stage)
        self._schema, self._statements = schema, prepared
        return prepared

    def _is_delivered(self, connection: psycopg.Connection, header: UnitHeader) -> bool:
        sink, stream = self._sink, stream_name(header.stream)
        told = sink.run, sink.where, f"{sink.remedy}."
        if not header.stable:
            reached = own_mark(mark_of(connection, sink.ledger, sink.identity, reach_of(stream)), *told)
            return reached is not None and reached.number >= header.pulse
        mark = mark_of(connection, sink.ledger, sink.identity, stream)
        return is_delivered(header, mark, *told)

    def _stage(self, connection: psycopg.Connection, prepared: Statements, table: pa.Table) -> None:
        """Begin a transaction and copy the rows into the temporary table, which is empty again after it."""
        connection.execute("BEGIN TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE")
        with connection.cursor().copy(prepared.copy) as copy:
            for data in copy_data(table, prepared.base_types):
                copy.write(data)

    def _put(self, connection: psycopg.Connection, prepared: Statements, header: UnitHeader) -> bool:
        """Take the place in the ledger, write the rows and commit, in one message; False if the place was taken."""
        answers = connection.execute(prepared.put(self._sink.identity, self._sink.run, header))
        while answers.description is None and answers.nextset():
            pass
        row = answers.fetchone()
        return row is not None and row[0] == 1

    def _failure(self, error: Exception, table: pa.Table) -> UnbrokenError:
        from psycopg import errors

        if isinstance(error, errors.CharacterNotInRepertoire | errors.UntranslatableCharacter):
            names = ", ".join(f'"{name}"' for name in unfit_text(table))
            what = (
                f"the text in {names} has characters that PostgreSQL cannot keep in a text (U+0000) or is not UTF-8; "
                "remove them in the segment, or let the column of the table be a bytea (for jsonb: a json)"
            )
            return Unfit(f"{self._sink.table} of {self._sink.address!r}: {what}.")
        found = self._sink.failure(error)
        return Unfit(str(found)) if of_rows(error) else found


def of_rows(error: Exception) -> bool:
    """Whether a failure lies in the rows. What the server says of tables, rights and itself may change."""
    from psycopg import Error, errors

    if not isinstance(error, Error):
        return not is_passing(error)
    refused = errors.RaiseException | errors.AssertFailure | errors.TriggeredActionException  # by a trigger
    limits = errors.CardinalityViolation | errors.WithCheckOptionViolation | errors.ProgramLimitExceeded
    return isinstance(error, errors.DataError | errors.IntegrityError | refused | limits)


def _reason(sink: PostgreSQL, error: Exception) -> str:
    from psycopg import Error, errors

    key = ", ".join(sink.key if sink.upsert is None else found_by_key(sink.upsert, sink.status))
    if isinstance(error, TimeoutError | errors.QueryCanceled):
        return f"{error or 'canceled'}; if units need longer than timeout={sink.timeout:g} s, raise it"
    if isinstance(error, errors.CardinalityViolation) and sink.upsert is not None:
        return (
            f"a unit has several rows with the same key ({key}), and rows of a unit have no order; aggregate by the "
            "key in the segment, or say which row is to stay: latest='column'"
        )
    if isinstance(error, errors.InvalidColumnReference) and sink.upsert is not None:
        return (
            f"there is no unique constraint on exactly ({key}), by which rows would be found; "
            f"ALTER TABLE {sink.table} ADD UNIQUE NULLS NOT DISTINCT ({key})"
        )
    diagnostic = error.diag if isinstance(error, Error) else None
    if diagnostic is None or diagnostic.message_primary is None:
        return " ".join(str(error).split()) or type(error).__name__
    parts = (diagnostic.message_primary, diagnostic.message_detail, diagnostic.context)
    return " ".join("; ".join(part for part in parts if part).split())[:LONGEST_REASON]
