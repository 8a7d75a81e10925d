"""A pinned version of a checkpoint starts a query that goes on exactly as the pinned one does."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from kit.support import wait_until
from unbroken.errors import UnbrokenError
from unbroken.spark.checkpoints import committed_batches, pin, repair

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = 5
FIRST = 2
ROWS = 40
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

Results = dict[int, list[Any]]


def feed(directory: Path, numbers: range) -> None:
    """One file per micro-batch; event time moves on, so that watermarks drop state on the way."""
    directory.mkdir(parents=True, exist_ok=True)
    for n in numbers:
        rows = [{"k": (3 * i + n) % 8, "v": n * ROWS + i, "t": f"2024-01-01 00:{n:02d}:{i:02d}"} for i in range(ROWS)]
        hidden = directory / f".{n}"
        hidden.write_text("\n".join(json.dumps(row) for row in rows))
        # The file source takes files in the order of their times.
        os.utime(hidden, (1_700_000_000 + n, 1_700_000_000 + n))
        hidden.rename(directory / f"{n:03d}.json")


def read(spark: SparkSession, directory: Path) -> DataFrame:
    reader = spark.readStream.schema("k long, v long, t timestamp").option("maxFilesPerTrigger", 1)
    return reader.json(str(directory)).withWatermark("t", "1 minute")


def summed(spark: SparkSession, data: Path) -> DataFrame:
    grouped = read(spark, data / "left").groupBy("k", F.window("t", "2 minutes").start.alias("w"))
    return grouped.agg(F.sum("v").alias("sum"), F.count("*").alias("n"))


def joined(spark: SparkSession, data: Path) -> DataFrame:
    a, b = read(spark, data / "left").alias("a"), read(spark, data / "right").alias("b")
    near = F.expr("a.k = b.k and a.t >= b.t and a.t <= b.t + interval 90 seconds and a.v % 7 = b.v % 7")
    return a.join(b, near).select("a.k", F.col("a.v").alias("av"), F.col("b.v").alias("bv"))


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[[SparkSession, Path], DataFrame]
    mode: str
    conf: dict[str, str] = field(default_factory=dict)
    before: dict[str, str] | None = None
    """Settings of an earlier run of the same query, which does the first micro-batches."""


CASES = [
    Case("aggregation", summed, "update"),
    Case("join on two partitions", joined, "append", {"spark.sql.shuffle.partitions": "2"}),
    Case("snapshots, then changes", summed, "update", before={CHANGELOG: "false"}),
    Case("HDFS-backed store", summed, "update", {PROVIDER: HDFS}),
]


@contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)


@contextmanager
def running(case: Case, spark: SparkSession, data: Path, checkpoint: Path) -> Iterator[tuple[Any, Results]]:
    results: Results = {}

    def keep(frame: DataFrame, batch: int) -> None:
        results[batch] = sorted(frame.collect())

    writer = case.function(spark, data).writeStream.outputMode(case.mode).foreachBatch(keep)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query, results
    finally:
        query.stop()


def wait_committed(query: Any, checkpoint: Path, version: int) -> None:
    def reached() -> bool:
        assert query.isActive, str(query.exception())
        return committed_batches(checkpoint) >= version

    wait_until(reached, 60, f"version {version} in {checkpoint}", interval_s=0.005)


def files_below(directory: Path) -> dict[str, int]:
    return {str(p.relative_to(directory)): p.stat().st_ino for p in directory.rglob("*") if p.is_file()}


def stamps(directory: Path) -> dict[Path, tuple[int, int, int]]:
    """Which file is where, and when and with what size it was last written, for all with a final name."""
    found = [(p, p.stat()) for p in directory.rglob("[!.]*") if p.is_file()]
    return {path: (stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in found}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_query_on_a_pin_goes_on_like_the_one_that_was_pinned(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    data, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    results: Results = {}
    if case.before is not None:
        feed(data / "left", range(FIRST))
        with settings(spark, case.before), running(case, spark, data, checkpoint) as (query, results):
            wait_committed(query, checkpoint, FIRST)
    for side in ("left", "right"):
        feed(data / side, range(FILES))
    with settings(spark, case.conf), running(case, spark, data, checkpoint) as (query, more):
        for version in range(FIRST, FILES + 1):
            # The micro-batches after this version run, and write their files, while it is pinned.
            wait_committed(query, checkpoint, version)
            size = pin(checkpoint, tmp_path / f"pin-{version}", version)
            assert size == sum(p.stat().st_size for p in (tmp_path / f"pin-{version}").rglob("*") if p.is_file())
        results.update(more)
        early = tmp_path / "early"
        pin(checkpoint, early, FIRST - 1)
        for started, version in ((early, FIRST - 1), (tmp_path / f"pin-{FILES - 1}", FILES - 1)):
            seen = stamps(checkpoint)
            assert committed_batches(started) == version
            with running(case, spark, data, started) as (copy, again):
                wait_committed(copy, started, FILES)
            assert query.isActive, "the query that was pinned goes on"
            assert again == {n: results[n] for n in range(version, FILES)}
            # Maintenance may add a snapshot meanwhile, but what is there stays as it is.
            assert seen.items() <= stamps(checkpoint).items(), "the query on the pin has changed the pinned files"
    assert sum(map(len, results.values())) > FILES


def test_a_pin_has_only_what_a_start_needs(tmp_path: Path) -> None:
    checkpoint, target = tmp_path / "checkpoint", tmp_path / "pin"
    make_checkpoint(checkpoint, versions=9, snapshots=(3, 6))
    bytes_pinned = pin(checkpoint, target, 8)
    store = {"6.zip", "7.changelog", "8.changelog", "SSTs/6.sst", "_metadata/schema"}
    expected = {"metadata", "commits/7", "offsets/6", "offsets/7", "sources/0/0", "sources/0/7.compact"}
    expected |= {f"state/0/0/{name}" for name in store} | {"state/0/_metadata/metadata"}
    expected |= {f"sources/0/{n}" for n in range(7)}
    assert set(files_below(target)) == expected
    assert bytes_pinned == sum((target / name).stat().st_size for name in expected)
    same = {name for name, inode in files_below(target).items() if files_below(checkpoint).get(name) == inode}
    assert same == expected - {"metadata"}, "a pin links, and has an identity of its own"
    assert (target / "metadata").read_text() != (checkpoint / "metadata").read_text()


def test_a_file_system_without_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path / "checkpoint", versions=5, snapshots=(3,))
    linked = pin(tmp_path / "checkpoint", tmp_path / "linked", 5)

    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "cross-device link", str(source), None, str(target))

    monkeypatch.setattr(os, "link", refuse)
    assert pin(tmp_path / "checkpoint", tmp_path / "copied", 5) == linked
    assert set(files_below(tmp_path / "copied")) == set(files_below(tmp_path / "linked"))
    for name in set(files_below(tmp_path / "linked")) - {"metadata"}:
        assert (tmp_path / "copied" / name).read_bytes() == (tmp_path / "linked" / name).read_bytes()


def test_files_that_vanish_meanwhile_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark replaces snapshot 3 by 6 and cleans up while the pin is on its way."""
    checkpoint = tmp_path / "checkpoint"
    store = checkpoint / "state/0/0"
    make_checkpoint(checkpoint, versions=8, snapshots=(3,))
    link = os.link

    def cleaning_up(source: Path, target: Path) -> None:
        if Path(source).name == "3.sst":
            write_snapshot(store, 6)
            for name in ("3.zip", "SSTs/3.sst", *(f"{n}.changelog" for n in range(1, 6))):
                (store / name).unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", cleaning_up)
    pin(checkpoint, tmp_path / "pin", 8)
    pinned = set(files_below(tmp_path / "pin" / "state/0/0"))
    assert pinned == {"6.zip", "SSTs/6.sst", "7.changelog", "8.changelog", "_metadata/schema"}


