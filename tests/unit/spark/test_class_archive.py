"""The archive of Spark's classes: used if it exists, left out if it is none, and named after Java and Spark."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from unbroken.spark import class_archive
from unbroken.spark.class_archive import ArchiveError, archive_file, archive_options, create
from unbroken.spark.java import find_java
from unbroken.spark.session import JVM_OPTIONS, archive_settings


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def written(content: bytes) -> Path:
    file = archive_file()
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    return file


def test_without_an_archive_the_options_are_as_they_were() -> None:
    assert archive_options() == ""
    assert archive_settings({JVM_OPTIONS: "-Xss4m"}) == {JVM_OPTIONS: "-Xss4m"}


def test_an_archive_that_exists_is_named_to_the_jvm() -> None:
    file = written(b"")
    assert f"-XX:SharedArchiveFile={file}" in archive_settings({JVM_OPTIONS: "-Xss4m"})[JVM_OPTIONS].split()


def test_an_archive_of_the_user_is_left_alone() -> None:
    written(b"")
    own = {JVM_OPTIONS: "-XX:SharedArchiveFile=mine.jsa"}
    assert archive_settings(own) == own


def test_a_path_that_would_have_to_be_quoted_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a directory"))
    written(b"")
    assert archive_options() == ""


@pytest.mark.parametrize("content", [b"", b"no archive", b"\0" * 100_000], ids=["empty", "text", "zeros"])
def test_a_jvm_starts_without_a_damaged_archive_and_reports_nothing(content: bytes) -> None:
    written(content)
    command = [str(find_java().executable), *archive_options().split(), "-version"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0
    assert "archive" not in ended.stdout + ended.stderr


def test_another_java_has_another_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    here, java = archive_file(), find_java()
    monkeypatch.setattr(class_archive, "find_java", lambda: dataclasses.replace(java, version=java.version + 1))
    assert archive_file() != here


def test_a_creation_that_takes_too_long_ends_and_leaves_nothing(cache: Path) -> None:
    with pytest.raises(ArchiveError, match=r"within 0\.1 s"):
        create(deadline_s=0.1)
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_a_directory_that_cannot_be_written_is_reported(cache: Path) -> None:
    (cache / "unbroken").write_text("a file where a directory should be")
    with pytest.raises(ArchiveError, match="XDG_CACHE_HOME"):
        create()
