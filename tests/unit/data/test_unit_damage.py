"""Damage to unit files: every flipped bit is found before Arrow sees it, and no reader ends over one."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest

from unbroken.data.checksum import Damaged, crc32c
from unbroken.data.unit_store import Torn, UnitStore, decode_unit, encode_unit, stored_headers
from unbroken.protocol.instructions import NoteOwed
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.protocol.values.units import Digest, UnitHeader

STREAM = StreamId.parse("a.0>b.0")
REPLICA = ReplicaId.parse("b.0#0")
TABLE = pa.table({"user": ["u1", "u2"], "tags": [["a"], None]})


def header(number: int = 1) -> UnitHeader:
    return UnitHeader(STREAM, number, number, 1, Digest(2, 1))


def flipped(data: bytes, bit: int) -> bytes:
    at = bit // 8
    return data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :]


def test_no_flipped_bit_passes() -> None:
    """Arrow would crash over some of them, and read others as other rows."""
    data = encode_unit(header(), TABLE).to_pybytes()
    assert decode_unit(data) == (header(), TABLE)
    for bit in range(8 * len(data)):
        with pytest.raises(Damaged):
            decode_unit(flipped(data, bit))


def test_no_shorter_or_longer_file_passes() -> None:
    data = encode_unit(header(), TABLE).to_pybytes()
    for size in range(len(data)):
        with pytest.raises(Torn):
            decode_unit(data[:size])
    with pytest.raises(Torn):
        decode_unit(bytes(len(data)))
    with pytest.raises(Damaged):
        decode_unit(data + b"x")


def test_reading_names_the_file(tmp_path: Path) -> None:
    store = UnitStore(tmp_path)
    path = store.inbox_path(REPLICA, STREAM, 1)
    store.write(path, flipped(encode_unit(header(), TABLE).to_pybytes(), 999))
    with pytest.raises(Damaged, match=str(path)):
        store.read(path)


def test_damaged_units_are_removed_and_reported_and_torn_ones_are_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = UnitStore(tmp_path)
    for number in range(1, 5):
        store.write(store.inbox_path(REPLICA, STREAM, number), encode_unit(header(number), TABLE))
    bad, torn = (store.inbox_path(REPLICA, STREAM, number) for number in (2, 4))
    bad.write_bytes(flipped(bad.read_bytes(), 800))
    torn.write_bytes(torn.read_bytes()[:-1])
    found = stored_headers(store.inbox_dir(REPLICA))
    assert found.headers == {STREAM: [header(1), header(3)]} and found.damaged == {STREAM: [2]}
    assert not bad.exists() and not torn.exists()
    assert str(bad) in caplog.text and str(torn) not in caplog.text


def test_what_is_owed_is_not_taken_from_a_damaged_note(tmp_path: Path) -> None:
    store = UnitStore(tmp_path)
    rebuilt = Rebuilt(4, ((ShardId("totals", 0), Rebuilt(3)),))
    (tmp_path / str(REPLICA)).mkdir(exist_ok=True)
    assert store.note_owed(NoteOwed(REPLICA, STREAM, 17, rebuilt))
    assert store.owed(REPLICA) == {STREAM: (17, rebuilt)}
    [path] = store.owed_dir(REPLICA).iterdir()
    raw = path.read_bytes()
    for bit in range(8 * len(raw)):
        path.write_bytes(flipped(raw, bit))
        assert store.owed(REPLICA) == {}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ENOMEM])
def test_units_that_cannot_be_read_at_this_moment_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = UnitStore(tmp_path)
    for unit in range(1, 4):
        store.write(store.inbox_path(REPLICA, STREAM, unit), encode_unit(header(unit), TABLE))
    (tmp_path / str(REPLICA)).mkdir(exist_ok=True)
    assert store.note_owed(NoteOwed(REPLICA, STREAM, 17, Rebuilt(4)))

    def fails(*_: object) -> None:
        raise OSError(number, "not now")

    with monkeypatch.context() as patch:
        patch.setattr(pa, "memory_map", fails)
        patch.setattr(Path, "read_bytes", fails)
        with pytest.raises(OSError, match="not now"):
            stored_headers(store.inbox_dir(REPLICA))
        with pytest.raises(OSError, match="not now"):
            store.owed(REPLICA)
    assert stored_headers(store.inbox_dir(REPLICA)).headers == {STREAM: [header(1), header(2), header(3)]}


def test_a_whole_file_without_a_header_is_damaged(tmp_path: Path) -> None:
    store = UnitStore(tmp_path)
    path = store.inbox_path(REPLICA, STREAM, 1)
    data = encode_unit(header(), TABLE).to_pybytes().replace(b"unbroken.unit", b"unbroken.gone")
    image = data[64:]
    prefix = data[:16] + crc32c(image).to_bytes(4, "big") + data[20:60]
    store.write(path, prefix + crc32c(prefix).to_bytes(4, "big") + image)
    found = stored_headers(store.inbox_dir(REPLICA))
    assert found.damaged == {STREAM: [1]} and not path.exists()
