"""A Spark checkpoint as a set of files: what is committed in it, and how to hold one version while the query runs.

Spark writes each file of a checkpoint under a temporary name, renames it, and never changes it afterwards. So hard
links hold a version, and the query that owns the directory does not notice. A checkpoint at version b, which means
that b micro-batches are committed, consists of

``metadata``
    The identity of the query.
``offsets/``, ``commits/``
    One entry per micro-batch, numbered from 0. A restart reads the last two offset entries and the last commit.
``sources/``
    What sources note for themselves; only the file source keeps a log there.
``state/<operator>/<partition>/`` or ``state/<operator>/<partition>/<store>/``
    Snapshots of the state (``v.zip`` with the SST files it names, or ``v.snapshot``) and the changes from version
    v - 1 to v (``v.changelog`` or ``v.delta``). Version b is the newest snapshot up to b and the changes after it.
``state/<operator>/_metadata/``, ``state/<operator>/<partition>/_metadata/`` and the like
    Names and schemas of the stores, written when an operator first runs.

Hidden files (temporary names, Hadoop's checksums) are never needed: Hadoop does not verify a file without a checksum.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unbroken.errors import UnbrokenError

_VERSION_FILE = re.compile(r"(\d+)(_[0-9a-f-]+)?\.(changelog|delta|zip|snapshot)")
_CHANGES = ("changelog", "delta")
_SNAPSHOTS = ("zip", "snapshot")
_SHARED = ("SSTs", "logs")
"""Where RocksDB's immutable files are; which of them belong to a snapshot is written in its zip file."""

_OFFSETS_NEEDED = 2
"""A restart reads the end of the last micro-batch and its start, which is the end of the one before."""

_ATTEMPTS = 5
"""Listings of one directory whose files vanish meanwhile. Spark deletes old versions once per maintenance interval
and the files of the last 100 versions never, so a version that takes more listings is being deleted itself."""

_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EACCES}
"""How file systems say that they cannot make this hard link; a copy does it then."""


def committed_batches(checkpoint: Path) -> int:
    """Number of micro-batches committed in a checkpoint directory; 0 if there is none.

    A last entry that was not written to its end, as a crash of the machine can leave it, does not count.
    """
    commits = checkpoint / "commits"
    for number in sorted(_entries(commits), reverse=True):
        if _complete_commit(commits / str(number)):
            return number + 1
    return 0


def offset_at(checkpoint: Path, batch: int) -> dict[str, Any]:
    """The offset that a micro-batch ends with, as it was planned; all sources of a query have the same."""
    lines = _lines(checkpoint / "offsets" / str(batch))
    planned: list[dict[str, Any]] = [json.loads(line) for line in lines[2:] if line != "-"]
    if not planned:
        raise UnbrokenError(f"{checkpoint}: micro-batch {batch} was never planned")
    return planned[0]


def batches_through(checkpoint: Path, cut: int) -> int:
    """How many micro-batches of a checkpoint end with ``cut`` or before it."""
    planned = sorted(_entries(checkpoint / "offsets"), reverse=True)
    for number in planned:
        if int(offset_at(checkpoint, number)["cut"]) <= cut:
            return number + 1
    if planned and planned[-1] > 0:
        raise UnbrokenError(f"{checkpoint}: what was planned up to cut {cut} is not kept any more; take a later one")
    return 0


def watermark_before(checkpoint: Path, batch: int) -> float:
    """The watermark (ms since the epoch) that is in force for a micro-batch: what the one before it has left."""
    lines = _lines(checkpoint / "commits" / str(batch - 1)) if batch else []
    return float(json.loads(lines[1]).get("nextBatchWatermarkMs", 0)) if len(lines) == 2 else 0.0


def repair(checkpoint: Path) -> list[str]:
    """Remove what was not completed when the process or the machine died; return the files removed.

    To be called before a query starts on a checkpoint and while none runs on it. A killed process leaves temporary
    files and state after the committed version, which Spark ignores or writes again. A machine that stops can leave
    empty log entries as well, and every start of the query would fail on those. What goes is all of that: temporary
    files, log entries that cannot be read or do not continue the readable ones, and state after the committed
    version, lest a snapshot of a micro-batch that never was outlives it. A readable offset entry of the next
    micro-batch stays, and Spark runs that micro-batch as it was planned.

    Raises
    ------
    UnbrokenError
        If micro-batches are committed but the offsets that a restart needs are lost.
    """
    version = _restartable(checkpoint)
    removed = [path for path in _files(checkpoint) if _is_temporary(path.name)]
    removed += [checkpoint / "commits" / str(n) for n in _entries(checkpoint / "commits") if n >= version]
    planned = checkpoint / "offsets" / str(version)
    goes_on = _complete_offsets(planned, _source_count(checkpoint, version))
    first_bad = version + 1 if goes_on else version
    removed += [checkpoint / "offsets" / str(n) for n in _entries(checkpoint / "offsets") if n >= first_bad]
    for path in _files(checkpoint / "state"):
        match = _VERSION_FILE.fullmatch(path.name)
        if match is not None and int(match[1]) > version:
            removed.append(path)
    for path in removed:
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return sorted(str(path.relative_to(checkpoint)) for path in removed)


