"""Files that are put into the directory of a source lead nowhere else, and keep no thread waiting."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unbroken.connectors.files import source as files
from unbroken.connectors.files.source import Files
from unbroken.data.rows.regular_files import by_content, open_regular
from unbroken.errors import UnbrokenError, Unfit

DEADLINE_S = 20.0


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("THE-TOKEN\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"a": 1}\n')
    return tmp_path / "in"


def test_a_link_is_not_read(source: Path, tmp_path: Path) -> None:
    (source / "x.json").symlink_to(tmp_path / "secret")
    reader = Files(source, format="json", schema="a long", settle_ms=0).open()
    reader.poll(None, 1_000)
    rows = reader.read(None, reader.poll(None, 60_000).position)
    assert rows.table.to_pylist() == [{"a": 1}] and "THE-TOKEN" not in str(rows.bad)


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
@pytest.mark.parametrize("what", ["link", "pipe"])
def test_a_file_that_is_replaced_after_it_was_listed(source: Path, tmp_path: Path, kind: str, what: str) -> None:
    path = source / f"b.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"a": [2]}), path)
    else:
        path.write_text('{"a": 2}\n')
    (source / "a.json").unlink()
    reader = Files(source, format=kind, schema="a long", settle_ms=0).open()
    reader.poll(None, 1_000)
    end = reader.poll(None, 120_000).position
    assert [name for name, _ in end["files"]] == [path.name]
    path.unlink()
    if what == "link":
        path.symlink_to(tmp_path / "secret")
    else:
        os.mkfifo(path)
    found: list[Exception] = []

    def read() -> None:
        try:
            reader.read(None, end)
        except UnbrokenError as error:
            found.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    (error,) = found
    assert "not a regular file" in str(error) and "THE-TOKEN" not in str(error)


@pytest.mark.parametrize(
    "kind",
    [
        *(errno.EIO, errno.EMFILE, errno.ENETUNREACH, errno.ECONNRESET, errno.ENODEV),
        *(errno.EACCES, errno.EPERM, errno.EBADMSG),
    ],
)
def test_trouble_of_the_disk_is_no_bad_file(source: Path, monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    """One node may have it and another not: they would not agree on what the file holds."""
    reader = Files(source, format="json", schema="a long", settle_ms=0).open()
    reader.poll(None, 1_000)
    end = reader.poll(None, 60_000).position

    def broken(path: Path) -> None:
        raise OSError(kind, os.strerror(kind))

    monkeypatch.setattr(files, "open_regular", broken)
    with pytest.raises(OSError, match=os.strerror(kind)):
        reader.read(None, end)
    monkeypatch.undo()
    assert reader.read(None, end).table.to_pylist() == [{"a": 1}]


@pytest.mark.parametrize(
    ("error", "of_bytes"),
    [
        *((OSError("Couldn't deserialize thrift"), True), (OSError(errno.EINVAL, "seek"), True), (Unfit("no"), True)),
        *((pa.ArrowInvalid("no footer"), True), (ValueError("x"), True), (OSError(errno.EIO, "read"), False)),
        *((OSError(errno.EBADMSG, "read"), False), (OSError(errno.EREMOTEIO, "read"), False)),
        *((MemoryError(), False), (pa.ArrowMemoryError(), False), (UnbrokenError("away"), False)),
    ],
)
def test_only_a_function_of_the_bytes_makes_a_bad_file(error: Exception, of_bytes: bool) -> None:
    assert by_content(error) == of_bytes


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match="not a regular file"):
            open_regular(path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="not a regular file"):
        open_regular(tmp_path / "pipe")
    assert len(os.listdir("/proc/self/fd")) == before
