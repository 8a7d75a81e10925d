"""Units appear in file sinks once, whole, whoever delivers them and whenever a writer dies."""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import threading
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unbroken.connectors.files.publication import publish, remove_leftovers, rename_claimed, reveal, write_temporary
from unbroken.connectors.files.run_file import NAME
from unbroken.connectors.files.sinks import Client, Console, JsonLines, Parquet, StableFile, unit_file, unit_in
from unbroken.connectors.files.tentative_files import STABLE
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import Digest, UnitHeader


def header(number: int, cut_ms: int = 1_000) -> UnitHeader:
    return UnitHeader(StreamId.parse("counts.1>out.0"), number, number, cut_ms, Digest(1, 1))


TABLE = pa.table({"n": [1, 2, 3]})


def names(path: Path) -> list[str]:
    """What is in a directory, except for its run and the marks of how far stable units have come."""
    return sorted(set(os.listdir(path)) - {STABLE, NAME})


@pytest.mark.parametrize("kind", [Parquet, JsonLines])
def test_a_unit_is_one_file_delivered_once(tmp_path: Path, kind: type[Parquet] | type[JsonLines]) -> None:
    sink = kind(tmp_path / "deep" / "out")
    assert sink.problems() == [] and not sink.client
    first, second = sink.open(tmp_path), sink.open(tmp_path)
    assert first.deliver(header(7), TABLE)
    assert not second.deliver(header(7), TABLE)
    assert first.deliver(header(8), TABLE.slice(0, 0)) and second.deliver(header(8), TABLE.slice(0, 0))
    assert second.deliver(header(9), TABLE)
    assert names(sink.path) == [f"counts.1-to-out.0-{n:010d}.{kind.suffix}" for n in (7, 9)]


def test_parquet_files_hold_rows_and_say_which_unit_they_are(tmp_path: Path) -> None:
    sink = Parquet(tmp_path)
    sink.open(tmp_path).deliver(header(7, cut_ms=55), TABLE)
    table = pq.read_table(tmp_path / unit_file(header(7), "parquet"))
    assert table.to_pylist() == TABLE.to_pylist()
    assert unit_in(table.schema) == StableFile(StreamId.parse("counts.1>out.0"), "", 7, 7, 55)


def test_the_files_of_another_run_are_not_taken_for_delivered_units(tmp_path: Path) -> None:
    sink = Parquet(tmp_path).open(tmp_path)
    sink.deliver(header(7), TABLE)
    with pytest.raises(UnbrokenError, match="empty directory"):
        sink.deliver(header(7, cut_ms=99_999), TABLE)
    (tmp_path / unit_file(header(8), "parquet")).write_bytes(b"something else")
    with pytest.raises(UnbrokenError, match="empty directory"):
        sink.deliver(header(8), TABLE)


def test_json_lines_write_every_type(tmp_path: Path) -> None:
    when = dt.datetime(2024, 1, 2, 3, 4, 5, 678_900, dt.UTC)
    table = pa.table(
        {
            "t": pa.array([when, None], pa.timestamp("us", "UTC")),
            "u": pa.array([when.replace(tzinfo=None), None], pa.timestamp("us")),
            "d": [dt.date(2024, 1, 2), None],
            "z": [b"\xff\x00", None],
            "m": [Decimal("1.50"), None],
            "x": [float("nan"), float("inf")],
            "y": pa.array([0.5, None], pa.float32()),
            "s": ["ä\n", None],
            "b": [True, None],
            "a": [[1, None], None],
            "o": [{"x": float("nan"), "t": when, "z": b"a", "m": Decimal("2.0")}, None],
            "p": pa.array([[(1, "x")], None], pa.map_(pa.int32(), pa.string())),
        }
    )
    JsonLines(tmp_path).open(tmp_path).deliver(header(1), table)
    text = (tmp_path / unit_file(header(1), "jsonl")).read_text()
    first, second = (json.loads(line) for line in text.splitlines())
    assert first == {
        "t": "2024-01-02T03:04:05.678900Z",
        "u": "2024-01-02T03:04:05.678900",
        "d": "2024-01-02",
        "z": "/wA=",
        "m": "1.50",
        "x": None,
        "y": 0.5,
        "s": "ä\n",
        "b": True,
        "a": [1, None],
        "o": {"x": None, "t": "2024-01-02T03:04:05.678900Z", "z": "YQ==", "m": "2.0"},
        "p": {"1": "x"},
    }
    assert set(second.values()) == {None}


def test_long_tables_are_written_in_order(tmp_path: Path) -> None:
    JsonLines(tmp_path).open(tmp_path).deliver(header(1), pa.table({"n": range(25_000)}))
    lines = (tmp_path / unit_file(header(1), "jsonl")).read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == list(range(25_000))


