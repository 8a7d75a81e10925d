"""What was read once is not read again, and what has changed is."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from unbroken.transport.state.digests import Digests


def nothing() -> None:
    pass


def never() -> None:
    raise AssertionError("the file was read")


def test_a_file_is_read_once_under_all_its_names(tmp_path: Path) -> None:
    digests, path = Digests(), tmp_path / "a"
    path.write_bytes(b"state")
    with path.open("rb", buffering=0) as file:
        assert digests.of(file, nothing) == (hashlib.sha256(b"state").hexdigest(), 5)
    os.link(path, tmp_path / "b")
    with (tmp_path / "b").open("rb", buffering=0) as file:
        assert digests.of(file, never)[1] == 5


def test_another_content_is_another_file(tmp_path: Path) -> None:
    digests, path = Digests(), tmp_path / "a"
    for content in (b"one", b"two", b"three"):
        path.write_bytes(content)
        os.utime(path, ns=(0, len(content) * 1000 + content[0]))
        with path.open("rb", buffering=0) as file:
            assert digests.of(file, nothing)[0] == hashlib.sha256(content).hexdigest()


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    digests = Digests(most=2)
    for name in "abc":
        (tmp_path / name).write_text(name)
        with (tmp_path / name).open("rb", buffering=0) as file:
            digests.of(file, nothing)
    with (tmp_path / "c").open("rb", buffering=0) as file:
        digests.of(file, never)
    with (tmp_path / "a").open("rb", buffering=0) as file, pytest.raises(AssertionError, match="read"):
        digests.of(file, never)
