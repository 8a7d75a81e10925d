"""Units that arrive: written once, verified, adopted by a rename, and shared only where the bytes are good."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.data import staging as staging_module
from unbroken.data.checksum import Damaged
from unbroken.data.staging import IncomingUnit, StagedUnit, Staging
from unbroken.data.unit_store import UnitStore, encode_unit
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

STREAM = StreamId(ShardId("src", 0), ShardId("seg", 0))
REPLICA = ReplicaId(STREAM.consumer, 0)
PRODUCER = ReplicaId(STREAM.producer, 0)


def header(number: int = 1, content: int = 1) -> UnitHeader:
    return UnitHeader(STREAM, number, number, 0, Digest(1, content))


def unit(made: UnitHeader) -> pa.Buffer:
    return encode_unit(made, pa.table({"v": [made.digest.exact] * 100}))


class Disk:
    """A store with its staging, and the files that are to be removed when somebody has time."""

    def __init__(self, root: Path) -> None:
        self.store = UnitStore(root / "replicas")
        self.place = root / "staging"
        self.doomed: list[Path] = []
        self.staging = Staging(self.place, self.store, self.doomed.append)
        self.staging.open()

    def arrive(self, made: UnitHeader, data: pa.Buffer | None = None, cuts: tuple[int, ...] = ()) -> StagedUnit:
        incoming = self.staging.receive(made, "b")
        whole = unit(made) if data is None else data
        for start, end in zip((0, *cuts), (*cuts, whole.size), strict=True):
            incoming.add(whole.slice(start, end - start))
        return incoming.finish()

    def inbox(self, number: int = 1) -> Path:
        return self.store.inbox_path(REPLICA, STREAM, number)

    def remove(self) -> None:
        for path in self.doomed:
            path.unlink()
        self.doomed.clear()

    def staged(self) -> set[str]:
        return {path.name for path in self.place.iterdir()}


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_a_unit_that_is_adopted_is_moved(disk: Disk) -> None:
    staged = disk.arrive(header())
    inode = staged.path.stat().st_ino
    disk.staging.adopt(staged, disk.inbox())
    disk.staging.settle(staged)
    assert disk.inbox().stat().st_ino == inode and not disk.staged() and not disk.doomed
    assert disk.store.read(disk.inbox()).equals(unit(header()))


def test_a_unit_that_is_not_wanted_is_removed(disk: Disk) -> None:
    staged = disk.arrive(header())
    disk.staging.settle(staged)
    assert disk.doomed == [staged.path], "the loop removes nothing itself"
    disk.remove()
    assert not disk.arrive(header()).linked, "nothing is left to be linked to"


@pytest.mark.parametrize("adopted", [True, False])
def test_a_second_copy_is_not_written(disk: Disk, adopted: bool) -> None:
    first = disk.arrive(header())
    if adopted:
        disk.staging.adopt(first, disk.inbox())
    second = disk.arrive(header())
    assert second.linked and second.path.stat().st_ino == first.path.stat().st_ino
    assert second.size == unit(header()).size, "it was sent all the same"
    disk.staging.settle(second)
    disk.remove()
    assert disk.store.read(first.path).equals(unit(header()))


def test_of_copies_that_arrive_at_the_same_time_one_is_written(disk: Disk) -> None:
    whole, half = unit(header()), unit(header()).size // 2
    first, second = disk.staging.receive(header(), "b"), disk.staging.receive(header(), "c")
    for start, end in ((0, half), (half, whole.size)):
        for incoming in (first, second):
            incoming.add(whole.slice(start, end - start))
    assert len(disk.staged()) == 1
    one, other = first.finish(), second.finish()
    assert other.linked and one.path.stat().st_ino == other.path.stat().st_ino


@pytest.mark.parametrize("fate", ["abandoned", "slow", "held"])
def test_a_copy_is_written_when_the_one_before_it_does_not_become_whole(
    disk: Disk, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, half = unit(header()), unit(header()).size // 2
    if fate == "held":
        monkeypatch.setattr(staging_module, "HELD_BYTES", half - 1)
    first, second = disk.staging.receive(header(), "b"), disk.staging.receive(header(), "c")
    first.add(whole.slice(0, half))
    second.add(whole.slice(0, half))
    assert len(disk.staged()) == (2 if fate == "held" else 1)
    if fate == "abandoned":
        first.abandon()
    second.add(whole.slice(half))
    staged = second.finish()
    assert not staged.linked and disk.store.read(staged.path).equals(whole)
    if fate == "slow":
        first.add(whole.slice(half))
        assert disk.store.read(first.finish().path).equals(whole)


def test_a_disk_that_takes_no_file_keeps_no_later_copy_from_being_written(disk: Disk) -> None:
    disk.place.rmdir()
    assert disk.arrive(header()).error is not None
    disk.staging.open()
    staged = disk.arrive(header())
    assert staged.error is None and disk.store.read(staged.path).equals(unit(header()))


def test_a_copy_that_differs_is_written(disk: Disk) -> None:
    disk.staging.adopt(disk.arrive(header()), disk.inbox())
    for other in (header(content=2), replace(header(), generation=2), replace(header(), stable=False)):
        staged = disk.arrive(other)
        assert not staged.linked and disk.store.read(staged.path).equals(unit(other))


def test_a_copy_that_was_linked_outlives_the_first(disk: Disk) -> None:
    disk.staging.adopt(disk.arrive(header()), disk.inbox())
    second = disk.arrive(header())
    disk.staging.drop(disk.inbox())
    disk.remove()
    disk.staging.adopt(second, disk.inbox())
    assert disk.store.read(disk.inbox()).equals(unit(header()))
    assert not disk.staged()


def test_a_copy_that_was_linked_may_take_the_place_of_the_first(disk: Disk) -> None:
    disk.staging.adopt(disk.arrive(header()), disk.inbox())
    disk.staging.adopt(disk.arrive(header()), disk.inbox())
    assert disk.inbox().stat().st_nlink == 1 and not disk.staged()


def test_nothing_is_linked_to_a_damaged_copy(disk: Disk) -> None:
    outbox = disk.store.outbox_path(PRODUCER, STREAM, 1)
    disk.store.write(outbox, unit(header()))
    disk.store.link(outbox, disk.inbox(), header())
    data = bytearray(disk.inbox().read_bytes())
    data[len(data) // 2] ^= 1
    disk.inbox().write_bytes(data)
    staged = disk.arrive(header())
    assert not staged.linked
    disk.staging.adopt(staged, outbox)
    assert disk.store.read(outbox).equals(unit(header()))


def test_a_unit_can_be_adopted_twice(disk: Disk) -> None:
    outbox = disk.store.outbox_path(PRODUCER, STREAM, 1)
    disk.store.write(outbox, b"damaged")
    staged = disk.arrive(header())
    disk.staging.adopt(staged, outbox)
    disk.staging.adopt(staged, disk.inbox())
    disk.staging.settle(staged)
    for path in (outbox, disk.inbox()):
        assert disk.store.read(path).equals(unit(header()))
    assert not disk.staged()


def test_what_a_replica_had_is_forgotten_with_it(disk: Disk) -> None:
    disk.staging.adopt(disk.arrive(header()), disk.inbox())
    disk.store.forget(REPLICA)
    assert disk.store.copies.find(header()) is None


def test_another_unit_under_the_same_name_is_not_taken_for_the_first(disk: Disk) -> None:
    disk.staging.adopt(disk.arrive(header()), disk.inbox())
    disk.staging.adopt(disk.arrive(header(content=2)), disk.inbox())
    staged = disk.arrive(header())
    assert not staged.linked and disk.store.read(staged.path).equals(unit(header()))


def test_a_dropped_unit_makes_room_at_once(disk: Disk) -> None:
    disk.staging.adopt(disk.arrive(header()), disk.inbox())
    disk.staging.drop(disk.inbox())
    disk.staging.drop(disk.inbox())
    disk.staging.adopt(disk.arrive(header()), disk.inbox())
    assert len(disk.doomed) == 1
    disk.remove()
    assert disk.store.read(disk.inbox()).equals(unit(header()))


def test_a_unit_that_changed_on_its_way_leaves_nothing(disk: Disk) -> None:
    data = bytearray(unit(header()).to_pybytes())
    data[-1] ^= 1
    incoming = disk.staging.receive(header(), "b")
    incoming.add(pa.py_buffer(bytes(data)))
    with pytest.raises(Damaged, match="from b"):
        incoming.finish()
    incoming.abandon()
    assert not disk.staged()


def test_a_link_that_ends_leaves_nothing(disk: Disk) -> None:
    incoming = disk.staging.receive(header(), "b")
    incoming.add(unit(header()).slice(0, 100))
    assert disk.staged()
    incoming.abandon()
    assert not disk.staged()


def test_what_a_process_has_left_is_removed(disk: Disk) -> None:
    disk.arrive(header())
    disk.staging.open()
    assert not disk.staged()


class FullFile:
    """A file on a full disk."""

    def write(self, data: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    def close(self) -> None:
        """There is nothing to be written."""


def test_a_full_disk_is_reported_where_the_unit_is_wanted(disk: Disk) -> None:
    incoming: IncomingUnit = disk.staging.receive(header(), "b")
    assert incoming._file is not None
    incoming._file.close()
    incoming._file = FullFile()  # type: ignore[assignment]
    incoming.add(unit(header()))
    staged = incoming.finish()
    with pytest.raises(OSError, match="no space"):
        disk.staging.adopt(staged, disk.inbox())
    assert not disk.staged() and not disk.inbox().exists()
    disk.staging.settle(staged)
    assert not disk.arrive(header()).linked


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(64, unit(header()).size - 1), unique=True).map(sorted))
def test_pieces_of_any_size_make_the_unit(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    disk = Disk(tmp_path_factory.mktemp("disk"))
    staged = disk.arrive(header(), cuts=tuple(cuts))
    assert disk.store.read(staged.path).equals(unit(header()))


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["arrive", "adopt", "settle", "drop", "remove"]), st.integers(1, 2), st.integers(1, 2)
        ),
        max_size=30,
    )
)
def test_a_file_always_holds_the_unit_of_its_header(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    disk = Disk(tmp_path_factory.mktemp("disk"))
    waiting: list[StagedUnit] = []
    inbox: dict[int, UnitHeader] = {}
    for kind, number, content in steps:
        match kind:
            case "arrive":
                waiting.append(disk.arrive(header(number, content)))
            case "adopt" if waiting:
                staged = waiting.pop(0)
                disk.staging.adopt(staged, disk.inbox(staged.header.number))
                disk.staging.settle(staged)
                inbox[staged.header.number] = staged.header
            case "settle" if waiting:
                disk.staging.settle(waiting.pop(0))
            case "drop":
                disk.staging.drop(disk.inbox(number))
                inbox.pop(number, None)
            case "remove":
                disk.remove()
        for staged in waiting:
            assert disk.store.read(staged.path).equals(unit(staged.header))
        for there, kept in inbox.items():
            assert disk.store.read(disk.inbox(there)).equals(unit(kept))
    disk.remove()
    assert disk.staged() == {staged.path.name for staged in waiting}
    assert os.path.exists(disk.place)
