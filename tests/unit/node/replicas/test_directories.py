"""A node's directory: its identity, and what replicas can go on from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from unbroken.data.checksum import Damaged
from unbroken.data.schema import arrow_schema, parse_schema
from unbroken.data.unit_store import encode_unit
from unbroken.errors import UnbrokenError
from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.replicas import directories as replica_dirs
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.warmup import made_up_rows
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

REPLICA = ReplicaId(ShardId("sums", 0), 1)
INGRESS = ReplicaId(ShardId("ingress", 0), 0)
IN, OUT = StreamId(ShardId("src", 0), REPLICA.shard), StreamId(REPLICA.shard, ShardId("sink", 0))


def unit(stream: StreamId, number: int) -> tuple[UnitHeader, pa.Buffer]:
    header = UnitHeader(stream, number, number, 1_000 + number, Digest(1, number))
    return header, encode_unit(header, pa.table({"n": [number]}))


def test_an_identity_is_made_once_and_belongs_to_the_disk(tmp_path: Path) -> None:
    first = ReplicaDirs(tmp_path / "a").identity()
    assert ReplicaDirs(tmp_path / "a").identity() == first != ReplicaDirs(tmp_path / "b").identity()
    (tmp_path / "a" / "identity.json").write_text("{")
    with pytest.raises(UnbrokenError, match="damaged file"):
        ReplicaDirs(tmp_path / "a").identity()


def test_a_replica_begins_once(tmp_path: Path) -> None:
    dirs = ReplicaDirs(tmp_path)
    dirs.identity()
    assert not dirs.begun(REPLICA)
    dirs.begin([REPLICA])
    assert dirs.begun(REPLICA) and dirs.present() == [REPLICA]
    dirs.drop(REPLICA)
    assert dirs.begun(REPLICA) and dirs.present() == []


def test_units_are_found_again_without_holes(tmp_path: Path) -> None:
    dirs = ReplicaDirs(tmp_path)
    dirs.identity()
    dirs.begin([REPLICA])
    headers = {}
    for number in (3, 6, 7):  # 3 was about to be dropped when the process was killed
        headers[number], data = unit(OUT, number)
        dirs.store.write(dirs.store.outbox_path(REPLICA, OUT, number), data)
    arrived, data = unit(IN, 1)
    dirs.store.write(dirs.store.inbox_path(REPLICA, IN, 1), data)
    torn = dirs.store.inbox_path(REPLICA, IN, 2)
    torn.write_bytes(data.to_pybytes()[:40])
    state = dirs.state(REPLICA)
    assert state.committed == 0
    assert state.outboxes[OUT].base == 5 and state.outboxes[OUT].headers == (headers[6], headers[7])
    assert state.inboxes[IN] == (arrived,)
    assert not torn.exists() and not dirs.store.outbox_path(REPLICA, OUT, 3).exists()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def filled(dirs: ReplicaDirs, replica: ReplicaId, stream: StreamId, numbers: Iterable[int]) -> list[UnitHeader]:
    dirs.identity()
    dirs.begin([replica])
    headers = []
    for number in numbers:
        header, data = unit(stream, number)
        dirs.store.write(dirs.store.outbox_path(replica, stream, number), data)
        headers.append(header)
    return headers


def test_a_damaged_unit_of_an_outbox_is_produced_again_with_those_after_it(tmp_path: Path) -> None:
    """Without them: what is before the damage stays, as its consumers may need it."""
    dirs = ReplicaDirs(tmp_path)
    headers = filled(dirs, REPLICA, OUT, range(1, 6))
    flip(dirs.store.outbox_path(REPLICA, OUT, 3))
    state = dirs.state(REPLICA)
    assert state.outboxes[OUT].base == 0 and state.outboxes[OUT].headers == tuple(headers[:2])
    assert not dirs.store.outbox_path(REPLICA, OUT, 4).exists()


def test_a_replica_with_a_damaged_result_that_is_part_of_its_state_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = ReplicaDirs(tmp_path)
    filled(dirs, REPLICA, OUT, range(1, 6))
    path = dirs.store.outbox_path(REPLICA, OUT, 3)
    flip(path)
    monkeypatch.setattr(replica_dirs, "committed_batches", lambda _: 4)
    monkeypatch.setattr(replica_dirs, "offset_at", lambda *_: {"cut": 4})
    with pytest.raises(Damaged, match=str(path)):
        dirs.state(REPLICA)


def test_a_damaged_unit_of_the_ingress_is_recomputed_from_its_log(tmp_path: Path) -> None:
    dirs = ReplicaDirs(tmp_path)
    headers = filled(dirs, INGRESS, IN, range(5, 9))
    IngressLogFile(dirs.ingress_log(INGRESS)).rebase(IngressBase(6, 6, finished=True))
    flip(dirs.store.outbox_path(INGRESS, IN, 7))
    stored = dirs.state(INGRESS).outboxes[IN]
    assert (stored.base, stored.headers) == (4, tuple(headers[:2]))
    assert not dirs.store.outbox_path(INGRESS, IN, 8).exists()


def test_a_damaged_unit_of_an_inbox_is_fetched_again(tmp_path: Path) -> None:
    dirs = ReplicaDirs(tmp_path)
    filled(dirs, REPLICA, OUT, [])
    for number in (1, 2, 3):
        dirs.store.write(dirs.store.inbox_path(REPLICA, IN, number), unit(IN, number)[1])
    path = dirs.store.inbox_path(REPLICA, IN, 2)
    flip(path)
    assert [header.number for header in dirs.state(REPLICA).inboxes[IN]] == [1, 3] and not path.exists()


def test_no_flipped_bit_of_an_identity_passes(tmp_path: Path) -> None:
    ReplicaDirs(tmp_path).identity()
    path = tmp_path / "identity.json"
    raw = path.read_bytes()
    for bit in range(8 * len(raw)):
        data = bytearray(raw)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(Damaged, match="identity"):
            ReplicaDirs(tmp_path).identity()


def test_an_ingress_that_has_yet_to_begin_is_empty(tmp_path: Path) -> None:
    dirs = ReplicaDirs(tmp_path)
    dirs.identity()
    dirs.begin([INGRESS])
    state = dirs.state(INGRESS)
    assert (state.committed, state.log.committed, state.log.entries) == (0, 0, ())


def test_a_copy_takes_the_place_when_it_is_whole_and_leftovers_go(tmp_path: Path) -> None:
    dirs = ReplicaDirs(tmp_path)
    dirs.identity()
    dirs.incoming(REPLICA).mkdir(parents=True)
    (dirs.incoming(REPLICA) / "checkpoint").mkdir()
    assert dirs.present() == []
    dirs.adopt(REPLICA)
    assert dirs.present() == [REPLICA] and dirs.checkpoint(REPLICA).is_dir()
    (dirs.pins / "left").mkdir(parents=True)
    dirs.clean([])
    assert dirs.present() == [] and not dirs.pins.exists()
    assert not list(tmp_path.glob("dropped-*"))


def test_a_starting_process_gets_an_empty_directory_and_those_of_killed_ones_go(tmp_path: Path) -> None:
    dirs = ReplicaDirs(tmp_path)
    dirs.identity()
    killed = dirs.scratch()
    (killed / "blockmgr-1" / "0a").mkdir(parents=True)
    (killed / "blockmgr-1" / "0a" / "shuffle_0_0_0.data").write_bytes(b"left behind")
    mine = dirs.scratch()
    assert mine != killed and list(mine.iterdir()) == [] and list(mine.parent.iterdir()) == [mine]


def test_made_up_rows_fit_any_schema() -> None:
    ddl = (
        "a boolean, b byte, c int, d long, e float, f double, g decimal(10,2), h string, i binary, j date, "
        "k timestamp, l struct<x: int, y: string>, m array<long>, n map<string, int>"
    )
    schema = arrow_schema(parse_schema(ddl))
    table = made_up_rows(schema, 20)
    assert table.schema.equals(schema) and table.num_rows == 20
    assert all(table[name].null_count == 0 for name in table.column_names)
