"""A Delta table as a sink: each unit is one commit, which says in the table's log which unit it was."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from unbroken.connectors.base import SinkConnector, SinkWriter
from unbroken.connectors.delta.disk import bring_to_disk, settled
from unbroken.connectors.delta.schema import check_fit, check_partitions, delta_types, nullable
from unbroken.connectors.failures import is_passing
from unbroken.connectors.location import local_path, scheme_of, unclear
from unbroken.connectors.sink_ledger import SinkMark, is_delivered, own_mark, stream_name
from unbroken.errors import Flaw, UnbrokenError, Unfit
from unbroken.protocol.values.run import RunIdentity
from unbroken.protocol.values.units import UnitHeader
from unbroken.quantities import number_problems
from unbroken.security.secret import Secret, declared, literal_problems, masked, revealed

if TYPE_CHECKING:
    from deltalake import DeltaTable

ATTEMPTS = 10
"""Commits that are tried before the caller is told. One fails only if another writer has committed something that
matters meanwhile: the same unit, which ends the matter, or a change to the table."""

REMOTE = {"connect_timeout": "5s", "timeout": "30s", "max_retries": "3", "retry_timeout": "60s"}
"""How long an object store is waited for, unless the options say otherwise; the library's own bound is minutes."""

UNSAFE = ("aws_s3_allow_unsafe_rename", "allow_unsafe_rename", "mount_allow_unsafe_rename")
"""Options that let a commit replace another of the same version."""

HADOOP = ("hdfs", "viewfs")
SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", *HADOOP, "lakefs", "uc")
"""Stores in which the library can commit without replacing another commit of the same version."""

EXPIRY = "delta.setTransactionRetentionDuration"
"""The property of a table that makes it forget which units it has."""

LONGEST_REASON = 500
"""Characters of a reason that are shown: the library quotes rows."""

_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_TRACE = re.compile(r"\s*\d+: ")
_OF_ROWS = re.compile("invariant|violat|cannot cast|cast error|schema error|not supported by delta", re.IGNORECASE)