def test_what_cannot_be_pinned_is_said(tmp_path: Path) -> None:
    checkpoint, target = tmp_path / "checkpoint", tmp_path / "pin"
    make_checkpoint(checkpoint, versions=5, snapshots=())
    with pytest.raises(UnbrokenError, match=r"version 6 .* newest committed version is 5"):
        pin(checkpoint, target, 6)
    (checkpoint / "state/0/0/2.changelog").unlink()
    with pytest.raises(UnbrokenError, match=r"version 5 .* state/0/0 is gone.*minBatchesToRetain"):
        pin(checkpoint, target, 5)
    assert not target.exists(), "half a pin is left"
    target.mkdir()
    (target / "something").touch()
    with pytest.raises(UnbrokenError, match="not empty"):
        pin(checkpoint, target, 5)
    assert pin(tmp_path / "nothing", tmp_path / "fresh", 0) > 0
    assert set(files_below(tmp_path / "fresh")) == {"metadata"}


def test_committed_batches_counts_complete_entries_only(tmp_path: Path) -> None:
    assert committed_batches(tmp_path / "nothing") == 0
    make_checkpoint(tmp_path, versions=5, snapshots=())
    (tmp_path / "commits/.5.a1b2.tmp").write_text("v1\n{}")
    (tmp_path / "commits/.5.crc").touch()
    assert committed_batches(tmp_path) == 5
    for torn in ("", "v1", "v1\n", 'v1\n{"nextBatchWatermarkMs":17'):
        (tmp_path / "commits/5").write_text(torn)
        assert committed_batches(tmp_path) == 5
    (tmp_path / "commits/5").write_text('v1\n{"nextBatchWatermarkMs":17}')
    assert committed_batches(tmp_path) == 6


