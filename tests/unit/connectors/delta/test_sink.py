"""The Delta sink: declarations, schemas, and writers that are killed, frozen or many."""

from __future__ import annotations

import datetime as dt
import math
import os
import signal
import sys
import time
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kit.delivering import IDENTITY, STREAM, Deliverer, Orders, deliver_all, expected, header, unit
from kit.support import wait_until
from unbroken import Delta
from unbroken.connectors.delta.sink import EXPIRY, DeltaWriter
from unbroken.errors import UnbrokenError
from unbroken.flow.network.signatures import given, model_of

deltalake = pytest.importorskip("deltalake")

N = pa.table({"n": [1, 2], "s": ["a", None]})


def sink(path: Path, **parameters: Any) -> Delta:
    made = Delta(path, **parameters)
    made.identity = IDENTITY
    assert made.problems() == []
    return made


def writer(path: Path, **parameters: Any) -> DeltaWriter:
    return sink(path, **parameters).open(Path())


def read(path: Path) -> pa.Table:
    return pa.RecordBatchReader.from_stream(deltalake.DeltaTable(path).scan()).read_all()


def units(path: Path) -> list[tuple[str, int, int]]:
    if not deltalake.DeltaTable.is_deltatable(str(path)):
        return []
    table = read(path)
    columns = [table[name].to_pylist() for name in ("stream", "unit", "row")]
    return sorted(zip(*columns, strict=True))


class TestDeclaration:
    @pytest.mark.parametrize(
        ("parameters", "words"),
        [
            ({"path": ""}, "Delta has no path"),
            ({"path": __file__}, f"{__file__} is not a directory"),
            ({"checkpoint_every": 0}, "checkpoint_every is 0"),
            ({"storage_options": {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}}, "AWS_S3_ALLOW_UNSAFE_RENAME=true lets"),
        ],
    )
    def test_a_wrong_one_is_told_with_a_remedy(self, parameters: dict[str, Any], words: str) -> None:
        (problem,) = Delta(**{"path": "out/", **parameters}).problems()
        assert problem.what.startswith(words) and problem.remedy

    def test_an_unsafe_environment_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
        assert len(Delta("s3://bucket/table").problems()) == 1

    def test_the_package_may_be_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "deltalake", None)
        (problem,) = Delta("out/").problems()
        assert "pip install 'unbroken[delta]'" in problem.remedy

    def test_a_network_takes_the_same_parameters(self) -> None:
        written = {"path": "s3://b/t", "storage_options": {"AWS_REGION": "x"}, "partition_by": ["d"]}
        made = Delta(**given(model_of(Delta).model_validate(written)))
        assert made.partition_by == ("d",) and made.options["AWS_REGION"] == "x" and "timeout" in made.options

    def test_secrets_are_not_shown(self) -> None:
        made = Delta("s3://b/t", {"AWS_SECRET_ACCESS_KEY": "hush-hush", "AWS_REGION": "nowhere"})
        told = str(made.failure(RuntimeError("wrong: hush-hush at nowhere\n   0: <unknown>")))
        assert "hush" not in f"{made!r}{told}" and told.endswith("wrong: *** at nowhere")

    def test_a_store_that_is_away_is_told_in_time(self) -> None:
        options = {
            "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "x",
            "AWS_ACCESS_KEY_ID": "me",
            "AWS_SECRET_ACCESS_KEY": "hush-hush",
        }
        began = time.monotonic()
        with pytest.raises(UnbrokenError, match=r"s3://bucket/table: .*Connection refused"):
            Delta("s3://bucket/table", options).occupied()
        assert time.monotonic() - began < 10