@pytest.mark.parametrize("links", [True, False])
def test_of_many_writers_at_once_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    writers, units = 6, 15
    wins: list[tuple[int, int]] = []
    gate = threading.Barrier(writers, timeout=30)

    def deliver(writer: int) -> None:
        sink = Parquet(tmp_path).open(tmp_path)
        for number in range(units):
            gate.wait()
            if sink.deliver(header(number), TABLE):
                wins.append((number, writer))

    threads = [threading.Thread(target=deliver, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert sorted(number for number, _ in wins) == list(range(units))
    assert len(names(tmp_path)) == units
    assert all(pq.read_table(tmp_path / name).num_rows == 3 for name in names(tmp_path))


def no_links(*_: object) -> None:
    raise OSError(errno.EPERM, "links are not supported")


def test_a_writer_that_dies_between_the_steps_leaves_nothing_that_is_taken_for_a_unit(tmp_path: Path) -> None:
    write_temporary(tmp_path, "unit", lambda file: void(file.write(b"whole")))
    assert names(tmp_path)[0].startswith(".unit.")
    assert publish(tmp_path, "unit", lambda file: void(file.write(b"second")))
    assert (tmp_path / "unit").read_bytes() == b"second"
    # Died after the file had its name: the unit counts, the temporary name is a leftover.
    died = write_temporary(tmp_path, "next", lambda file: void(file.write(b"whole")))
    assert reveal(died, tmp_path / "next")
    assert not publish(tmp_path, "next", lambda file: void(file.write(b"second")))
    assert (tmp_path / "next").read_bytes() == b"whole"


def test_leftovers_are_removed_when_they_stay_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their age by the clock of the machine says nothing: that may have been set since."""
    monkeypatch.setattr("unbroken.connectors.files.publication.LEFTOVER_S", 0.0)
    old = write_temporary(tmp_path, "old", lambda file: None)
    growing = write_temporary(tmp_path, "growing", lambda file: None)
    mine = tmp_path / ".of-somebody-else.tmp"
    mine.touch()
    for path in (old, growing, mine):
        os.utime(path, (1, 1))
    Parquet(tmp_path).open(tmp_path)
    assert old.exists() and growing.exists()
    growing.write_bytes(b"more")
    assert publish(tmp_path, "unit", lambda file: None)
    assert not old.exists() and growing.exists() and mine.exists()
    assert remove_leftovers(tmp_path / "nowhere") == 0


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(file: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with pytest.raises(UnbrokenError, match=r"no space left.*Check space"):
        publish(tmp_path, "unit", fail)
    assert names(tmp_path) == []


def test_a_temporary_file_that_was_removed_is_written_again(tmp_path: Path) -> None:
    attempts: list[int] = []

    def write(file: object) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            for name in names(tmp_path):
                (tmp_path / name).unlink()

    assert publish(tmp_path, "unit", write) and len(attempts) == 2


def test_a_link_whose_answer_was_lost_counts(tmp_path: Path) -> None:
    temporary = write_temporary(tmp_path, "unit", lambda file: None)
    os.link(temporary, tmp_path / "unit")
    assert reveal(temporary, tmp_path / "unit")


def test_the_claim_of_a_dead_writer_does_not_last(tmp_path: Path) -> None:
    claim = tmp_path / ".unit.claim"
    claim.touch()
    os.utime(claim, (1, 1))
    temporary = write_temporary(tmp_path, "unit", lambda file: None)
    began = time.monotonic()
    assert rename_claimed(temporary, tmp_path / "unit", claim_s=0.2)
    assert time.monotonic() - began > 0.2, "how old it is by the clock of the machine says nothing"
    assert names(tmp_path) == ["unit"]


def test_a_directory_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sink = JsonLines(tmp_path / "file")
    assert "not a directory" in sink.problems()[0].what
    with pytest.raises(UnbrokenError, match="cannot be made"):
        JsonLines(tmp_path / "file" / "x").open(tmp_path)


def test_clients_are_not_written_by_nodes(tmp_path: Path) -> None:
    assert Client().client and Console().client and Client().problems() == []
    with pytest.raises(NotImplementedError, match="read by clients"):
        Client().open(tmp_path)
    assert Console(limit=0).problems()
    shown = Console(limit=2).render(header(4), TABLE).splitlines()
    assert shown == ["counts.1>out.0 unit 4, 3 rows", '  {"n":1}', '  {"n":2}', "  and 1 more"]
    assert Console().render(header(4), TABLE, correction=True).startswith("counts.1>out.0 unit 4 (correction), 3 rows")
    tentative = replace(header(4), stable=False, since=2, pulse=4)
    assert Console().render(tentative, TABLE).startswith("counts.1>out.0 tentative, pulses 3 to 4, 3 rows")


def void(_: object) -> None:
    """Forget how many bytes were written."""