@pytest.mark.parametrize("torn", [f"commits/{FILES - 1}", f"offsets/{FILES}"])
def test_a_torn_entry_fails_every_start_until_it_is_repaired(torn: str, spark: SparkSession, tmp_path: Path) -> None:
    case, data, checkpoint = CASES[0], tmp_path / "data", tmp_path / "checkpoint"
    feed(data / "left", range(FILES))
    with running(case, spark, data, checkpoint) as (query, results):
        wait_committed(query, checkpoint, FILES)
    (checkpoint / torn).write_text("")
    (checkpoint / torn).with_name(f".{Path(torn).name}.crc").unlink(missing_ok=True)
    leftover = checkpoint / "state/0/0/.9.changelog.0f0f.tmp"
    leftover.touch()
    with running(case, spark, data, checkpoint) as (query, _):
        wait_until(lambda: not query.isActive, 30, "the failure of the query")
        assert "Incomplete log file" in str(query.exception())
    assert {torn, str(leftover.relative_to(checkpoint))} <= set(repair(checkpoint))
    feed(data / "left", range(FILES, FILES + 1))
    with running(case, spark, data, checkpoint) as (query, again):
        wait_committed(query, checkpoint, FILES + 1)
    assert not leftover.exists()
    if torn.startswith("commits"):
        assert again[FILES - 1] == results[FILES - 1], "the micro-batch whose commit was torn is run again"
    else:
        assert list(again) == [FILES]
    assert repair(checkpoint) == []


def test_repair_drops_state_and_log_entries_that_were_never_committed(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, versions=6, snapshots=(3, 6))
    (tmp_path / "commits/5").write_text("")
    state = {"6.changelog", "6.zip", ".7.changelog.77aa.tmp"}
    assert set(repair(tmp_path)) == {"commits/5"} | {f"state/0/0/{name}" for name in state}
    assert (tmp_path / "offsets/5").exists(), "Spark runs the planned micro-batch again"
    (tmp_path / "offsets/5").write_text('v1\n{"batchWatermarkMs":0}')
    assert repair(tmp_path) == ["offsets/5"]
    (tmp_path / "offsets/4").write_text("")
    assert set(repair(tmp_path)) == {"commits/4", "offsets/4", "state/0/0/5.changelog"}
    assert committed_batches(tmp_path) == 4
    for path in (tmp_path / "offsets").iterdir():
        path.unlink()
    with pytest.raises(UnbrokenError, match="Remove the directory of this replica"):
        repair(tmp_path)


def make_checkpoint(checkpoint: Path, versions: int, snapshots: tuple[int, ...]) -> None:
    """The files that Spark writes for one file source and one state store, with Hadoop's checksums."""
    store = checkpoint / "state/0/0"
    for directory in ("commits", "offsets", "sources/0", "state/0/_metadata", "state/0/0/_metadata", "state/0/0/SSTs"):
        (checkpoint / directory).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"0ff3a3ff-8209-4837-b295-095ba18e8efa"}')
    (checkpoint / "state/0/_metadata/metadata").write_text("v1\n{}")
    (store / "_metadata/schema").write_text("schema")
    for n in range(versions):
        (checkpoint / f"offsets/{n}").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{n}}}')
        (checkpoint / f"commits/{n}").write_text('v1\n{"nextBatchWatermarkMs":0}')
        (checkpoint / f"sources/0/{n}{'.compact' if n % 10 in (7, 9) else ''}").write_text(f"v1\n{n}")
        (store / f"{n + 1}.changelog").write_text(f"changes {n + 1}")
        (store / f".{n + 1}.changelog.crc").write_text("crc")
    for version in snapshots:
        write_snapshot(store, version)
    (store / f".{versions + 1}.changelog.77aa.tmp").write_text("half")


def write_snapshot(store: Path, version: int) -> None:
    listing = {"sstFiles": [{"localFileName": "1.sst", "dfsSstFileName": f"{version}.sst", "sizeBytes": 3}]}
    (store / f"SSTs/{version}.sst").write_text("sst")
    with zipfile.ZipFile(store / f"{version}.zip", "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps(listing))
