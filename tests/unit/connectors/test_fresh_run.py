"""A run that begins from nothing on the sinks of an earlier one, whatever its clock says: no unit is dropped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from unbroken.connectors.base import SinkConnector, SinkWriter
from unbroken.connectors.delta.sink import Delta, run_number
from unbroken.connectors.files.run_file import NAME
from unbroken.connectors.files.sinks import JsonLines, Parquet
from unbroken.connectors.sink_ledger import SinkMark, is_delivered
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.run import RunIdentity
from unbroken.protocol.values.units import Digest, UnitHeader

T0 = 1_700_000_000_000
OLD, NEW = RunIdentity("0ld"), RunIdentity("11ew", frozenset({"0ld", str(run_number("0ld"))}))
UNASKED = RunIdentity(NEW.id)
Kind = Callable[[Path], SinkConnector]
KINDS = [JsonLines, Parquet, Delta]


def header(number: int, cut_ms: int, stream: str = "totals.0>out.0") -> UnitHeader:
    return UnitHeader(StreamId.parse(stream), number, number, cut_ms, Digest(1, 1))


def rows(run: RunIdentity, number: int) -> pa.Table:
    return pa.table({"run": [run.id], "n": [number]})


def opened(kind: Kind, path: Path, run: RunIdentity) -> SinkWriter:
    sink = kind(path)
    sink.identity, sink.run = "orders/out", run
    return sink.open(path)


def content(kind: Kind, path: Path) -> list[tuple[str, int]]:
    """The rows in a sink, sorted."""
    if kind is JsonLines:
        found = [json.loads(line) for file in path.glob("*.jsonl") for line in file.read_text().splitlines()]
    else:
        import pyarrow.dataset as ds

        files = [str(file) for file in path.glob("*.parquet")]
        found = ds.dataset(files).to_table().to_pylist()
    return sorted((row["run"], row["n"]) for row in found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ahead_ms", [10**6, -30_000, -(10**9)], ids=["later", "30 s behind", "days behind"])
def test_units_of_a_new_run_never_pass_for_delivered(tmp_path: Path, kind: Kind, ahead_ms: int) -> None:
    old = opened(kind, tmp_path, OLD)
    for number in range(1, 6):
        assert old.deliver(header(number, T0 + number * 100), rows(OLD, number))
    sink = kind(tmp_path)
    sink.identity = "orders/out"
    assert sink.occupied() is not None
    new = opened(kind, tmp_path, UNASKED)
    for number in (1, 5, 6, 7):
        with pytest.raises(UnbrokenError, match="run"):
            new.deliver(header(number, T0 + ahead_ms + number * 100), rows(NEW, number))
    assert content(kind, tmp_path) == [(OLD.id, number) for number in range(1, 6)]
    assert not old.deliver(header(5, T0 + 500), rows(OLD, 5)) and old.deliver(header(6, T0 + 600), rows(OLD, 6))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_may_adds_all_its_units_and_fences_the_earlier_one(tmp_path: Path, kind: Kind) -> None:
    old = opened(kind, tmp_path, OLD)
    for number in range(1, 6):
        old.deliver(header(number, T0 + number * 100), rows(OLD, number))
    sink = kind(tmp_path)
    sink.identity = "orders/out"
    assert sink.runs() <= NEW.supersedes and len(sink.runs()) == 1
    first, second = opened(kind, tmp_path, NEW), opened(kind, tmp_path, NEW)
    for number in range(1, 8):
        assert first.deliver(header(number, T0 - 10**9 + number), rows(NEW, number))
        assert not second.deliver(header(number, T0 - 10**9 + number), rows(NEW, number))
    both = [(OLD.id, number) for number in range(1, 6)] + [(NEW.id, number) for number in range(1, 8)]
    assert content(kind, tmp_path) == sorted(both)
    for number in (5, 6, 99):
        for stream in ("totals.0>out.0", "totals.1>out.0"):
            with pytest.raises(UnbrokenError, match="run"):
                old.deliver(header(number, T0 + 10**9, stream), rows(OLD, number))
    assert content(kind, tmp_path) == sorted(both)
    third = RunIdentity("222", sink.runs() | {NEW.id})
    assert opened(kind, tmp_path, third).deliver(header(1, 0), rows(third, 1))
    assert len(sink.runs()) == 3
    with pytest.raises(UnbrokenError, match="run"):
        first.deliver(header(8, T0), rows(NEW, 8))


@pytest.mark.parametrize("kind", [JsonLines, Parquet])
def test_an_emptied_directory_belongs_to_no_run(tmp_path: Path, kind: Kind) -> None:
    old = opened(kind, tmp_path, OLD)
    old.deliver(header(1, T0), rows(OLD, 1))
    for file in tmp_path.glob("*-to-*"):
        file.unlink()
    assert (tmp_path / NAME).exists() and kind(tmp_path).occupied() is None and kind(tmp_path).runs() == frozenset()
    assert opened(kind, tmp_path, UNASKED).deliver(header(1, T0), rows(NEW, 1))
    assert content(kind, tmp_path) == [(NEW.id, 1)]
    with pytest.raises(UnbrokenError, match="run"):
        old.deliver(header(2, T0), rows(OLD, 2))


def test_opening_a_sink_of_another_run_touches_nothing(tmp_path: Path) -> None:
    owner = opened(Parquet, tmp_path, OLD)
    owner.deliver(header(3, T0), rows(OLD, 3))
    tentative = replace(header(1, T0, "totals~.0>out.0"), stable=False, since=3, pulse=5)
    assert owner.deliver_tentative(tentative, rows(OLD, -5))
    before = sorted(path for path in tmp_path.rglob("*"))
    opened(Parquet, tmp_path, UNASKED)
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [JsonLines, Parquet])
def test_results_without_a_run_file_are_those_of_another_run(tmp_path: Path, kind: Kind) -> None:
    opened(kind, tmp_path, OLD).deliver(header(1, T0), rows(OLD, 1))
    (tmp_path / NAME).unlink()
    with pytest.raises(UnbrokenError, match="run unknown"):
        opened(kind, tmp_path, UNASKED).deliver(header(2, T0), rows(NEW, 2))
    (tmp_path / NAME).write_text("{")
    with pytest.raises(UnbrokenError, match="damaged file"):
        opened(kind, tmp_path, OLD).deliver(header(2, T0), rows(OLD, 2))


def test_a_ledger_compares_the_run_before_the_number() -> None:
    mark = SinkMark(5000, OLD.id)
    for number in (1, 300, 5000, 5001):
        with pytest.raises(UnbrokenError, match="has unit 5000 of run 0ld, and this is run 11ew"):
            is_delivered(header(number, T0), mark, UNASKED, "l", "r")
        assert not is_delivered(header(number, T0), mark, NEW, "l", "r")
        assert is_delivered(header(number, T0), mark, OLD, "l", "r") == (number <= 5000)
        assert not is_delivered(header(number, T0), None, UNASKED, "l", "r")
