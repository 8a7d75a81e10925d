"""Units on disk: written whole, never changed, shared by links."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.data.unit_store import UnitStore, decode_unit, encode_unit, read_header
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

STREAM = StreamId(ShardId("src", 0), ShardId("seg", 1))
REPLICA = ReplicaId(ShardId("seg", 1), 0)
PRODUCER = ReplicaId(ShardId("src", 0), 0)
TABLE = pa.table({"k": [1, 2, 3], "name": ["a", None, "c"]})


def header(number: int = 1, rows: int = 3) -> UnitHeader:
    return UnitHeader(STREAM, number, number, 1_234, Digest(rows, -5, (0.5,)), 99, True, False)


@pytest.mark.parametrize("part", ["..", "../seg", "/etc/x", "a/../../b"])
def test_places_outside_of_inboxes_are_not_received(tmp_path: Path, part: str) -> None:
    store = UnitStore(tmp_path / "replicas")
    store.write(store.inbox_path(REPLICA, STREAM, 1), encode_unit(header(), TABLE))
    assert store.receives(REPLICA, STREAM)
    assert not store.receives(ReplicaId(ShardId("seg", 1), 1), STREAM), "another replica"
    assert not store.receives(ReplicaId(ShardId(part, 1), 0), STREAM)
    assert not store.receives(REPLICA, StreamId(ShardId(part, 0), ShardId("seg", 1)))


@given(
    st.integers(1, 2**40),
    st.integers(0, 2**50),
    st.integers(-(2**63), 2**63),
    st.booleans(),
    st.lists(st.integers(0, 9)),
)
def test_a_unit_comes_back_with_its_header(
    number: int, cut_ms: int, exact: int, final: bool, values: list[int]
) -> None:
    made = UnitHeader(STREAM, number, number, cut_ms, Digest(len(values), exact), 7, not final, final)
    table = pa.table({"v": pa.array(values, pa.int16())})
    data = encode_unit(made, table)
    assert decode_unit(data) == (made, table)
    assert decode_unit(data.to_pybytes()) == (made, table)
    assert read_header(pa.ipc.open_file(data).schema) == made


def test_a_unit_is_the_same_bytes_each_time() -> None:
    assert encode_unit(header(), TABLE).equals(encode_unit(header(), TABLE))


def test_metadata_of_the_table_is_not_carried_on() -> None:
    tagged = TABLE.replace_schema_metadata({b"pandas": b"{}"})
    assert decode_unit(encode_unit(header(), tagged))[1].schema.metadata is None


def test_what_is_written_is_read_and_nothing_else_is_there(tmp_path: Path) -> None:
    store = UnitStore(tmp_path)
    path = store.outbox_path(PRODUCER, STREAM, 1)
    data = encode_unit(header(), TABLE)
    store.write(path, data)
    assert store.read(path).equals(data)
    store.write(store.outbox_path(PRODUCER, STREAM, 2), data.to_pybytes())
    assert decode_unit(store.read(store.outbox_path(PRODUCER, STREAM, 2))) == (header(), TABLE)
    assert sorted(p.name for p in path.parent.iterdir()) == ["000000000001.arrow", "000000000002.arrow"]


def test_streams_and_replicas_have_places_of_their_own(tmp_path: Path) -> None:
    store = UnitStore(tmp_path)
    other = ReplicaId(ShardId("seg", 1), 1)
    paths = {
        store.outbox_path(PRODUCER, STREAM, 1),
        store.outbox_path(PRODUCER, STREAM, 2),
        store.inbox_path(REPLICA, STREAM, 1),
        store.inbox_path(other, STREAM, 1),
    }
    assert len(paths) == 4
    assert all(path.is_relative_to(tmp_path) for path in paths)
    # Spark's workers join these themselves.
    assert store.inbox_path(REPLICA, STREAM, 1).parent == store.inbox_dir(REPLICA) / str(STREAM)


def test_a_linked_unit_outlives_the_one_it_was_linked_from(tmp_path: Path) -> None:
    store = UnitStore(tmp_path)
    source, target = store.outbox_path(PRODUCER, STREAM, 1), store.inbox_path(REPLICA, STREAM, 1)
    store.write(source, encode_unit(header(), TABLE))
    store.link(source, target)
    assert source.stat().st_ino == target.stat().st_ino
    store.link(source, target)  # an arrival that is carried out again
    store.drop(source)
    assert decode_unit(store.read(target)) == (header(), TABLE)
    with pytest.raises(FileNotFoundError):
        store.link(source, store.inbox_path(REPLICA, STREAM, 2))


def test_dropping_is_done_once_and_again(tmp_path: Path) -> None:
    store = UnitStore(tmp_path)
    path = store.outbox_path(PRODUCER, STREAM, 1)
    store.drop(path)
    store.write(path, b"data")
    store.drop(path)
    store.drop(path)
    with pytest.raises(FileNotFoundError):
        store.read(path)


def test_a_unit_that_is_being_read_may_be_dropped(tmp_path: Path) -> None:
    store = UnitStore(tmp_path)
    path = store.outbox_path(PRODUCER, STREAM, 1)
    store.write(path, encode_unit(header(), TABLE))
    buffer = store.read(path)
    store.drop(path)
    assert decode_unit(buffer) == (header(), TABLE)


def test_a_write_that_was_cut_off_leaves_no_unit(tmp_path: Path) -> None:
    store = UnitStore(tmp_path)
    path = store.outbox_path(PRODUCER, STREAM, 1)
    path.parent.mkdir(parents=True)
    path.with_suffix(".partial").write_bytes(b"half a un")
    assert not path.exists()
    store.write(path, encode_unit(header(), TABLE))
    assert decode_unit(store.read(path)) == (header(), TABLE)