class Delta(SinkConnector):
    """Each unit with rows is appended to a Delta table as one commit, with an application transaction that names it.

    Parameters
    ----------
    path
        A directory that the nodes share, or a URL such as ``s3://bucket/table``.
    storage_options
        Options for an object store, as the package deltalake takes them. Credentials are a `Secret`, or are left to
        the environment of the nodes.
    partition_by
        Columns by which the files are laid out, if the table is created here.
    checkpoint_every
        Commits between two checkpoints of the log, if the table is created here.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, str | Secret] | None = None,
        partition_by: str | Sequence[str] = (),
        checkpoint_every: int = 50,
    ) -> None:
        self.path = os.fspath(path)
        self.storage_options = declared(storage_options)
        self.partition_by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        self.checkpoint_every = checkpoint_every

    def __repr__(self) -> str:
        return f"Delta({self.path!r})"

    @property
    def directory(self) -> Path | None:
        """Where the table is, unless it is in an object store."""
        return local_path(self.path) if scheme_of(self.path) in (None, "file") else None

    @property
    def options(self) -> dict[str, str]:
        """What the library is given, with secrets resolved on this node."""
        return revealed({**REMOTE, **self.storage_options} if self.directory is None else self.storage_options)

    @property
    def app_id(self) -> str:
        """Names this sink in the table's log; with a stream behind it, the stream."""
        return f"unbroken/{self.identity}"

    def problems(self) -> list[Flaw]:
        found = []
        if find_spec("deltalake") is None:
            found.append(Flaw("Delta needs the package deltalake", "install it with pip install 'unbroken[delta]'"))
        if not self.path:
            found.append(Flaw("Delta has no path", "name a directory that the nodes share, or a URL"))
        else:
            found += self._scheme_problems()
        if self.directory is not None and self.directory.is_file():
            found.append(Flaw(f"{self.path} is not a directory", "name a directory for the table"))
        for name, value in (*self.storage_options.items(), *os.environ.items()):
            if name.lower() in UNSAFE and str(value).lower() not in ("false", "0", "off", "no"):
                found.append(Flaw(f"{name}={value} lets one replica's commit replace another's", "leave it out"))
        found += literal_problems("storage_options", self.storage_options)
        return found + number_problems(self, ("checkpoint_every",))

    def _scheme_problems(self) -> list[Flaw]:
        """What is wrong with a URL and with the options for its object store."""
        found = unclear(self.path, "The path of Delta")
        if found:
            return found
        scheme = scheme_of(self.path)
        if scheme == "file" and self.directory is not None and scheme_of(self.directory) is not None:
            return [
                Flaw(f"{self.path} names a machine", "write file:/// and the path of a directory that the nodes share")
            ]
        if scheme not in (None, "file", *SCHEMES):
            known = ", ".join(f"{name}://" for name in SCHEMES)
            what = f"The path of Delta begins with {scheme}:, which the sink cannot commit to"
            return [Flaw(what, f"use a directory that the nodes share, or a URL with {known}")]
        found = []
        for name, value in self.storage_options.items():
            if not isinstance(value, str | Secret):
                found.append(Flaw(f"The storage option {name!r} is a {type(value).__name__}", "write it as a string"))
            if "." in name and scheme not in HADOOP:
                what = f"The storage option {name!r} is one of Spark's, which deltalake does not know"
                found.append(Flaw(what, "use its own names, such as aws_access_key_id or azure_storage_account_name"))
        return found

    def runs(self) -> frozenset[str]:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return frozenset(self.runs_in(DeltaTable(self.path, storage_options=self.options)))
        except TableNotFoundError:
            return frozenset()
        except Exception as error:
            raise self.failure(error) from None

    def runs_in(self, table: DeltaTable) -> tuple[str, ...]:
        """The runs of this sink that a table knows, in their order: entry ``app_id`` of its log counts them."""
        count = table.transaction_version(self.app_id) or 0
        return tuple(str(table.transaction_version(f"{self.app_id}/{number}")) for number in range(1, count + 1))

    def occupied(self) -> str | None:
        if not self.runs():
            return None
        return f"the Delta table {self.path} holds results of an earlier run of {self.identity}"

    def open(self, flow_dir: Path) -> DeltaWriter:
        return DeltaWriter(self)

    def failure(self, error: BaseException) -> UnbrokenError:
        """What went wrong, in one sentence without secrets."""
        # The library colours the chain of causes, and adds a trace of its own calls.
        lines = [line for line in _COLOURS.sub("", str(error)).splitlines() if not _TRACE.match(line)]
        reason = " ".join(" ".join(lines).replace("↳", "-").split())[:LONGEST_REASON] or type(error).__name__
        return UnbrokenError(f"The Delta table {self.path}: {masked(reason)}")


def of_rows(error: Exception) -> bool:
    """Whether a failure lies in the rows. The library has few classes: much that may pass comes in the same one."""
    from deltalake.exceptions import DeltaError, SchemaMismatchError

    if isinstance(error, SchemaMismatchError):
        return True
    if isinstance(error, DeltaError) or type(error) is Exception:
        return _OF_ROWS.search(str(error)) is not None
    return not is_passing(error)


def run_number(run: str) -> int:
    """A run in the log of a table, which holds nothing but numbers of 64 bits there."""
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:8], "big") >> 2


