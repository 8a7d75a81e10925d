"""Installs Apache Flink where `unbroken bench peers` finds it again: in an environment of its own below the cache.

The package ``apache-flink-libraries`` holds Flink's whole Java distribution; its Python side is not needed. The job is
a few lines of Java (``java/``), compiled with the compiler that Spark brings (Janino), because a Java that only runs
programs has none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unbroken.errors import UnbrokenError
from unbroken.spark.java import find_java
from unbroken_lab.experiments.observation.observed import Say

FLINK_VERSION = "2.3.0"
PACKAGE = "apache-flink-libraries"
SIZE = "330 MB"
INSTALL_S = 900.0
"""A download of this size takes a minute on a usual line; on a slow one it can be tried again and goes on."""

COMPILE_S = 60.0
END_S = 10.0
JAVA_LEVEL = 8
"""The newest Java that the compiler writes; calls of static methods of interfaces need it."""

SOURCES = Path(__file__).with_name("java")


@dataclass(frozen=True)
class Flink:
    """An installed Flink: the directory that holds ``lib``."""

    home: Path

    @property
    def jars(self) -> list[Path]:
        return sorted((self.home / "lib").glob("*.jar"))

    @property
    def classpath(self) -> str:
        return os.pathsep.join(str(jar) for jar in self.jars)


def peers_directory() -> Path:
    """Where peers are installed: ``UNBROKEN_PEERS``, else ``unbroken/peers`` in the user's cache."""
    if named := os.environ.get("UNBROKEN_PEERS"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "unbroken" / "peers"


def find_flink(version: str = FLINK_VERSION) -> Flink | None:
    """The Flink that was installed before, if all of it is there."""
    for home in sorted(_place(version).glob("lib*/python*/site-packages/pyflink")):
        if (home / "lib" / f"flink-dist-{version}.jar").is_file():
            return Flink(home)
    return None


def install_flink(say: Say, version: str = FLINK_VERSION) -> Flink:
    """Flink, installed if it is not there yet."""
    found = find_flink(version)
    if found is not None:
        return found
    place = _place(version)
    say(f"Flink {version} is not there yet: installing {PACKAGE} ({SIZE}) into {place}, once")
    began = time.monotonic()
    # Made under another name and moved when it is whole: an installation that was ended is not taken for one.
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as directory:
        made = Path(directory) / "environment"
        python = made / "bin" / "python"
        _run([sys.executable, "-m", "venv", str(made)], INSTALL_S, "an environment for Flink could not be made")
        options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        command = [str(python), "-m", "pip", "install", *options, f"{PACKAGE}=={version}"]
        _run(command, INSTALL_S, f"{PACKAGE} {version} could not be installed")
        shutil.rmtree(place, ignore_errors=True)
        made.rename(place)
    installed = find_flink(version)
    if installed is None:
        raise UnbrokenError(f"{PACKAGE} {version} was installed into {place}, and holds no flink-dist-{version}.jar")
    say(f"Flink {version} is installed; that took {time.monotonic() - began:.0f} s")
    return installed


def build_job(flink: Flink, directory: Path) -> Path:
    """Compile the job into a jar in ``directory``."""
    classes = directory / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    sources = sorted(SOURCES.glob("*.java"))
    _compile(flink, sources, classes)
    jar = directory / "job.jar"
    with zipfile.ZipFile(jar, "w") as file:
        for path in sorted(classes.rglob("*.class")):
            file.write(path, path.relative_to(classes))
    return jar


def _compile(flink: Flink, sources: Sequence[Path], classes: Path) -> None:
    """Janino has no command, so a small Java that holds it is told what to do from here."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
    from py4j.protocol import Py4JError

    classpath = [*_spark_jars("janino-*.jar", "commons-compiler-*.jar", "slf4j-api-*.jar"), *flink.jars]
    try:
        port, process = launch_gateway(
            classpath=os.pathsep.join(str(jar) for jar in classpath),
            jarpath=str(_spark_jars("py4j-*.jar")[0]),
            java_path=str(find_java().executable),
            die_on_exit=True,
            return_proc=True,
            javaopts=["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"],
        )
    except (Py4JError, OSError, ValueError) as error:
        raise UnbrokenError(f"the compiler of the Flink job could not be started: {error}") from error
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True, read_timeout=COMPILE_S))
    try:
        file = gateway.jvm.java.io.File

        def files(paths: Sequence[Path]) -> object:
            array = gateway.new_array(file, len(paths))
            for place, path in enumerate(paths):
                array[place] = file(str(path))
            return array

        compiler = gateway.jvm.org.codehaus.janino.CompilerFactory().newCompiler()
        compiler.setSourceVersion(JAVA_LEVEL)
        compiler.setTargetVersion(JAVA_LEVEL)
        compiler.setClassPath(files(flink.jars))
        compiler.setDestinationDirectory(file(str(classes)), False)
        compiler.compile(files(sources))
    except (Py4JError, OSError) as error:
        reason = next((line for line in str(error).splitlines() if "Exception" in line), str(error))
        raise UnbrokenError(f"the Flink job could not be compiled: {reason}") from error
    finally:
        gateway.close()
        process.kill()
        process.wait(END_S)


def _spark_jars(*patterns: str) -> list[Path]:
    import pyspark

    directory = Path(pyspark.__file__).parent / "jars"
    found = [jar for pattern in patterns for jar in sorted(directory.glob(pattern))[:1]]
    if len(found) < len(patterns):
        raise UnbrokenError(f"{directory} does not hold all of {', '.join(patterns)}; install pyspark from PyPI again")
    return found


def _place(version: str) -> Path:
    return peers_directory() / f"flink-{version}"


def _run(command: Sequence[str], deadline_s: float, failed: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=deadline_s)
    except subprocess.TimeoutExpired:
        raise UnbrokenError(f"{failed}: not done after {deadline_s:.0f} s; the line may be slow, try again") from None
    except OSError as error:
        raise UnbrokenError(f"{failed}: {error}") from error
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise UnbrokenError(f"{failed}; pip needs a way to PyPI. It said:\n{said}")