class TestDelivery:
    def test_a_unit_is_one_commit_that_is_made_once(self, tmp_path: Path) -> None:
        path = tmp_path / "made" / "table"
        assert sink(path).occupied() is None
        mine = writer(path)
        assert mine.deliver(header(1), N) and mine.deliver(header(4), N)
        assert not mine.deliver(header(4), N) and not mine.deliver(header(2), N)
        assert writer(path).deliver(header(1, "totals.1>out.0"), N)
        assert not writer(path).deliver(header(4, "totals@2.0>out.0"), N)
        assert writer(path).deliver(header(5, "totals@2.0>out.0"), N)
        table = deltalake.DeltaTable(path)
        assert table.version() == 4 and read(path).num_rows == 8
        unit = {"stream": STREAM, "run": "", "number": 5, "cut_ms": header(5).cut_ms}
        assert table.history(1)[0]["unbroken"] == unit
        told = sink(path).occupied()
        assert told is not None and IDENTITY in told
        other = sink(path)
        other.identity = "orders/elsewhere"
        assert other.occupied() is None

    def test_units_without_rows_leave_no_trace(self, tmp_path: Path) -> None:
        assert writer(tmp_path / "t").deliver(header(1), N.slice(0, 0))
        assert not (tmp_path / "t").exists()

    def test_types_come_back_as_they_were(self, tmp_path: Path) -> None:
        instant = dt.datetime(2024, 7, 1, 12, 0, 0, 1, tzinfo=dt.UTC)
        columns = {
            "flag": pa.array([True, None]),
            "small": pa.array([-128, None], pa.int8()),
            "n": pa.array([2**63 - 1, None]),
            "f": pa.array([math.inf, None]),
            "f32": pa.array([1.5, None], pa.float32()),
            "d": pa.array([Decimal("1234567890.0000000001"), None], pa.decimal128(38, 10)),
            "s": pa.array(["ü\0€", None]),
            "b": pa.array([bytes(range(256)), None]),
            "day": pa.array([dt.date(2024, 2, 29), None]),
            "at": pa.array([instant, None], pa.timestamp("us", "UTC")),
            "local": pa.array([instant.replace(tzinfo=None), None], pa.timestamp("us")),
            "list": pa.array([[1, None], None], pa.list_(pa.int32())),
            "map": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
            "struct": pa.array(
                [{"a": "x", "b": [1]}, None], pa.struct([("a", pa.string()), ("b", pa.list_(pa.int64()))])
            ),
        }
        table = pa.table(columns)
        assert writer(tmp_path).deliver(header(1), table)
        assert read(tmp_path).select(table.column_names).to_pylist() == table.to_pylist()
        nan = pa.table({"x": [math.nan]})
        assert writer(tmp_path / "nan").deliver(header(1), nan)
        assert math.isnan(read(tmp_path / "nan")["x"][0].as_py())

    @pytest.mark.parametrize("kind", [pa.time64("us"), pa.duration("us"), pa.null()])
    def test_a_type_that_delta_does_not_have_is_told_with_its_column(self, tmp_path: Path, kind: pa.DataType) -> None:
        with pytest.raises(UnbrokenError, match=r"Column 'odd' is of type .*for which Delta has none; cast it"):
            writer(tmp_path).deliver(header(1), pa.table({"n": [1], "odd": pa.array([None], kind)}))
        assert not deltalake.DeltaTable.is_deltatable(str(tmp_path))

    @pytest.mark.parametrize(
        ("table", "words"),
        [
            (pa.table({"n": [1.5], "s": ["a"]}), "its column 'n' is of type long, in the results it is double"),
            (pa.table({"n": pa.array([1], pa.int32()), "s": ["a"]}), "its column 'n' is of type long"),
            (pa.table({"n": [1], "s": ["a"], "more": [[1]]}), r"it has no column 'more' \(array<long>\)"),
            (pa.table({"n": [1]}), r"the results have no column 's' \(string\)"),
        ],
    )
    def test_results_that_do_not_fit_are_refused_by_name(self, tmp_path: Path, table: pa.Table, words: str) -> None:
        mine = writer(tmp_path)
        assert mine.deliver(header(1), N)
        with pytest.raises(UnbrokenError, match=words):
            mine.deliver(header(2), table)
        assert mine.deliver(header(2), N) and read(tmp_path).num_rows == 4

    def test_partitions(self, tmp_path: Path) -> None:
        mine = writer(tmp_path / "t", partition_by="s")
        assert mine.deliver(header(1), N)
        assert deltalake.DeltaTable(tmp_path / "t").metadata().partition_columns == ["s"]
        assert any((tmp_path / "t").glob("s=a/*.parquet"))
        with pytest.raises(UnbrokenError, match="there is no column 'z' to partition by; the results have n, s"):
            writer(tmp_path / "u", partition_by=["z"]).deliver(header(1), N)
        assert not deltalake.DeltaTable.is_deltatable(str(tmp_path / "u"))

    def test_checkpoints_are_made_and_a_long_run_is_compacted_meanwhile(self, tmp_path: Path) -> None:
        mine, table = writer(tmp_path, checkpoint_every=10), deltalake.DeltaTable
        for number in range(1, 36):
            assert mine.deliver(header(number), N)
            if number == 25:
                table(tmp_path).optimize.compact()
        assert len(list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))) == 3
        assert not writer(tmp_path).deliver(header(35), N)
        assert read(tmp_path).num_rows == 70 and len(table(tmp_path).file_uris()) == 11

    def test_a_table_that_forgets_is_refused(self, tmp_path: Path) -> None:
        deltalake.DeltaTable.create(tmp_path, schema=N.schema, configuration={EXPIRY: "interval 1 days"})
        with pytest.raises(UnbrokenError, match="forgets after a while"):
            writer(tmp_path).deliver(header(1), N)

    def test_who_looked_before_another_committed_cannot_commit_the_same(self, tmp_path: Path) -> None:
        """Also if many commits of others came in between, and a checkpoint."""
        late, other, shard = writer(tmp_path), writer(tmp_path, checkpoint_every=5), "totals.1>out.0"
        assert other.deliver(header(1), unit(1))
        known = late._look(unit(2).schema)
        assert not late._is_delivered(known, header(2))
        for number in range(1, 8):
            assert other.deliver(header(number, shard), unit(number, stream=shard))
        assert other.deliver(header(2), unit(2))
        for number in range(8, 15):
            assert other.deliver(header(number, shard), unit(number, stream=shard))
        assert late._commit(known, header(2), unit(2)) is not None
        assert not late.deliver(header(2), unit(2))
        assert units(tmp_path) == expected(2) + expected(14, stream=shard)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to see what is synced")
