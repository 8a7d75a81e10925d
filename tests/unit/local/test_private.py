"""Rows and logs are for the owner of a flow alone, whatever made their directory and whatever the umask is."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from kit.support import wait_until
from unbroken.errors import UnbrokenError
from unbroken.local.processes import spawn
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.security.private_files import make_private


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("made", [False, True])
def test_the_directory_of_a_node_is_private_at_every_start(tmp_path: Path, made: bool) -> None:
    dirs = ReplicaDirs(tmp_path / "node")
    if made:
        dirs.root.mkdir(mode=0o755)
    dirs.identity()
    assert mode(dirs.root) == 0o700
    dirs.root.chmod(0o755)
    dirs.keep_private()
    assert mode(dirs.root) == 0o700


def test_a_directory_of_other_files_is_left_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    (home / "letter").touch()
    with pytest.raises(UnbrokenError, match="not the directory of a node"):
        ReplicaDirs(home).identity()
    assert mode(home) == 0o755


def test_a_directory_of_another_user_is_used_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    place = tmp_path / "volume"
    place.mkdir(mode=0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    with caplog.at_level(logging.WARNING):
        make_private(place)
    assert "cannot be closed to other users (Operation not permitted)" in caplog.text and "0700" in caplog.text


def test_logs_of_processes_are_private_in_any_directory(tmp_path: Path) -> None:
    log = tmp_path / "open" / "node.log"
    process = spawn([sys.executable, "-c", "print('a row')"], log_file=log)
    try:
        wait_until(lambda: "a row" in log.read_text(), 20, "its output")
    finally:
        process.stop()
    assert mode(log) == 0o600


def test_the_data_of_a_zookeeper_are_private_in_any_directory(tmp_path: Path) -> None:
    place = tmp_path / "zk"
    place.mkdir(mode=0o755)
    EmbeddedZooKeeper(place, place / "zookeeper.log")._write_config(2181)
    assert mode(place / "data") == 0o700
    assert mode(place) == 0o755, "it may hold other files"


def test_files_of_sinks_follow_the_umask(tmp_path: Path) -> None:
    """They are for whoever the user wants; the node that writes them keeps its own directory private."""
    ReplicaDirs(tmp_path / "node").identity()
    os.umask(0o027)
    from unbroken.connectors.files.publication import publish

    table = pa.table({"n": [1]})
    assert publish(tmp_path, "rows", lambda file: pa.ipc.new_stream(file, table.schema).write(table))
    assert mode(tmp_path / "rows") == 0o640
