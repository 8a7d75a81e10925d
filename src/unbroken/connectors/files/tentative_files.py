"""The tentative units of a file sink: files apart from the stable ones, which take their place.

::

    out/totals.0-to-out.0-0000000006.parquet                               a stable unit
    out/_tentative/totals.0-to-out.0/0000000009-after-0000000006.parquet   a tentative one, of pulses 7 to 9
    out/.stable/totals.0-to-out.0-0000000006-4b5f0c                        stable units have come to pulse 6

Readers that are given the directory leave out names that begin with ``_`` or ``.``, as Spark, Hive and Arrow do.

The mark of how far stable units have come is made when the file of one is there, before tentative files are removed.
Whoever adds a tentative file looks at the marks before and once more afterwards. So if both happen at the same time,
one of the two removes the file; only if that one dies just then it stays, until the next unit of the stream is
delivered or a sink is opened.

A mark also says of which run its unit was: one that was left behind in a directory that an operator emptied is not
taken for one of the present run.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from unbroken.connectors.files.publication import publish, remove_leftovers
from unbroken.connectors.sink_ledger import stream_name
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.units import UnitHeader

TENTATIVE = "_tentative"
STABLE = ".stable"

_PIECE = re.compile(r"(\d+)-after-(\d+)\.\w+")
_MARK = re.compile(r"(.+)-(\d+)-(\w*)")


@dataclass(frozen=True)
class Piece:
    """A tentative file, of the pulses after ``since`` up to ``pulse``."""

    since: int
    pulse: int
    path: Path

    def contains(self, other: Piece) -> bool:
        """Whether it covers all that ``other`` does, and more."""
        mine, its = (self.since, self.pulse), (other.since, other.pulse)
        return mine != its and self.since <= other.since and self.pulse >= other.pulse


@dataclass(frozen=True, order=True)
class StableFileMark:
    """How far the stable units of a run have come; the greatest counts."""

    pulse: int
    run: str
    path: Path


class TentativeFiles:
    """The tentative files of one sink; several writers, on different nodes, may use the same directory for one run.

    Each step of ``replace`` and ``put`` may be the last: whatever the next one to come finds, it goes on from there.
    """

    def __init__(self, directory: Path, suffix: str, run: str) -> None:
        self._directory = directory
        self._suffix = suffix
        self._run = run

    def put(self, header: UnitHeader, write: Callable[[BinaryIO], None]) -> bool:
        """Let ``write`` fill the file of a tentative unit; False if its pulse is there, stable or tentative."""
        stream = _name(header)
        if max(self._stable(stream), *(piece.pulse for piece in self._pieces(stream)), 0) >= header.pulse:
            self.tidy(stream)
            return False
        directory = self._directory / TENTATIVE / stream
        _make(directory)
        name = f"{header.pulse:010d}-after-{header.since:010d}.{self._suffix}"
        written = publish(directory, name, write)
        self.tidy(stream)
        return written and (directory / name).exists()

    def replace(self, header: UnitHeader) -> None:
        """A stable unit is there: it takes the place of all tentative files up to its pulse."""
        self.mark(header)
        self.tidy(_name(header))

    def mark(self, header: UnitHeader) -> None:
        """The first step of it: say how far stable units have come."""
        directory = self._directory / STABLE
        _make(directory)
        with _explained(directory):
            (directory / f"{_name(header)}-{header.pulse:010d}-{self._run}").touch()

    def tidy(self, stream: str) -> None:
        """Remove the tentative files that stable units, or tentative ones that cover more, have taken the place of."""
        marks, pieces = sorted(self._marks(stream)), list(self._pieces(stream))
        stable = self._stable(stream)
        for piece in pieces:
            if piece.pulse <= stable or any(other.contains(piece) for other in pieces):
                piece.path.unlink(missing_ok=True)
        for mark in marks:
            if mark.run != self._run or mark.pulse < stable:
                mark.path.unlink(missing_ok=True)

    def tidy_all(self) -> None:
        """The same for all streams, and for what writers that are gone have left half written."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._directory / TENTATIVE) as entries:
            for entry in entries:
                self.tidy(entry.name)
                remove_leftovers(Path(entry.path))

    def remove_all(self) -> None:
        """Remove the tentative files of a run that this one supersedes: no stable units will come for them."""
        for stream in _names(self._directory / TENTATIVE):
            for piece in list(self._pieces(stream)):
                piece.path.unlink(missing_ok=True)

    def any(self) -> bool:
        """Whether there is a tentative file."""
        streams = _names(self._directory / TENTATIVE)
        return next((True for stream in streams for _ in self._pieces(stream)), False)

    def _stable(self, stream: str) -> int:
        """The pulse that stable units have come to."""
        return max((mark.pulse for mark in self._marks(stream) if mark.run == self._run), default=0)

    def _marks(self, stream: str) -> Iterator[StableFileMark]:
        for name in _names(self._directory / STABLE):
            found = _MARK.fullmatch(name)
            if found is not None and found[1] == stream:
                yield StableFileMark(int(found[2]), found[3], self._directory / STABLE / name)

    def _pieces(self, stream: str) -> Iterator[Piece]:
        directory = self._directory / TENTATIVE / stream
        for name in _names(directory):
            found = _PIECE.fullmatch(name)
            if found is not None:
                yield Piece(int(found[2]), int(found[1]), directory / name)


def _name(header: UnitHeader) -> str:
    """The stream of a unit, whatever generation of the code or fork of it has made it, as part of a file's name."""
    return stream_name(header.stream).replace(">", "-to-")


def _names(directory: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return os.listdir(directory)
    return []


def _make(directory: Path) -> None:
    if not directory.is_dir():
        with _explained(directory):
            directory.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnbrokenError(f"{path} cannot be written: {error}. Check space and permissions.") from error
