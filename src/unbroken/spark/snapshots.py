"""Durable snapshots of replica directories, in a local directory or anywhere that Spark's Hadoop file systems reach.

A snapshot is one directory, ``<url>/<shard>/<version>-<writer>/``, with the replica's files below ``files/`` and
``manifest.json`` beside them, which names each file with its size and digest. The manifest is written last and
renamed into place, so a snapshot without a readable one was never completed and counts for nothing. Nodes that save
the same version at the same time are told apart by the writer, a random name, and cannot disturb each other.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.connectors.location import scheme_of
from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class SnapshotFile:
    """One file of a snapshot; ``path`` is relative, with slashes."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Snapshot:
    """A complete snapshot: every file of its manifest was written before the manifest was."""

    shard: str
    version: int
    writer: str
    files: tuple[SnapshotFile, ...]

    @property
    def name(self) -> str:
        return f"{self.version}-{self.writer}"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def unknown_scheme(url: str, session: SparkSession) -> str | None:
    """Why Spark cannot write to a URL, as far as its scheme tells; None if it can, or if it is a path."""
    scheme = scheme_of(url)
    if scheme is None:
        return None
    jvm: Any = session._jvm
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, session._jsc.hadoopConfiguration())
    except Py4JJavaError as error:
        return (str(error.java_exception.getMessage()).splitlines() or [scheme])[0]
    return None


_SNAPSHOT = Codec(Snapshot, "snapshot", readable=True)


