"""Files that appear are taken once, in order, whole; what is wrong with them is reported, never raised."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unbroken.connectors.base import Position
from unbroken.connectors.failures import is_passing
from unbroken.connectors.files import source as files
from unbroken.connectors.files.source import UNFINISHED_MS, Files, FilesReader
from unbroken.data.rows.parsed import Rows
from unbroken.data.rows.regular_files import open_regular
from unbroken.errors import UnbrokenError


class Feed:
    """A directory and a reader that is polled like by a node, on a clock of its own."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.source = Files(path, **{"format": "json", "schema": "n long", **options})
        self.now_ms = 1_000
        self.reader = self.restart()
        self.position: Position | None = None

    def write(self, name: str, *numbers: int) -> Path:
        path = self.path / name
        path.write_text("".join(f'{{"n":{n}}}\n' for n in numbers))
        return path

    def pulse(self, wait_ms: int = 200) -> Rows:
        self.now_ms += wait_ms
        end = self.reader.poll(self.position, self.now_ms).position
        rows = self.reader.read(self.position, end)
        self.position = json.loads(json.dumps(end))  # Positions travel as JSON.
        return rows

    def settled(self) -> list[int]:
        """The numbers of one pulse after everything has had the time to settle."""
        self.pulse_nothing_else()
        return self.numbers(self.pulse())

    def pulse_nothing_else(self) -> None:
        assert self.pulse().table.num_rows == 0

    def restart(self) -> FilesReader:
        self.reader = FilesReader(self.source, lambda: self.now_ms / 1000)
        return self.reader

    def offer(self, wait_ms: int = 200) -> Position:
        """Where the next pulse would end."""
        self.now_ms += wait_ms
        return self.reader.poll(self.position, self.now_ms).position

    @staticmethod
    def numbers(rows: Rows) -> list[int]:
        assert rows.bad == ()
        return rows.table.column("n").to_pylist()  # type: ignore[no-any-return]


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path)


def order(*paths: Path) -> None:
    """Make the files' times of status change differ, in this order: coarse clocks may give equal ones."""
    last = 0
    for path in paths:
        while True:
            os.chmod(path, 0o644)
            if path.stat().st_ctime_ns > last:
                break
        last = path.stat().st_ctime_ns


def test_files_are_taken_once_in_the_order_they_appeared(feed: Feed) -> None:
    feed.pulse_nothing_else()
    order(feed.write("b", 1, 2), feed.write("a", 3))
    assert feed.settled() == [1, 2, 3]
    feed.pulse_nothing_else()
    order(feed.path / "b", feed.write("c", 4))
    assert feed.settled() == [4]
    assert feed.position is not None and feed.position["count"] == 3


def test_a_file_is_taken_only_after_it_stayed_the_same_long_enough(feed: Feed) -> None:
    feed.write("a", 1)
    feed.pulse_nothing_else()
    assert feed.pulse(199).table.num_rows == 0
    feed.write("a", 1, 2)
    assert feed.pulse(1).table.num_rows == 0
    assert feed.pulse(199).table.num_rows == 0
    assert feed.numbers(feed.pulse(1)) == [1, 2]


def test_hidden_temporary_and_other_names_are_ignored(feed: Feed) -> None:
    for name in (".a", "_b", "c.tmp"):
        feed.write(name, 1)
    (feed.path / "d").mkdir()
    assert feed.settled() == []
    os.rename(feed.path / "c.tmp", feed.path / "c")
    assert feed.settled() == [1]


def test_a_file_moved_in_with_an_old_modification_time_is_not_lost(feed: Feed, tmp_path: Path) -> None:
    feed.write("a", 1)
    assert feed.settled() == [1]
    old = feed.write(".old", 2)
    os.utime(old, (1, 1))
    os.rename(old, feed.path / "old")
    feed.restart()  # Even a reader that knows nothing but the watermark finds it.
    assert feed.settled() == [2]


def test_changed_permissions_or_links_do_not_make_a_file_appear_again(feed: Feed) -> None:
    path = feed.write("a", 1)
    assert feed.settled() == [1]
    feed.pulse_nothing_else()
    order(path, path)
    os.link(path, feed.path / ".backup")
    assert feed.settled() == []


def test_a_file_that_is_replaced_is_another_file(feed: Feed) -> None:
    feed.write("a", 1)
    assert feed.settled() == [1]
    os.rename(feed.write(".a", 7, 8), feed.path / "a")
    assert feed.settled() == [7, 8]


def test_another_reader_goes_on_from_the_position(feed: Feed) -> None:
    order(feed.write("a", 1), feed.write("b", 2))
    assert feed.settled() == [1, 2]
    feed.restart()
    assert feed.settled() == []
    order(feed.path / "b", feed.write("0", 3))
    assert feed.settled() == [3]


