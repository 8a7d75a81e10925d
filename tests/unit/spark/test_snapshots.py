"""Snapshots come back whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unbroken.errors import UnbrokenError
from unbroken.spark.snapshots import Snapshot, SnapshotFile, SnapshotStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARD = "sums.0"
FILES = {
    "checkpoint/metadata": b'{"id":"1"}',
    "checkpoint/state/0/0/3.changelog": bytes(range(256)) * 5_000,
    "outbox/sums.0>live.0/000000000003.arrow": b"unit 3",
    "outbox/sums.0>live.0/empty file, 100% #2": b"",
}


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    directory = tmp_path / "replicas" / "sums.0#2"
    for name, content in FILES.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    (directory / "checkpoint/.metadata.crc").write_bytes(b"crc\0")
    return directory


@pytest.fixture(params=["path", "file:", "file://"])
def store(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> SnapshotStore:
    prefix = "" if request.param == "path" else request.param
    return SnapshotStore(f"{prefix}{tmp_path}/snapshots", spark)


@pytest.fixture
def local(spark: SparkSession, tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(str(tmp_path / "snapshots"), spark)


def content(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def latest(store: SnapshotStore) -> Snapshot:
    snapshot = store.latest(SHARD)
    assert snapshot is not None
    return snapshot


def directories(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "snapshots" / SHARD).iterdir(), key=lambda p: int(p.name.partition("-")[0]))


def test_what_is_saved_comes_back(store: SnapshotStore, replica: Path, tmp_path: Path) -> None:
    assert store.latest(SHARD) is None
    assert store.save(SHARD, 3, replica) == sum(map(len, FILES.values()))
    snapshot = latest(store)
    assert (snapshot.shard, snapshot.version) == (SHARD, 3)
    assert snapshot.size == sum(map(len, FILES.values()))
    store.restore(snapshot, tmp_path / "incoming")
    assert content(tmp_path / "incoming") == FILES


def test_half_a_snapshot_is_never_taken_for_one(local: SnapshotStore, replica: Path, tmp_path: Path) -> None:
    local.save(SHARD, 9, replica)
    local.save(SHARD, 10, replica)
    local.save(SHARD, 11, replica)
    _, ten, eleven = directories(tmp_path)
    (eleven / "manifest.json").unlink()
    assert latest(local).version == 10
    manifest = (ten / "manifest.json").read_bytes()
    for torn in (b"", manifest[: len(manifest) // 2]):
        (ten / "manifest.json").write_bytes(torn)
        assert latest(local).version == 9, "with Hadoop's checksum beside it"
    (ten / ".manifest.json.crc").unlink()
    assert latest(local).version == 9, "without"
    assert [s.version for s in local.complete(SHARD)] == [9]


def test_a_damaged_file_is_named(local: SnapshotStore, replica: Path, tmp_path: Path) -> None:
    local.save(SHARD, 3, replica)
    (saved,) = directories(tmp_path)
    victim = saved / "files/checkpoint/state/0/0/3.changelog"
    whole = victim.read_bytes()
    for damaged in (whole[:-1] + b"x", whole[:-1], None):
        victim.unlink() if damaged is None else victim.write_bytes(damaged)
        with pytest.raises(UnbrokenError, match=r"(?i)3\.changelog: .*restore an older snapshot"):
            local.restore(latest(local), tmp_path / "incoming")
        assert not (tmp_path / "incoming").exists()


def test_prune_keeps_the_newest_and_what_is_being_written(local: SnapshotStore, replica: Path, tmp_path: Path) -> None:
    assert local.prune(SHARD) == []
    for version in (1, 2, 3, 9, 10, 11):
        local.save(SHARD, version, replica)
    by_version = {int(p.name.partition("-")[0]): p for p in directories(tmp_path)}
    for version in (2, 11):
        (by_version[version] / "manifest.json").unlink()
    gone = local.prune(SHARD, keep=2)
    assert sorted(gone) == sorted(by_version[v].name for v in (1, 2, 3))
    assert directories(tmp_path) == [by_version[v] for v in (9, 10, 11)]
    assert local.prune(SHARD, keep=2) == []
    assert latest(local).version == 10


def test_two_nodes_save_the_same_version_at_once(spark: SparkSession, replica: Path, tmp_path: Path) -> None:
    stores = [SnapshotStore(str(tmp_path / "snapshots"), spark) for _ in range(2)]
    threads = [threading.Thread(target=store.save, args=(SHARD, 5, replica)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    twice = stores[0].complete(SHARD)
    assert [s.version for s in twice] == [5, 5]
    for i, snapshot in enumerate(twice):
        stores[i].restore(snapshot, tmp_path / f"incoming-{i}")
        assert content(tmp_path / f"incoming-{i}") == FILES
    assert len(stores[0].prune(SHARD)) == 1
    assert stores[1].prune(SHARD) == []
    assert latest(stores[1]).version == 5


def test_what_cannot_be_done_is_said(spark: SparkSession, replica: Path, tmp_path: Path) -> None:
    with pytest.raises(UnbrokenError, match=r"nowhere://x/y: .*file system.*Check the URL"):
        SnapshotStore("nowhere://x/y", spark).save(SHARD, 1, replica)
    (tmp_path / "taken").write_text("a file where the directory should be")
    with pytest.raises(UnbrokenError, match=r"taken/sums\.0/1-.*could not be saved"):
        SnapshotStore(str(tmp_path / "taken"), spark).save(SHARD, 1, replica)
    store = SnapshotStore(str(tmp_path / "snapshots"), spark)
    store.save(SHARD, 1, replica)
    with pytest.raises(UnbrokenError, match="not empty"):
        store.restore(latest(store), replica)
    assert "checkpoint/metadata" in content(replica)
    forged = Snapshot(SHARD, 1, "w", (SnapshotFile("../escaped", 0, ""),))
    with pytest.raises(UnbrokenError, match="outside itself"):
        store.restore(forged, tmp_path / "incoming")
