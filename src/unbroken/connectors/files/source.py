"""A source that takes the files which appear in a directory."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from unbroken.connectors.base import Cut, Position, SourceConnector, SourceReader
from unbroken.connectors.location import elsewhere, local_path
from unbroken.data.rows.budget import DECODED_FACTOR, DecodeBudget, first_line
from unbroken.data.rows.csv.lines import csv_can_hold, parse_csv
from unbroken.data.rows.json.elements import elements
from unbroken.data.rows.json.lines import parse_json_lines
from unbroken.data.rows.parquet import decoded_estimate, read_parquet
from unbroken.data.rows.parsed import BadRow, Rows
from unbroken.data.rows.regular_files import by_content, open_regular
from unbroken.data.schema import arrow_schema, parse_schema
from unbroken.errors import Flaw, UnbrokenError
from unbroken.quantities import number_problems

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMATS = ("json", "csv", "parquet")
UNFINISHED_MS = 60_000
"""A Parquet file that has had no footer for this long will not get one, and a file that this process has had no
permission to open for this long stays like that; both are taken, and reported as bad."""

NAMED = 3
"""Files that a report about missing ones names; it is one line."""

_PARQUET_END = b"PAR1"


class Files(SourceConnector):
    """The files that appear in a directory, each read once, in the order in which they appeared.

    Names that begin with a dot or an underscore or end in ``.tmp`` are ignored, and so are directories and links. A
    file is taken when the node that cuts the pulses has seen it stay the same for ``settle_ms``, by a clock that is
    never set; another node that takes over, or a restarted one, watches it anew. Writers that pause longer than that
    should write under an ignored name and rename. Files must not be changed afterwards: a file with another size or
    modification time is another file and read from its beginning.

    A file must stay until every ingress node has read it. While a node does not see a file that was taken, or sees
    less of it, the rows of that pulse wait, and it is reported; other sources continue. If the file is gone for good,
    an operator restores it or skips the rows.

    Parameters
    ----------
    path
        The directory. All ingress nodes must see the same files under it.
    format
        ``"json"`` (one object per line), ``"csv"`` or ``"parquet"``.
    schema
        The columns to read.
    header
        Whether the first line of a CSV file names its columns.
    max_line_bytes
        Longer lines are bad rows.
    max_files_per_pulse, max_bytes_per_pulse
        More than this waits for the next pulse; a single larger file is still taken whole. Parquet files count by
        their size when decoded, as far as the footer tells.
    max_decoded_bytes
        A file, or a row group of a Parquet file, that takes more memory than this and than 16 times its size is set
        aside as a bad row.
    settle_ms
        How long a file has to stay the same before it is taken.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: str,
        schema: str | StructType,
        header: bool = True,
        max_line_bytes: int = 1_000_000,
        max_files_per_pulse: int = 1_000,
        max_bytes_per_pulse: int = 256_000_000,
        max_decoded_bytes: int = 256_000_000,
        settle_ms: int = 200,
    ) -> None:
        self._schema = parse_schema(schema)
        self.path = local_path(path)
        self.format = format
        self.header = header
        self.max_line_bytes = max_line_bytes
        self.max_files_per_pulse = max_files_per_pulse
        self.max_bytes_per_pulse = max_bytes_per_pulse
        self.max_decoded_bytes = max_decoded_bytes
        self.settle_ms = settle_ms

    @property
    def schema(self) -> StructType:
        return self._schema

    def problems(self) -> list[Flaw]:
        found = elsewhere(self.path, "Files")
        if self.format not in FORMATS:
            found.append(Flaw(f"The format is {self.format!r}", f"use one of {', '.join(FORMATS)}"))
        if self.path.exists() and not self.path.is_dir():
            found.append(Flaw(f"{self.path} is not a directory", "name the directory in which files appear"))
        limits = ("max_line_bytes", "max_files_per_pulse", "max_bytes_per_pulse", "max_decoded_bytes")
        found += number_problems(self, limits) + number_problems(self, ("settle_ms",), least=0)
        if self.format == "csv":
            nested = [field.name for field in arrow_schema(self._schema) if not csv_can_hold(field.type)]
            if nested:
                found.append(Flaw(f"CSV cannot hold the nested column {nested[0]!r}", "use json or parquet"))
        return found

    def open(self) -> FilesReader:
        return FilesReader(self)


@dataclass(frozen=True)
class _Seen:
    """A file as a listing showed it; ``since_ms`` is when the first poll saw it like this, by a clock that is never
    set: neither the clock of the machine nor the times of the file say how long ago it was written. ``refused`` is why
    its rows are not taken."""

    name: str
    size: int
    mtime_ns: int
    ctime_ns: int
    since_ms: float
    refused: str = ""

    @property
    def agreed(self) -> list[str | int]:
        """The file as a position names it."""
        return [self.name, self.size, *([self.refused] if self.refused else [])]

    @property
    def order(self) -> tuple[int, str]:
        return (self.ctime_ns, self.name)

    def same_content(self, other: _Seen) -> bool:
        return (self.size, self.mtime_ns) == (other.size, other.mtime_ns)