def test_an_offer_that_was_not_agreed_is_made_again(feed: Feed) -> None:
    feed.write("a", 1)
    feed.pulse_nothing_else()
    start = feed.position
    first = feed.offer()
    assert feed.offer(300) == first
    assert feed.numbers(feed.reader.read(start, first)) == [1]
    assert feed.numbers(feed.source.open().read(start, first)) == [1]


def test_pulses_are_bounded_and_nothing_is_left_behind(tmp_path: Path) -> None:
    feed = Feed(tmp_path, max_files_per_pulse=3)
    for n in range(10):
        feed.write(f"f{n}", n)
    feed.pulse_nothing_else()
    pulses = [feed.numbers(feed.pulse()) for _ in range(5)]
    assert [len(pulse) for pulse in pulses] == [3, 3, 3, 1, 0]
    assert sorted(n for pulse in pulses for n in pulse) == list(range(10))
    small = Feed(tmp_path, max_bytes_per_pulse=16)
    small.pulse_nothing_else()
    assert [len(small.numbers(small.pulse())) for _ in range(6)] == [2, 2, 2, 2, 2, 0]


def test_positions_stay_small(tmp_path: Path) -> None:
    feed = Feed(tmp_path, max_files_per_pulse=5)
    for n in range(100):
        feed.write(f"f{n:03}", n)
    feed.pulse_nothing_else()
    for _ in range(20):
        feed.pulse()
        assert len(json.dumps(feed.position)) < 200


def test_what_was_agreed_is_read_even_if_the_file_grew(feed: Feed) -> None:
    path = feed.write("a", 1)
    feed.pulse_nothing_else()
    end = feed.offer()
    with open(path, "a") as file:
        file.write('{"n":2}\n')
    assert feed.numbers(feed.reader.read(feed.position, end)) == [1]


def settled_cut(feed: Feed) -> Position:
    feed.pulse_nothing_else()
    return feed.offer()


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
@pytest.mark.parametrize("what", ["is not visible", "is short", "is a link", "is a pipe"])
def test_a_file_that_a_node_sees_late_has_the_same_rows_there(tmp_path: Path, format: str, what: str) -> None:
    """Two readers of one agreed cut: as long as one of them sees less than was agreed, it gives no rows at all."""
    feed = Feed(tmp_path / "in", format=format)
    feed.path.mkdir()
    path, other = feed.path / "a", feed.path / "b"
    for each, numbers in ((path, [1, 2]), (other, [3])):
        if format == "parquet":
            pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), each)
        elif format == "csv":
            each.write_text("n\n" + "".join(f"{n}\n" for n in numbers))
        else:
            feed.write(each.name, *numbers)
    order(path, other)
    end = settled_cut(feed)
    first = feed.reader.read(None, end)
    assert feed.numbers(first) == [1, 2, 3]
    late, whole = feed.source.open(), path.read_bytes()
    path.unlink()
    if what == "is short":
        path.write_bytes(whole[:-2])
    elif what == "is a link":
        path.symlink_to(other)
    elif what == "is a pipe":
        os.mkfifo(path)
    for _ in range(5):
        with pytest.raises(UnbrokenError, match=r"(?s)a (does not exist|has|is not).*Restore.*unbroken skip") as found:
            late.read(None, end)
        assert is_passing(found.value)
    if what != "is not visible":
        path.unlink()
    path.write_bytes(whole)
    again = late.read(None, end)
    assert again.table.equals(first.table) and again.bad == first.bad == ()