def test_what_is_delivered_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever committed it, and all that it needs to be read."""
    path, synced, original = tmp_path / "table", set[Path](), os.fsync

    def fsync(handle: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{handle}")))
        original(handle)

    dead = writer(path, partition_by="s", checkpoint_every=3)
    monkeypatch.setattr(dead, "_sync", lambda _table: None)
    for number in (1, 2):
        assert dead.deliver(header(number), N)
    monkeypatch.setattr(os, "fsync", fsync)
    mine = writer(path, checkpoint_every=3)
    assert not mine.deliver(header(2), N)
    assert synced == {tmp_path, path, *path.rglob("*")}
    there = set(path.rglob("*.*"))
    synced.clear()
    assert mine.deliver(header(3), N)
    assert set(path.rglob("*.*")) - there < synced and not synced & {file for file in there if file.suffix == ".json"}


STEPS = [
    (1, "before _look"),
    (1, "after _look"),
    (1, "after _commit"),
    (2, "before _look"),
    (2, "before _is_delivered"),
    (2, "before _commit"),
    (2, "after _commit"),
]


@pytest.mark.servers
class TestProcesses:
    @pytest.mark.parametrize(("number", "step"), STEPS)
    def test_a_writer_that_is_killed_leaves_a_whole_unit_or_nothing(
        self, tmp_path: Path, number: int, step: str
    ) -> None:
        with Deliverer(Orders("delta", {"path": str(tmp_path)}, step=step, at_unit=number)) as killed:
            killed.killed()
        assert units(tmp_path) == expected(number if step == "after _commit" else number - 1)
        deliver_all(writer(tmp_path), 3)
        assert units(tmp_path) == expected(3)

    def test_killed_anywhere_in_a_commit(self, tmp_path: Path) -> None:
        """Processes are killed one after another, each when the table's directory has changed in another way."""
        rows = 2000

        def files() -> int:
            return sum(1 for _ in tmp_path.rglob("*"))

        last = 40
        for turn in range(8):
            with Deliverer(Orders("delta", {"path": str(tmp_path)}, last=last, rows=rows)) as victim:
                enough = files() + turn % 4 + 1
                wait_until(lambda enough=enough: files() >= enough, 20, "files are written", 0.0)  # type: ignore[misc]
                victim.process.kill()
            found = units(tmp_path)
            assert found == expected(len(found) // rows, rows)
        deliver_all(writer(tmp_path), last, rows)
        assert units(tmp_path) == expected(last, rows)

    @pytest.mark.parametrize("step", ["before _is_delivered", "before _commit", "after _commit"])
    def test_a_frozen_writer_holds_nobody_up_and_does_no_harm_when_it_wakes(self, tmp_path: Path, step: str) -> None:
        with Deliverer(Orders("delta", {"path": str(tmp_path)}, step=step, signal=signal.SIGSTOP)) as frozen:
            frozen.wait_frozen()
            began = time.monotonic()
            deliver_all(writer(tmp_path), 3)
            assert time.monotonic() - began < 5
            frozen.wake()
            written = frozen.finished()
        assert written == [[STREAM, 1, True], [STREAM, 2, step == "after _commit"], [STREAM, 3, False]]
        assert units(tmp_path) == expected(3)

    def test_many_writers_of_the_same_units_at_the_same_time(self, tmp_path: Path) -> None:
        streams = [STREAM, "totals.1>out.0"]
        orders = Orders("delta", {"path": str(tmp_path), "checkpoint_every": 10}, streams=streams, last=30)
        with ExitStack() as stack:
            writers = [stack.enter_context(Deliverer(orders)) for _ in range(5)]
            reports = [report for one in writers for report in one.finished()]
        assert units(tmp_path) == [row for stream in streams for row in expected(30, stream=stream)]
        written = sorted((stream, number) for stream, number, done in reports if done)
        assert written == [(stream, number) for stream in streams for number in range(1, 31)]
