"""Bad rows are kept once, however many ingress nodes keep them."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from pathlib import Path

import pytest

from unbroken.connectors import dead_letters as deadletter
from unbroken.connectors.dead_letters import DeadLetters, Retention, remove_old_runs
from unbroken.data.rows.parsed import BadRow
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.sinks import DeadLettersUnwritten, DeadLettersWritten

BAD = [BadRow("{x\n\udcff", "not JSON", "a.json:3"), BadRow("7", "no object", "a.json:9")]


def test_bad_rows_are_kept_once_per_pulse(tmp_path: Path) -> None:
    mine, other = DeadLetters(tmp_path / "dead"), DeadLetters(tmp_path / "dead")
    assert mine.write("clicks", 5, BAD)
    assert not other.write("clicks", 5, BAD)
    assert other.write("clicks", 6, BAD[:1])
    assert not mine.write("clicks", 7, [])
    assert sorted(os.listdir(tmp_path / "dead")) == ["clicks-0000000005.jsonl", "clicks-0000000006.jsonl"]
    lines = (tmp_path / "dead" / "clicks-0000000005.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {
        "source": "clicks",
        "pulse": 5,
        "origin": "a.json:9",
        "reason": "no object",
        "raw": "7",
    }


def test_bad_rows_are_counted_by_source(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path)
    assert letters.count("a") == 0
    letters.write("a", 1, BAD)
    letters.write("a-b", 1, BAD[:1])
    assert (letters.count("a"), letters.count("a-b")) == (2, 1)
    letters.write("a", 2, BAD)
    assert letters.count("a") == 4
    assert DeadLetters(tmp_path).count("a") == 4


# --- what they must not do ----------------------------------------------------------------------------------


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    os.umask(os.umask(0o022))
    letters = DeadLetters(tmp_path / "dead-letters" / "shop-1")
    letters.write("a", 1, BAD)
    (path,) = letters.directory.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(letters.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(letters.directory.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("where", ["file", "directory", "outer"])
def test_links_are_not_followed(tmp_path: Path, where: str) -> None:
    """Who may write next to the dead letters must not make a node write elsewhere."""
    told: list[Notice] = []
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "shop-1").mkdir(parents=True)
    outer = tmp_path / "dead-letters"
    if where == "outer":
        outer.symlink_to(elsewhere)
    else:
        outer.mkdir()
    if where == "directory":
        (outer / "shop-1").symlink_to(elsewhere)
    if where == "file":
        (outer / "shop-1").mkdir()
        (outer / "shop-1" / "a-0000000001.jsonl").symlink_to(elsewhere / "target")
    assert not DeadLetters(outer / "shop-1", tell=told.append).write("a", 1, BAD)
    assert [path for path in elsewhere.rglob("*") if path.is_file()] == []
    assert len(told) == (where != "file")


@pytest.mark.parametrize("kind", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_disk_that_takes_nothing_is_reported_once_and_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    told: list[Notice] = []
    letters = DeadLetters(tmp_path / "dead", tell=told.append)

    def full(*_: object) -> None:
        raise OSError(kind, os.strerror(kind))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for pulse in range(3):
            assert not letters.write("a", pulse, BAD)
    assert letters.lost == 6 and len(told) == 1
    assert isinstance(told[0], DeadLettersUnwritten) and os.strerror(kind) in told[0].detail
    assert [*letters.directory.iterdir()] == []
    assert letters.write("a", 3, BAD)
    assert told[1:] == [DeadLettersWritten(str(letters.directory), 6)]


def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told: list[Notice] = []
    assert not DeadLetters(tmp_path / "file" / "x" / "y", tell=told.append).write("a", 1, BAD)
    assert [notice.kind for notice in told] == [DeadLettersUnwritten.kind]


# --- what they are bounded by -------------------------------------------------------------------------------


def test_the_oldest_are_removed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadletter, "TIDY_S", 0.0)
    letters = DeadLetters(tmp_path / "dead", Retention(most_bytes=10_000))
    large = [BadRow("x" * 900, "not JSON", "a")]
    for pulse in range(1, 31):
        letters.write("a", pulse, large)
        os.utime(letters.directory / f"a-{pulse:010d}.jsonl", (1_000_000_000 + pulse,) * 2)
    # What is older than the age is gone, too: with times of the past, all but the newest.
    assert letters.removed >= 20
    letters = DeadLetters(tmp_path / "dead2", Retention(most_bytes=10_000))
    now = time.time()
    for pulse in range(1, 31):
        letters.write("a", pulse, large)
        os.utime(letters.directory / f"a-{pulse:010d}.jsonl", (now - 100 + pulse,) * 2)
    letters.tidy()
    kept = sorted(path.name for path in letters.directory.iterdir())
    assert kept == [f"a-{pulse:010d}.jsonl" for pulse in range(31 - len(kept), 31)]
    assert 5 <= len(kept) <= 10 and letters.removed == 30 - len(kept)


def test_age_and_number_of_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadletter, "TIDY_S", 0.0)
    monkeypatch.setattr(deadletter, "MOST_FILES", 4)
    letters = DeadLetters(tmp_path / "dead", Retention(most_age_s=60))
    for pulse in range(1, 4):
        letters.write("a", pulse, BAD)
    for path in letters.directory.iterdir():
        os.utime(path, (time.time() - 120,) * 2)
    letters.write("a", 4, BAD)
    assert [path.name for path in letters.directory.iterdir()] == ["a-0000000004.jsonl"]
    for pulse in range(5, 12):
        letters.write("a", pulse, BAD)
    assert len([*letters.directory.iterdir()]) == 4


def test_a_file_is_bounded_and_tells_how_many_rows_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadletter, "FILE_BYTES", 1_000)
    letters = DeadLetters(tmp_path / "dead")
    letters.write("a", 1, [BadRow("x" * 100, "no", str(n)) for n in range(50)])
    (path,) = letters.directory.iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.stat().st_size < 1_200 and rows[-1]["more"] == 50 - len(rows[:-1])


def test_flows_and_runs_do_not_share_a_place(tmp_path: Path) -> None:
    old, new = "shop-" + "a" * 32, "shop-" + "b" * 32
    other = "shop-x-" + "a" * 32
    for place in (old, other):
        assert DeadLetters(tmp_path / place).write("a", 1, BAD)
    assert DeadLetters(tmp_path / new).write("a", 1, BAD), "the first pulse of another run is another pulse"
    for place in (old, other):
        os.utime(tmp_path / place, (1_000_000_000,) * 2)
    assert remove_old_runs(tmp_path, "shop", "b" * 32, 60.0) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([new, other])


def test_a_clock_that_is_set_ahead_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadletter, "TIDY_S", 0.0)
    old, new = (tmp_path / f"shop-{letter * 32}" for letter in "ab")
    for place in (old, new):
        assert DeadLetters(place).write("a", 1, BAD)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 31 * 86_400)
    letters = DeadLetters(new)
    assert letters.write("a", 2, BAD) and letters.removed == 0
    assert remove_old_runs(tmp_path, "shop", "b" * 32, 30 * 86_400.0) == 0
    assert len([*old.iterdir()]) == 1 and len([*new.iterdir()]) == 2