@dataclass(frozen=True)
class _Agreed:
    """A file as a position names it: how many of its bytes are read, or why none are."""

    name: str
    size: int
    refused: str = ""


class FilesReader(SourceReader):
    """Lists the directory to cut pulses; reads the files that a pulse names.

    The position is ``{"ctime_ns", "name", "count", "files": [[name, size], ...]}``; a file whose rows are not taken
    has the reason as a third element, so that all nodes leave it out alike. The first part of a position is a
    watermark: files up to it, in the order of (time of status change, name), are taken. ``count`` is how many
    that were, and ``files`` are those of the pulse that ends here, so its size does not grow with the directory.

    The time of status change (ctime) is used because creating a file or moving it into the directory sets it to
    the present, whatever modification time the file brings along. Changing permissions or links of a file sets
    it as well; so the reader that polls remembers the files it has seen taken and recognises them by size and
    modification time. The watermark alone decides only for a reader that takes over.

    A settled file never waits behind one that appeared later: files settle in the order of their last change.

    The rows of a file are a function of its agreed bytes, or of the position. What only this node may see (a file that
    does not exist here yet, or is shorter, as with caches of a network file system; a permission; a disk) is raised as
    passing trouble: another node may have made rows of the same file.

    The source is not reachable while the directory cannot be found, nor while all it has is files that have yet to
    settle: they may have rows of any time.
    """

    def __init__(self, source: Files, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._arrow = arrow_schema(source.schema)
        self._at: Position | None = None
        self._started = False
        self._taken: dict[str, _Seen] = {}
        self._waiting: dict[str, _Seen] = {}
        self._offer: tuple[Position, list[_Seen]] | None = None

    def poll(self, position: Position | None, now_ms: int) -> Cut:
        start = position or {"ctime_ns": 0, "name": "", "count": 0, "files": []}
        seen_ms = self._clock() * 1000
        listed = self._list(seen_ms)
        if listed is None:
            return Cut(start, reachable=False, why=f"there is no directory {self._source.path}")
        self._catch_up(position, listed)
        self._taken = {name: seen for name, seen in self._taken.items() if name in listed}
        self._waiting = {
            name: self._since(seen)
            for name, seen in listed.items()
            if name not in self._taken or not self._taken[name].same_content(seen)
        }
        chosen = self._choose(seen_ms)
        if not chosen:
            return Cut(start, reachable=not self._waiting, why="all it has is files that are not ready to be read")
        mark = max((start["ctime_ns"], start["name"]), chosen[-1].order)
        end = {
            "ctime_ns": mark[0],
            "name": mark[1],
            "count": start["count"] + len(chosen),
            "files": [seen.agreed for seen in chosen],
        }
        self._offer = (end, chosen)
        return Cut(end)

    def read(self, start: Position | None, end: Position) -> Rows:
        named = () if start is not None and start["count"] == end["count"] else end["files"]
        files = [_Agreed(*each) for each in named]
        self._require_visible(files)
        return Rows.joined(self._arrow, (self._read_file(file) for file in files))

    def _catch_up(self, position: Position | None, listed: dict[str, _Seen]) -> None:
        """Make ``_taken`` what is taken at ``position``."""
        if self._started and position == self._at:
            return
        if self._offer is not None and position == self._offer[0]:
            self._taken.update({seen.name: seen for seen in self._offer[1]})
        elif position is None:
            self._taken = {}
        else:
            mark = (position["ctime_ns"], position["name"])
            self._taken = {name: seen for name, seen in listed.items() if seen.order <= mark}
        self._at = position
        self._started = True
        self._offer = None

    def _since(self, seen: _Seen) -> _Seen:
        earlier = self._waiting.get(seen.name)
        unchanged = earlier is not None and earlier.same_content(seen) and earlier.ctime_ns == seen.ctime_ns
        return earlier if earlier is not None and unchanged else seen

    def _choose(self, seen_ms: float) -> list[_Seen]:
        chosen: list[_Seen] = []
        size = 0
        for seen in sorted(self._waiting.values(), key=lambda seen: seen.order):
            if len(chosen) >= self._source.max_files_per_pulse:
                break
            ready = self._ready(seen, seen_ms)
            if ready is None:
                continue
            weight = self._weight(seen)
            if chosen and size + weight > self._source.max_bytes_per_pulse:
                break
            chosen.append(ready)
            size += weight
        return chosen

    def _weight(self, seen: _Seen) -> int:
        """What a file counts for in its pulse: Parquet becomes larger when it is decoded."""
        if self._source.format != "parquet":
            return seen.size
        return max(seen.size, decoded_estimate(self._source.path / seen.name, self._arrow))

    def _ready(self, seen: _Seen, seen_ms: float) -> _Seen | None:
        """The file as it is to be agreed; None while it has to wait."""
        age_ms = seen_ms - seen.since_ms
        if age_ms < self._source.settle_ms or age_ms == 0:
            return None
        try:
            with open_regular(self._source.path / seen.name) as file:
                needs_end = self._source.format == "parquet" and age_ms < UNFINISHED_MS
                return seen if not needs_end or _has_end(file) else None
        except PermissionError as error:
            refused = f"the file cannot be opened on the node that cuts the pulses: {first_line(error)}"
            return replace(seen, refused=refused) if age_ms >= UNFINISHED_MS else None
        except (OSError, ValueError):
            return None

    def _list(self, seen_ms: float) -> dict[str, _Seen] | None:
        """The files in the directory; None if there is none. It may appear later, as its files do.

        What is known of files must outlast that: a directory that is mounted again has files that were read.
        """
        listed: dict[str, _Seen] = {}
        try:
            with os.scandir(self._source.path) as entries:
                for entry in entries:
                    if entry.name.startswith((".", "_")) or entry.name.endswith(".tmp"):
                        continue
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # Gone since it was listed.
                    if stat.S_ISREG(found.st_mode):
                        listed[entry.name] = _Seen(
                            entry.name, found.st_size, found.st_mtime_ns, found.st_ctime_ns, seen_ms
                        )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnbrokenError(
                f"The directory {self._source.path} of a source cannot be listed: {error}. Check path and permissions."
            ) from error
        return listed

    def _require_visible(self, files: list[_Agreed]) -> None:
        """Raise if this node does not see all that was agreed; before a file is read, as attempts may be many."""
        missing = [found for file in files if not file.refused and (found := self._missing(file)) is not None]
        if missing:
            raise _not_visible(self._source.path, missing)

    def _missing(self, file: _Agreed) -> str | None:
        try:
            found = os.stat(self._source.path / file.name, follow_symlinks=False)
        except FileNotFoundError:
            return f"{file.name} does not exist"
        return self._differs(file, found)

    def _differs(self, file: _Agreed, found: os.stat_result) -> str | None:
        """How a file is not what was agreed, by its status. Text may have grown: its agreed bytes are read."""
        if not stat.S_ISREG(found.st_mode):
            return f"{file.name} is not a regular file"
        if found.st_size < file.size or (found.st_size > file.size and self._source.format == "parquet"):
            return f"{file.name} has {found.st_size} bytes, {file.size} were agreed"
        return None

    def _read_file(self, file: _Agreed) -> Rows:
        """The rows of a file; one that cannot be decoded is one bad row, the same on all ingress nodes."""
        if file.refused:
            return self._bad_file(file.name, file.refused)
        with self._opened(file) as opened:
            try:
                return self._decoded(opened, file)
            except Exception as error:
                if not by_content(error):
                    raise
                # What was decoded may have been cut short while it was.
                self._require_unchanged(file, os.fstat(opened.fileno()))
                return self._bad_file(file.name, f"the file cannot be read: {first_line(error)}")

    def _opened(self, file: _Agreed) -> BinaryIO:
        try:
            return open_regular(self._source.path / file.name)
        except FileNotFoundError as error:
            raise _not_visible(self._source.path, [f"{file.name} does not exist"]) from error
        except ValueError as error:
            raise _not_visible(self._source.path, [f"{file.name} is not a regular file"]) from error

    def _require_unchanged(self, file: _Agreed, found: os.stat_result) -> None:
        differs = self._differs(file, found)
        if differs is not None:
            raise _not_visible(self._source.path, [differs])

    def _decoded(self, opened: BinaryIO, file: _Agreed) -> Rows:
        budget = DecodeBudget(max(self._source.max_decoded_bytes, DECODED_FACTOR * file.size))
        self._require_unchanged(file, os.fstat(opened.fileno()))
        if self._source.format == "parquet":
            return read_parquet(opened, file.name, self._arrow, budget)
        data = opened.read(file.size)
        if len(data) < file.size:
            raise _not_visible(self._source.path, [f"{file.name} has {len(data)} bytes, {file.size} were agreed"])
        decoded = len(data) + elements(self._arrow).bytes_of(data)  # CSV has no elements.
        budget.require_lines(data.count(b"\n") + 1, decoded, self._arrow, "the file")
        return self._parse(data, file.name)

    def _parse(self, data: bytes, name: str) -> Rows:
        limit = self._source.max_line_bytes
        if self._source.format == "csv":
            return parse_csv(data, self._arrow, name, limit, header=self._source.header)
        return parse_json_lines(data, self._arrow, name, limit)

    def _bad_file(self, name: str, reason: str) -> Rows:
        return Rows(self._arrow.empty_table(), (BadRow(name, reason, name),))


def _has_end(file: BinaryIO) -> bool:
    file.seek(-len(_PARQUET_END), os.SEEK_END)
    return file.read() == _PARQUET_END


def _not_visible(path: Path, missing: list[str]) -> UnbrokenError:
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return UnbrokenError(
        f"Files that were agreed cannot be read in {path}: {', '.join(missing[:NAMED])}{more}. "
        "Restore them, or set their rows aside with `unbroken skip`."
    )