class SnapshotStore:
    """Saves and restores replica directories below one URL.

    Parameters
    ----------
    url
        A local directory (``/data/snapshots`` or ``file:///data/snapshots``) or any URL that Spark can write to, such
        as ``hdfs://...`` or ``s3a://...``. Access to it is set up in Spark's settings (``spark.hadoop.*``).
    session
        Its JVM does the copying. Calls block; a node makes them from a thread of its own.
    """

    def __init__(self, url: str, session: SparkSession) -> None:
        # Without a scheme Hadoop would resolve a path against its default file system, which need not be local.
        self.url = url.rstrip("/") if scheme_of(url) or url.startswith("file:") else f"file:{Path(url).absolute()}"
        self._session = session
        self._saving = threading.Lock()

    def save(self, shard: str, version: int, directory: Path) -> int:
        """Copy a directory that nobody changes meanwhile (a pin) as a snapshot of a shard; return its bytes."""
        writer = uuid.uuid4().hex[:12]
        base = f"{self.url}/{shard}/{version}-{writer}"
        with self._saving, self._explained("the snapshot could not be saved", base):
            system = self._file_system()
            files = tuple(_described(directory))
            for file in files:
                local = self._path(f"file:{(directory / file.path).absolute()}")
                system.copyFromLocalFile(False, True, local, self._path(f"{base}/files/{file.path}"))
            snapshot = Snapshot(shard, version, writer, files)
            self._check_written(system, base, snapshot)
            self._write_manifest(system, base, snapshot)
        return snapshot.size

    def latest(self, shard: str) -> Snapshot | None:
        """The newest complete snapshot of a shard, or None."""
        with self._explained("snapshots could not be listed", f"{self.url}/{shard}"):
            return next(self._complete(self._file_system(), shard), None)

    def complete(self, shard: str) -> list[Snapshot]:
        """All complete snapshots of a shard, newest first: what to try if the newest one turns out damaged."""
        with self._explained("snapshots could not be listed", f"{self.url}/{shard}"):
            return list(self._complete(self._file_system(), shard))

    def restore(self, snapshot: Snapshot, target: Path) -> None:
        """Copy a snapshot into ``target``, which must not exist or be empty, and verify every file.

        Raises
        ------
        UnbrokenError
            If a file is missing or damaged; ``target`` is removed then.
        """
        if target.exists() and any(target.iterdir()):
            raise UnbrokenError(f"{target}: a snapshot cannot be restored here, the directory is not empty; remove it")
        target.mkdir(parents=True, exist_ok=True)
        system = self._file_system()
        try:
            for file in snapshot.files:
                if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
                    raise UnbrokenError(f"{self.url}: the snapshot {snapshot.name} names {file.path!r}, outside itself")
                self._restore_file(system, snapshot, file, target / file.path)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise

    def prune(self, shard: str, keep: int = 2) -> list[str]:
        """Delete all but the newest ``keep`` versions, and what was begun before the newest and never completed.

        Of several complete snapshots of one version the same one stays, whoever prunes. Returns the names deleted.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        with self._explained("old snapshots could not be deleted", f"{self.url}/{shard}"):
            system = self._file_system()
            # Read once: a snapshot that is completed from here on still counts as begun, and stays if it is new.
            found = [
                (name, self._read(system, shard, version, name), version)
                for version, name in self._names(system, shard)
            ]
            by_version: dict[int, Snapshot] = {}
            for snapshot in sorted((s for _, s, _ in found if s is not None), key=lambda s: s.name):
                by_version[snapshot.version] = snapshot
            newest_first = sorted(by_version, reverse=True)
            kept = {by_version[version].name for version in newest_first[:keep]}
            doomed = [
                name
                for name, snapshot, version in found
                if newest_first and name not in kept and (snapshot is not None or version < newest_first[0])
            ]
            for name in doomed:
                self._drop(system, f"{self.url}/{shard}/{name}")
        return doomed

    def _complete(self, system: Any, shard: str) -> Iterator[Snapshot]:
        for version, name in sorted(self._names(system, shard), reverse=True):
            snapshot = self._read(system, shard, version, name)
            if snapshot is not None:
                yield snapshot

    def _names(self, system: Any, shard: str) -> list[tuple[int, str]]:
        """Versions and directory names of all snapshots of a shard, complete or not."""
        try:
            listing = system.listStatus(self._path(f"{self.url}/{shard}"))
        except Py4JJavaError as error:
            if _kind(error) != "FileNotFoundException":
                raise
            return []
        names = [str(status.getPath().getName()) for status in listing]
        return [(int(name.partition("-")[0]), name) for name in names if name.partition("-")[0].isdecimal()]

    def _read(self, system: Any, shard: str, version: int, name: str) -> Snapshot | None:
        """A snapshot by its manifest; None if it has none that can be read to its end."""
        try:
            stream = system.open(self._path(f"{self.url}/{shard}/{name}/{_MANIFEST}"))
            try:
                text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            finally:
                stream.close()
            files = _SNAPSHOT.decode(str(text).encode()).files
        except Py4JJavaError as error:
            # Not there yet, deleted meanwhile, or not written to its end when the machine stopped.
            if _kind(error) not in ("FileNotFoundException", "ChecksumException"):
                raise
            return None
        except Undecodable:
            return None
        return Snapshot(shard, version, name.partition("-")[2], files)

    def _write_manifest(self, system: Any, base: str, snapshot: Snapshot) -> None:
        partial = self._path(f"{base}/{_MANIFEST}.part")
        stream = system.create(partial, True)
        try:
            stream.write(_SNAPSHOT.buffer(snapshot))
        finally:
            stream.close()
        if not system.rename(partial, self._path(f"{base}/{_MANIFEST}")):
            raise UnbrokenError(f"{base}: the manifest could not be renamed; the snapshot does not count")

    def _check_written(self, system: Any, base: str, snapshot: Snapshot) -> None:
        """A slow writer may find its files pruned: it must not complete what is no longer there."""
        for file in snapshot.files:
            status = system.getFileStatus(self._path(f"{base}/files/{file.path}"))
            if status.getLen() != file.size:
                raise UnbrokenError(f"{base}/files/{file.path}: {status.getLen()} bytes were written, not {file.size}")

    def _restore_file(self, system: Any, snapshot: Snapshot, file: SnapshotFile, target: Path) -> None:
        source = f"{self.url}/{snapshot.shard}/{snapshot.name}/files/{file.path}"
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._explained("a file of the snapshot cannot be read; restore an older snapshot", source):
            # The raw local file system, or Hadoop leaves a checksum file beside each file.
            system.copyToLocalFile(False, self._path(source), self._path(f"file:{target.absolute()}"), True)
        if (target.stat().st_size, _sha256(target)) != (file.size, file.sha256):
            raise UnbrokenError(
                f"{source}: the file is damaged, its size or digest is not the one in {_MANIFEST}. "
                "Restore an older snapshot, or copy the shard from another replica."
            )

    def _drop(self, system: Any, base: str) -> None:
        """Delete a snapshot; its manifest first, so that half a deletion leaves nothing that looks complete."""
        system.delete(self._path(f"{base}/{_MANIFEST}"), False)
        system.delete(self._path(base), True)

    def _file_system(self) -> Any:
        conf = self._session._jsparkSession.sessionState().newHadoopConf()
        with self._explained("the file system of this URL cannot be used", self.url):
            return self._path(self.url).getFileSystem(conf)

    def _path(self, url: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(url)

    @property
    def _jvm(self) -> Any:
        return self._session._jvm

    @contextmanager
    def _explained(self, what: str, where: str) -> Iterator[None]:
        """Turn errors of the JVM into a sentence with the place and the innermost cause."""
        try:
            yield
        except Py4JJavaError as error:
            cause = error.java_exception
            while cause.getCause() is not None:
                cause = cause.getCause()
            raise UnbrokenError(
                f"{where}: {what} ({cause.toString()}). Check the URL, the access to it and its free space."
            ) from error


def _kind(error: Py4JJavaError) -> str:
    """The simple class name of the JVM's exception."""
    return str(error.java_exception.getClass().getSimpleName())


def _described(directory: Path) -> Iterator[SnapshotFile]:
    """All files below a directory but Hadoop's checksum files, which belong to the file system and not to the data."""
    for parent, _, names in sorted(os.walk(directory)):
        for name in sorted(names):
            if not (name.startswith(".") and name.endswith(".crc")):
                path = Path(parent, name)
                yield SnapshotFile(path.relative_to(directory).as_posix(), path.stat().st_size, _sha256(path))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