class DeltaWriter(SinkWriter):
    """Appends units, each in four steps: look at the table as it is, ask its log for the unit, commit, bring to disk.

    A commit appears whole or not at all, under the next free version; a writer that dies before leaves files that
    nothing refers to. If two writers commit at the same time, one of them finds its version taken. It may take the next
    one, unless something was committed since it looked that names the same application: then it fails, and looks again.
    So of all who found that a unit was not there, one commits it, however long the others slept in between, and nobody
    holds a lock.
    """

    def __init__(self, sink: Delta) -> None:
        self._sink = sink
        self._table: DeltaTable | None = None
        self._opened = 0
        self._checked: pa.Schema | None = None
        self._synced: int | None = None

    def deliver(self, header: UnitHeader, table: pa.Table) -> bool:
        if table.num_rows == 0:
            return True
        lost: BaseException | None = None
        try:
            for _ in range(ATTEMPTS):
                known = self._look(table.schema)
                if self._is_delivered(known, header):
                    self._sync(known)  # Whoever committed it may have died before doing so.
                    return False
                lost = self._commit(known, header, table)
                if lost is None:
                    self._sync(known)
                    return True
        except UnbrokenError:
            self.close()
            raise
        except Exception as error:
            self.close()
            found = self._sink.failure(error)
            raise (Unfit(str(found)) if of_rows(error) else found) from None
        self.close()
        assert lost is not None
        raise self._sink.failure(lost)

    def close(self) -> None:
        self._table = self._checked = None

    def _look(self, schema: pa.Schema) -> DeltaTable:
        """The table as it is, made if there is none."""
        if self._table is None or self._table.version() >= self._opened + self._sink.checkpoint_every:
            # Opened again from time to time, because what is added to an open table makes every commit slower.
            self._table, self._checked = self._open(schema), None
            self._opened = self._table.version()
        else:
            self._table.update_incremental()
        if self._checked is None or not self._checked.equals(schema):
            self._check(self._table, schema)
            self._checked = schema
        return self._table

    def _open(self, schema: pa.Schema) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        sink = self._sink
        try:
            return DeltaTable(sink.path, storage_options=sink.options)
        except TableNotFoundError:
            pass
        delta_types(schema)
        check_partitions(schema, sink.partition_by, repr(sink))
        try:
            return DeltaTable.create(
                sink.path,
                schema=nullable(schema),
                partition_by=list(sink.partition_by),
                configuration={"delta.checkpointInterval": str(sink.checkpoint_every)},
                storage_options=sink.options,
            )
        except DeltaError:
            if not DeltaTable.is_deltatable(sink.path, storage_options=sink.options):
                raise
            return DeltaTable(sink.path, storage_options=sink.options)  # Another replica was first.

    def _check(self, table: DeltaTable, schema: pa.Schema) -> None:
        where = f"the Delta table {self._sink.path}"
        check_fit(schema, table.schema(), where)
        if EXPIRY in table.metadata().configuration:
            raise UnbrokenError(f"{where} forgets after a while which units it has; unset its property {EXPIRY}.")

    def _is_delivered(self, table: DeltaTable, header: UnitHeader) -> bool:
        stream, told = (
            self._stream(header),
            (f"The Delta table {self._sink.path}", "let the sink write to another one."),
        )
        last = self._sink.runs_in(table)[-1:]
        if last:
            # Also if that run has written to other streams only: what it has superseded writes to none.
            own_mark(SinkMark(0, last[0]), self._run, *told)
        number, run = table.transaction_version(stream), table.transaction_version(f"{stream}/run")
        mark = None if number is None or run is None else SinkMark(number, str(run))
        return is_delivered(header, mark, self._run, *told)

    @property
    def _run(self) -> RunIdentity:
        return RunIdentity(str(run_number(self._sink.run.id)), self._sink.run.supersedes)

    def _commit(self, table: DeltaTable, header: UnitHeader, rows: pa.Table) -> BaseException | None:
        """Append the unit; why it could not be, if other commits are in the way.

        The library compares with all that was committed since ``table`` was looked at, not since it began to write.
        """
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError

        stream, app_id, run = self._stream(header), self._sink.app_id, int(self._run.id)
        named = [Transaction(stream, header.number), Transaction(f"{stream}/run", run)]
        known = self._sink.runs_in(table)
        if known[-1:] != (str(run),):
            named += [Transaction(app_id, len(known) + 1), Transaction(f"{app_id}/{len(known) + 1}", run)]
        unit: dict[str, object] = {"stream": stream_name(header.stream), "run": self._sink.run.id}
        unit |= {"number": header.number, "cut_ms": header.cut_ms}
        properties = CommitProperties(custom_metadata={"unbroken": unit}, app_transactions=named)
        try:
            write_deltalake(table, rows, mode="append", commit_properties=properties)
        except CommitFailedError as error:
            return error
        return None

    def _sync(self, table: DeltaTable) -> None:
        directory, version = self._sink.directory, table.version()
        if directory is None:
            return
        if self._synced is None:
            self._synced = settled(directory, version)
        bring_to_disk(directory, self._synced, version)
        self._synced = version

    def _stream(self, header: UnitHeader) -> str:
        return f"{self._sink.app_id}/{stream_name(header.stream)}"