def test_missing_files_are_named_in_one_line(feed: Feed) -> None:
    for n in range(9):
        feed.write(f"f{n}", n)
    end = settled_cut(feed)
    for n in range(2, 9):
        (feed.path / f"f{n}").unlink()
    with pytest.raises(UnbrokenError, match="f2 does not exist, f3 does not exist, f4 does not exist and 4 more"):
        feed.reader.read(None, end)


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_a_file_that_is_cut_short_while_it_is_decoded_is_no_bad_file(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(tmp_path, format=format)
    path = tmp_path / "a"
    pq.write_table(pa.table({"n": [1]}), path) if format == "parquet" else feed.write("a", 1)
    end = settled_cut(feed)

    def cut_short(*_: object, **__: object) -> Rows:
        os.truncate(path, 3)
        raise ValueError("what is this")

    monkeypatch.setattr(files, {"json": "parse_json_lines", "parquet": "read_parquet"}[format], cut_short)
    with pytest.raises(UnbrokenError, match="a has 3 bytes"):
        feed.reader.read(None, end)


def test_a_file_without_permission_waits_and_is_then_refused_by_the_position(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that cuts decides, and the position has the decision: a node with the permission decides the same."""
    feed.write("a", 1)
    feed.write("b", 2)

    def denied(path: Path) -> Any:
        if path.name == "a":
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_regular(path)

    monkeypatch.setattr(files, "open_regular", denied)
    assert feed.settled() == [2]
    start = feed.position
    assert not feed.reader.poll(start, feed.now_ms).reachable
    end = feed.offer(UNFINISHED_MS)
    monkeypatch.undo()
    for reader in (feed.reader, feed.source.open()):
        rows = reader.read(start, json.loads(json.dumps(end)))
        assert rows.table.num_rows == 0 and [bad.origin for bad in rows.bad] == ["a"]
        assert "cannot be opened on the node that cuts" in rows.bad[0].reason


def test_a_permission_that_a_node_lacks_after_the_cut_is_no_bad_file(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.write("a", 1)
    end = settled_cut(feed)

    def denied(path: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files, "open_regular", denied)
    with pytest.raises(PermissionError) as found:
        feed.reader.read(None, end)
    assert is_passing(found.value)


def test_bad_rows_name_file_and_line(feed: Feed) -> None:
    (feed.path / "a").write_bytes(b'{"n":1}\nnull\n{"n":"2"}\n{"n":3}\n')
    feed.pulse_nothing_else()
    rows = feed.pulse()
    assert rows.table.column("n").to_pylist() == [1, 3]
    assert [bad.origin for bad in rows.bad] == ["a:2", "a:3"]


def test_csv_files(tmp_path: Path) -> None:
    feed = Feed(tmp_path, format="csv")
    (tmp_path / "a.csv").write_text("x,n\n1,2\n3,x\n")
    feed.pulse_nothing_else()
    rows = feed.pulse()
    assert rows.table.column("n").to_pylist() == [2] and [bad.origin for bad in rows.bad] == ["a.csv:3"]


def test_parquet_files_are_taken_when_they_have_their_end(tmp_path: Path) -> None:
    feed = Feed(tmp_path, format="parquet")
    pq.write_table(pa.table({"n": pa.array([1, 2], pa.int32()), "x": ["a", "b"]}), tmp_path / ".p")
    whole = (tmp_path / ".p").read_bytes()
    (tmp_path / "p").write_bytes(whole[:-10])
    assert feed.settled() == []
    (tmp_path / "p").write_bytes(whole)
    assert feed.settled() == [1, 2]


def test_broken_parquet_files_are_one_bad_row_each(tmp_path: Path) -> None:
    feed = Feed(tmp_path, format="parquet")
    (tmp_path / "broken").write_bytes(b"PAR1" + b"x" * 50 + b"PAR1")
    pq.write_table(pa.table({"n": ["text"]}), tmp_path / "wrong")
    (tmp_path / "stuck").write_bytes(b"PAR1" + b"x" * 50)
    pq.write_table(pa.table({"n": [5]}), tmp_path / "fine")
    feed.pulse_nothing_else()
    rows = feed.pulse()
    assert rows.table.column("n").to_pylist() == [5]
    assert sorted(bad.origin for bad in rows.bad) == ["broken", "wrong, row group 1"]
    assert "column 'n' is string" in next(bad.reason for bad in rows.bad if bad.origin.startswith("wrong"))
    assert [bad.origin for bad in feed.pulse(UNFINISHED_MS).bad] == ["stuck"]


def test_a_directory_may_appear_later(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "later")
    feed.pulse_nothing_else()
    feed.path.mkdir()
    feed.write("a", 1)
    assert feed.settled() == [1]


def test_a_directory_that_cannot_be_listed_is_explained(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(UnbrokenError, match="cannot be listed"):
        Feed(tmp_path / "f").pulse()


def test_wrong_declarations_are_explained(tmp_path: Path) -> None:
    assert Files(tmp_path, format="json", schema="n long").problems() == []
    (tmp_path / "f").touch()
    wrong = Files(tmp_path / "f", format="xml", schema="n long", max_line_bytes=0, settle_ms=-1)
    assert len(wrong.problems()) == 4
    assert "nested column 'a'" in Files(tmp_path, format="csv", schema="a array<int>").problems()[0].what


def test_a_clock_that_is_set_does_not_settle_a_file(tmp_path: Path) -> None:
    """An hour passes on the clock by which pulses are cut, and nothing on the one that is never set."""
    with open(tmp_path / "a.json", "wb") as file:
        file.write(b'{"n":1}\n{"n"')
        file.flush()
        feed = Feed(tmp_path)
        hour = 3_600_000
        feed.pulse_nothing_else()
        for now_ms in (feed.now_ms + hour, feed.now_ms - hour, feed.now_ms + hour):
            assert feed.reader.poll(None, now_ms).position["files"] == []
        file.write(b":2}\n")
    os.utime(tmp_path / "a.json", (1, 1))
    assert feed.settled() == [1, 2]
    assert feed.settled() == []


def test_a_reader_that_takes_over_watches_files_anew(feed: Feed) -> None:
    feed.write("a", 1)
    feed.pulse_nothing_else()
    feed.restart()
    assert feed.settled() == [1]