def pin(checkpoint: Path, target: Path, version: int) -> int:
    """Hold a committed version of a checkpoint that a query may be using, in ``target``; return its bytes.

    ``target`` gets hard links (copies where the file system makes none) to exactly the files that a query needs to
    start with ``version`` micro-batches committed, and must not exist or be empty. It is a checkpoint of its own: a
    query may be started on it while the other one runs, in the same Spark session as well, since it gets an
    identity of its own. Spark would stop a running query when another one of its identity starts.

    Raises
    ------
    UnbrokenError
        If the version is not committed, or is so old that Spark has deleted part of it.
    """
    if version < 0 or (version and not _complete_commit(checkpoint / "commits" / str(version - 1))):
        raise _not_there(checkpoint, version)
    if target.exists() and any(target.iterdir()):
        raise UnbrokenError(f"{target}: a checkpoint cannot be pinned here, the directory is not empty; remove it")
    target.mkdir(parents=True, exist_ok=True)
    try:
        (target / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        if version:
            _Pin(checkpoint, target, version).everything()
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return sum(path.stat().st_size for path in _files(target))


@dataclass(frozen=True)
class _Pin:
    """One version on its way from a checkpoint in use to a directory of its own."""

    checkpoint: Path
    target: Path
    version: int

    def everything(self) -> None:
        last = self.version - 1
        self._link(Path("commits"), lambda _: [str(last)])
        wanted = [str(n) for n in range(max(0, self.version - _OFFSETS_NEEDED), self.version)]
        self._link(Path("offsets"), lambda _: wanted)
        limits = _file_source_limits(self.target / "offsets" / str(last))
        for name in _directories(self.checkpoint / "sources"):
            self._link(Path("sources", name), partial(_source_files, limit=limits.get(name)))
        self._state(Path("state"))

    def _state(self, directory: Path) -> None:
        self._link(directory, lambda names: self._version_files(directory, names))
        for name in _directories(self.checkpoint / directory):
            if name not in _SHARED:
                self._state(directory / name)

    def _version_files(self, directory: Path, names: list[str]) -> list[str]:
        """The files of one state directory that make up the version, and those that belong to all versions."""
        found = [match for name in names if (match := _VERSION_FILE.fullmatch(name))]
        chain = _chain(found, self.version) if found else []
        if chain is None:
            raise FileNotFoundError(errno.ENOENT, "no complete chain of changes", str(directory))
        return [name for name in names if _VERSION_FILE.fullmatch(name) is None] + chain

    def _link(self, directory: Path, choose: Callable[[list[str]], list[str]]) -> None:
        """Link what is chosen of a directory; choose again from a fresh listing if some of it is gone by then."""
        for attempt in range(_ATTEMPTS):
            linked: set[Path] = set()
            try:
                for name in choose(_visible_files(self.checkpoint / directory)):
                    self._link_file(directory / name, linked)
                return
            except FileNotFoundError as gone:
                for path in linked:
                    path.unlink()
                if attempt == _ATTEMPTS - 1:
                    raise _not_there(self.checkpoint, self.version, str(gone.filename)) from gone

    def _link_file(self, name: Path, linked: set[Path]) -> None:
        target = self.target / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target in linked:
            return
        _link_or_copy(self.checkpoint / name, target)
        linked.add(target)
        if name.suffix == ".zip":
            # Read from the link: Spark may replace a snapshot by an equal one that names other files.
            for shared in _immutable_files(target):
                self._link_file(name.parent / shared, linked)


def _chain(found: Iterable[re.Match[str]], version: int) -> list[str] | None:
    """The newest snapshot up to ``version`` and all changes after it; None if some of that is missing.

    Where file names carry a unique id (Spark's second checkpoint format) several files of one version may exist, and
    only the commit log tells which one counts: all of them are taken.
    """
    upto = [match for match in found if int(match[1]) <= version]
    if any(match[2] for match in upto):
        return [match[0] for match in upto]
    changes = {int(match[1]): match[0] for match in upto if match[3] in _CHANGES}
    snapshots = {int(match[1]): match[0] for match in upto if match[3] in _SNAPSHOTS}
    start = max(snapshots, default=0)
    needed = range(start + 1, version + 1)
    if any(v not in changes for v in needed):
        return None
    return [snapshots[v] for v in (start,) if v] + [changes[v] for v in needed]


def _immutable_files(snapshot: Path) -> list[str]:
    """The files of RocksDB that a snapshot's zip file names, relative to its directory."""
    with zipfile.ZipFile(snapshot) as archive:
        _, _, listing = archive.read("metadata").decode().partition("\n")
    content = json.loads(listing)
    tables = [f"SSTs/{entry['dfsSstFileName']}" for entry in content.get("sstFiles") or ()]
    logs = [f"logs/{entry['dfsLogFileName']}" for entry in content.get("logFiles") or ()]
    return tables + logs


def _file_source_limits(offsets: Path) -> dict[str, int]:
    """The last log entry of each file source that belongs to a micro-batch, by the name of the source's directory."""
    limits: dict[str, int] = {}
    for index, line in enumerate(offsets.read_text().splitlines()[2:]):
        offset = json.loads(line) if line.startswith("{") else None
        if isinstance(offset, dict) and isinstance(offset.get("logOffset"), int):
            limits[str(index)] = offset["logOffset"]
    return limits


def _source_files(names: list[str], limit: int | None) -> list[str]:
    """A file source would take entries after its limit for seen, and hand them out as one micro-batch."""
    numbers = {name: name.removesuffix(".compact") for name in names}
    return [n for n in names if limit is None or not numbers[n].isdecimal() or int(numbers[n]) <= limit]


def _restartable(checkpoint: Path) -> int:
    """The highest version that is committed and whose offsets a restart can read."""
    commits, offsets = checkpoint / "commits", checkpoint / "offsets"
    for version in range(committed_batches(checkpoint), 0, -1):
        first = max(0, version - _OFFSETS_NEEDED)
        readable = all(_complete_offsets(offsets / str(n), None) for n in range(first, version))
        if readable and _complete_commit(commits / str(version - 1)):
            return version
    if committed_batches(checkpoint):
        raise UnbrokenError(
            f"{checkpoint}: micro-batches are committed here, but no offsets that a restart needs are readable. "
            "Remove the directory of this replica, so that it is copied from another replica or a snapshot."
        )
    return 0


def _source_count(checkpoint: Path, version: int) -> int | None:
    """How many sources the last committed offset entry has; None if there is no entry."""
    if version == 0:
        return None
    return len((checkpoint / "offsets" / str(version - 1)).read_text().splitlines()) - 2


def _complete_commit(path: Path) -> bool:
    """A version line and one JSON document."""
    lines = _lines(path)
    return len(lines) == 2 and lines[0].startswith("v") and _is_json(lines[1])


def _complete_offsets(path: Path, sources: int | None) -> bool:
    """A version line, one JSON document, and one offset (JSON or a dash) for each source."""
    lines = _lines(path)
    if len(lines) < 3 or not lines[0].startswith("v") or sources not in (None, len(lines) - 2):
        return False
    return _is_json(lines[1]) and all(line == "-" or _is_json(line) for line in lines[2:])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (FileNotFoundError, UnicodeDecodeError):
        return []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _entries(log: Path) -> list[int]:
    """The numbers of a log's entries."""
    return [int(name) for name in _visible_files(log) if name.isdecimal()]


def _visible_files(directory: Path) -> list[str]:
    """Files with final names: neither temporary nor checksums. None if the directory does not exist."""
    return [e.name for e in _scan(directory) if not _is_hidden(e.name) and e.is_file(follow_symlinks=False)]


def _directories(directory: Path) -> list[str]:
    return [e.name for e in _scan(directory) if not _is_hidden(e.name) and e.is_dir(follow_symlinks=False)]


def _scan(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.endswith((".crc", ".tmp"))


def _is_temporary(name: str) -> bool:
    return name.endswith((".tmp", ".tmp.crc"))


def _files(directory: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(directory):
        yield from (Path(parent, name) for name in names)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)


def _not_there(checkpoint: Path, version: int, missing: str | None = None) -> UnbrokenError:
    newest = committed_batches(checkpoint)
    what = f"{missing} is gone" if missing else f"the newest committed version is {newest}"
    return UnbrokenError(
        f"{checkpoint}: version {version} cannot be pinned, {what}. Pin the newest version, "
        "or keep more of them with spark.sql.streaming.minBatchesToRetain."
    )
