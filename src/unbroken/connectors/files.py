"""A source that takes the files which appear in a directory."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unbroken.connectors.base import BadRow, Cut, Position, Rows, SourceConnector, SourceReader
from unbroken.connectors.budget import DECODED_FACTOR, DecodeBudget, first_line
from unbroken.connectors.csvparse import csv_can_hold, parse_csv
from unbroken.connectors.elements import elements
from unbroken.connectors.location import elsewhere, local_path
from unbroken.connectors.parquet_rows import decoded_estimate, read_parquet
from unbroken.connectors.regular import PASSING, open_regular
from unbroken.connectors.rowparse import parse_json_lines
from unbroken.errors import UnbrokenError
from unbroken.numbers import number_problems
from unbroken.spark.types import arrow_schema, parse_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMATS = ("json", "csv", "parquet")
UNFINISHED_MS = 60_000
"""A Parquet file that has had no footer for this long will not get one; it is taken and reported as bad."""

_PARQUET_END = b"PAR1"


class Files(SourceConnector):
    """The files that appear in a directory, each read once, in the order in which they appeared.

    Names that begin with a dot or an underscore or end in ``.tmp`` are ignored, and so are directories and links. A
    file is taken when the node that cuts the pulses has seen it stay the same for ``settle_ms``, by a clock that is
    never set; another node that takes over, or a restarted one, watches it anew. Writers that pause longer than that
    should write under an ignored name and rename. Files must not be changed afterwards: a file with another size or
    modification time is another file and read from its beginning.

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

    def problems(self) -> list[str]:
        found = elsewhere(self.path, "Files")
        if self.format not in FORMATS:
            found.append(f"The format is {self.format!r}; use one of {', '.join(FORMATS)}.")
        if self.path.exists() and not self.path.is_dir():
            found.append(f"{self.path} is not a directory; name the directory in which files appear.")
        limits = ("max_line_bytes", "max_files_per_pulse", "max_bytes_per_pulse", "max_decoded_bytes")
        found += number_problems(self, limits) + number_problems(self, ("settle_ms",), least=0)
        if self.format == "csv":
            nested = [field.name for field in arrow_schema(self._schema) if not csv_can_hold(field.type)]
            if nested:
                found.append(f"CSV cannot hold the nested column {nested[0]!r}; use json or parquet.")
        return found

    def open(self) -> FilesReader:
        return FilesReader(self)


@dataclass(frozen=True)
class _Seen:
    """A file as a listing showed it; ``since_ms`` is when the first poll saw it like this, by a clock that is never
    set: neither the clock of the machine nor the times of the file say how long ago it was written."""

    name: str
    size: int
    mtime_ns: int
    ctime_ns: int
    since_ms: float

    @property
    def order(self) -> tuple[int, str]:
        return (self.ctime_ns, self.name)

    def same_content(self, other: _Seen) -> bool:
        return (self.size, self.mtime_ns) == (other.size, other.mtime_ns)


class FilesReader(SourceReader):
    """Lists the directory to cut pulses; reads the files that a pulse names.

    The position is ``{"ctime_ns", "name", "count", "files": [[name, size], ...]}``. Its first part is a
    watermark: files up to it, in the order of (time of status change, name), are taken. ``count`` is how many
    that were, and ``files`` are those of the pulse that ends here, so its size does not grow with the directory.

    The time of status change (ctime) is used because creating a file or moving it into the directory sets it to
    the present, whatever modification time the file brings along. Changing permissions or links of a file sets
    it as well; so the reader that polls remembers the files it has seen taken and recognises them by size and
    modification time. The watermark alone decides only for a reader that takes over.

    A settled file never waits behind one that appeared later: files settle in the order of their last change.

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
            return Cut(start, reachable=not self._waiting, why="all it has is files that are still being written")
        mark = max((start["ctime_ns"], start["name"]), chosen[-1].order)
        end = {
            "ctime_ns": mark[0],
            "name": mark[1],
            "count": start["count"] + len(chosen),
            "files": [[seen.name, seen.size] for seen in chosen],
        }
        self._offer = (end, chosen)
        return Cut(end)

    def read(self, start: Position | None, end: Position) -> Rows:
        files = () if start is not None and start["count"] == end["count"] else end["files"]
        return Rows.joined(self._arrow, (self._read_file(str(name), int(size)) for name, size in files))

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
            if not self._complete(seen, seen_ms):
                continue
            weight = self._weight(seen)
            if chosen and size + weight > self._source.max_bytes_per_pulse:
                break
            chosen.append(seen)
            size += weight
        return chosen

    def _weight(self, seen: _Seen) -> int:
        """What a file counts for in its pulse: Parquet becomes larger when it is decoded."""
        if self._source.format != "parquet":
            return seen.size
        return max(seen.size, decoded_estimate(self._source.path / seen.name, self._arrow))

    def _complete(self, seen: _Seen, seen_ms: float) -> bool:
        age_ms = seen_ms - seen.since_ms
        if age_ms < self._source.settle_ms or age_ms == 0:
            return False
        if self._source.format != "parquet" or age_ms >= UNFINISHED_MS:
            return True
        try:
            with open_regular(self._source.path / seen.name) as file:
                file.seek(-len(_PARQUET_END), os.SEEK_END)
                return file.read() == _PARQUET_END
        except (OSError, ValueError):
            return False

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

    def _read_file(self, name: str, size: int) -> Rows:
        """The rows of a file; one that cannot be decoded is one bad row, the same on all ingress nodes."""
        try:
            return self._decoded(name, size)
        except FileNotFoundError:
            return self._bad_file(name, "the file vanished before it was read")
        except Exception as error:
            if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in PASSING):
                raise  # other nodes may be able to read it, and this one later
            return self._bad_file(name, f"the file cannot be read: {first_line(error)}")

    def _decoded(self, name: str, size: int) -> Rows:
        path = self._source.path / name
        budget = DecodeBudget(max(self._source.max_decoded_bytes, DECODED_FACTOR * size))
        with open_regular(path) as file:
            if self._source.format == "parquet":
                found = os.fstat(file.fileno()).st_size
                if found != size:
                    raise ValueError(f"it has {found} bytes, {size} were agreed")
                return read_parquet(file, name, self._arrow, budget)
            data = file.read(size)
        decoded = len(data) + elements(self._arrow).bytes_of(data)  # CSV has no elements.
        budget.require_lines(data.count(b"\n") + 1, decoded, self._arrow, "the file")
        lines = self._parse(data, name)
        if len(data) == size:
            return lines
        short = BadRow(name, f"the file has {len(data)} bytes, {size} were agreed; it was cut short", name)
        return Rows.joined(self._arrow, (lines, Rows(self._arrow.empty_table(), (short,))))

    def _parse(self, data: bytes, name: str) -> Rows:
        limit = self._source.max_line_bytes
        if self._source.format == "csv":
            return parse_csv(data, self._arrow, name, limit, header=self._source.header)
        return parse_json_lines(data, self._arrow, name, limit)

    def _bad_file(self, name: str, reason: str) -> Rows:
        return Rows(self._arrow.empty_table(), (BadRow(name, reason, name),))
