"""The file of a sink's directory that says which runs have written to it: the last one may, the others no longer do."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.connectors.files.publication import publish
from unbroken.data.checksum import Damaged, sealed, unsealed
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.run import RunIdentity

NAME = "_unbroken.json"
"""Readers leave out names that begin so, as Spark, Hive and Arrow do."""

RESTORE = "Restore the file from a backup, or give the sink an empty directory."


@dataclass(frozen=True)
class _Runs:
    """The content of the file: the runs that have written here, one after the other."""

    runs: tuple[str, ...]


_RUNS = Codec(_Runs, "runs", readable=True)


@dataclass(frozen=True)
class RunFile:
    """The runs of a sink's directory in their order; files without a run file are those of the run ``""``.

    ``in_use`` says whether the directory holds results: one that was emptied belongs to no run.
    """

    directory: Path
    in_use: Callable[[], bool]

    def runs(self) -> tuple[str, ...]:
        """Those whose results are there."""
        return (self._written() or ("",)) if self.in_use() else ()

    def last(self) -> str | None:
        """The run that may write here; None if there is none, or none that can be told."""
        try:
            return next(reversed(self._written()), None)
        except UnbrokenError:
            return None

    def claim(self, run: RunIdentity, superseding: Callable[[], None]) -> int:
        """Make sure that ``run`` may write here; how many runs were here before it.

        ``superseding`` is called before this run takes the place of another.

        Raises
        ------
        UnbrokenError
            If the directory belongs to another run, which this one does not supersede.
        """
        written = self._written()
        if written and written[-1] == run.id:
            return len(written) - 1
        before = self.runs()
        if before and before[-1] == run.id:
            before = before[:-1]
        elif before and (before[-1] not in run.supersedes or run.id in before):
            theirs, mine = before[-1] or "unknown", run.id or "unknown"
            raise UnbrokenError(
                f"{self.directory} holds results of run {theirs}, and this is run {mine}; give the sink an empty "
                "directory."
            )
        if not written and publish(self.directory, NAME, lambda file: _write(file.write, (*before, run.id))):
            return len(before)
        if written:
            superseding()
            self._replace((*before, run.id))
        return self.claim(run, superseding)

    def _written(self) -> tuple[str, ...]:
        try:
            path = self.directory / NAME
            return _RUNS.decode(unsealed(path, path.read_bytes(), RESTORE)).runs
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise UnbrokenError(f"{path} cannot be read: {error}. Check the disk and permissions.") from error
        except Undecodable as error:
            raise Damaged(path, str(error), RESTORE) from error

    def _replace(self, runs: tuple[str, ...]) -> None:
        # Replicas of one run do this at the same time, with the same content.
        temporary = self.directory / f".{NAME}.{uuid.uuid4().hex}.tmp"
        try:
            with open(temporary, "xb") as file:
                _write(file.write, runs)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.directory / NAME)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise UnbrokenError(f"{self.directory / NAME} cannot be written: {error}. Check space.") from error


def _write(write: Callable[[bytes], int], runs: tuple[str, ...]) -> None:
    write(sealed(_RUNS.encode(_Runs(runs))))
