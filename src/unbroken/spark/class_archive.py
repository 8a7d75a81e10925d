"""An archive of Spark's classes that every session on a machine maps into memory instead of loading each class.

A session loads some 20,000 classes from 300 jars, and verifies each. With an archive of them (class data sharing of the
JVM) the start of a session costs half of the CPU time: 5.4 s instead of 11.5 s on a busy machine with two cores. The
archive holds for one Java and one Spark; the JVM compares both, and the jars, before it uses one, and starts without
it if they differ.

The archive is written when a JVM ends, which takes seconds and 150 MB of disk. So no node does it in passing:
`create` runs a session of its own for it, once per machine or container image (``unbroken prepare``).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken.spark.java import cache_root, find_java

CREATION_DEADLINE_S = 300.0
"""Creation takes 15 s on an idle machine with two cores."""

JVM_END_DEADLINE_S = 240.0
"""Most of the creation is the end of the JVM, which writes the archive."""

QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Whatever the JVM has to report about an archive is no concern of a person: it starts without one."""


class ArchiveError(UnbrokenError):
    """An archive of classes could not be created."""


def archive_file() -> Path:
    """Where the archive for this Java and this Spark is, or would be."""
    java = find_java()
    spark = find_spec("pyspark")
    jars = Path(spark.origin).parent if spark is not None and spark.origin else Path()
    identity = f"{java.executable.resolve()} {java.version} {version('pyspark')} {jars}"
    return cache_root() / "classes" / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def archive_options() -> str:
    """Options with which a JVM uses the archive; empty if there is none."""
    try:
        file = archive_file()
        usable = file.is_file() and not any(letter.isspace() for letter in str(file))
    except (OSError, RuntimeError):
        # No home directory, or one that cannot be read: sessions start as they would without an archive.
        return ""
    return f"-XX:SharedArchiveFile={file} -Xshare:auto {QUIET}" if usable else ""


def create(deadline_s: float = CREATION_DEADLINE_S) -> Path:
    """Create the archive, or replace it, and return its file. Raises ArchiveError.

    Sessions that start meanwhile use the archive before this one, or none: the file is moved into place whole.
    """
    file = archive_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".making-") as directory:
            made, log = Path(directory) / "classes.jsa", Path(directory) / "log"
            code = _run([sys.executable, "-m", __name__, str(made)], log, deadline_s)
            if code != 0 or not made.is_file():
                last = (log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
                raise ArchiveError(f"no archive of Spark's classes was created: {last}. Sessions start without one.")
            os.replace(made, file)
    except subprocess.TimeoutExpired as error:
        raise ArchiveError(
            f"no archive of Spark's classes was created within {deadline_s:g} s. Repeat it on a less busy machine."
        ) from error
    except (OSError, RuntimeError) as error:
        raise ArchiveError(
            f"no archive of Spark's classes can be written: {error}. Set XDG_CACHE_HOME to a directory with 200 MB."
        ) from error
    return file


def _run(command: list[str], log: Path, deadline_s: float) -> int:
    """The exit code of ``command``, which ends with everything that it has started when the deadline has passed."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            return process.wait(deadline_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _record(target: Path) -> None:
    """Run what nodes run, in a session of this process whose JVM writes the archive when it ends."""
    from unbroken.flow.settings import Settings
    from unbroken.spark.session import SMALL_JVM, start_session

    options = f"{SMALL_JVM} -XX:ArchiveClassesAtExit={target} {QUIET}"
    session = start_session("unbroken-prepare", Settings(spark={"spark.driver.extraJavaOptions": options}), "local[1]")
    with tempfile.TemporaryDirectory(prefix="unbroken-prepare-") as directory:
        rows = session.readStream.format("rate-micro-batch").options(rowsPerBatch=10).load()
        counts = rows.dropDuplicates(["value"]).groupBy("value").count()
        query = (
            counts.writeStream.outputMode("update")
            .foreachBatch(lambda frame, _: frame.toArrow())
            .option("checkpointLocation", directory)
            .start()
        )
        try:
            while query.lastProgress is None and query.isActive:
                query.awaitTermination(1)
        finally:
            query.stop()
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    # The JVM ends with its standard input.
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=JVM_END_DEADLINE_S)


if __name__ == "__main__":
    _record(Path(sys.argv[1]))
