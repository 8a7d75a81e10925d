"""Damage to the ingress log on disk: every flipped bit is found, and only a torn end is a shorter log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unbroken.data.checksum import Damaged, sealed, unsealed
from unbroken.node.ingress import log_file as logfile
from unbroken.node.ingress.base import FILE_NAME, IngressBase
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.protocol.ingress.log import Entry

ENTRIES = [Entry(i, 1, (b"%04d" % i) * 3, i if i % 3 == 0 else 0, False) for i in range(1, 10)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three entries to a file."""
    monkeypatch.setattr(logfile, "SEGMENT_BYTES", 100)


def fill(directory: Path) -> list[Path]:
    log = IngressLogFile(directory)
    for entry in ENTRIES:
        log.append(entry)
    log.close()
    return sorted(directory.glob("*.log"))


def flips(data: bytes) -> Iterator[bytes]:
    """Every way in which one bit can change."""
    for at in range(len(data)):
        for bit in range(8):
            yield data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


@pytest.mark.parametrize("place", [0, 1, -1])
def test_no_flipped_bit_passes(tmp_path: Path, place: int) -> None:
    path = fill(tmp_path)[place]
    for data in flips(path.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(Damaged, match=path.name):
            IngressLogFile(tmp_path).read()


def test_no_flipped_bit_of_a_base_passes(tmp_path: Path) -> None:
    base = IngressBase(9, 3, {"p": 3}, 1, {"p": (4, 5)}, {})
    base.write(tmp_path)
    path = tmp_path / FILE_NAME
    for data in flips(path.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(Damaged, match=FILE_NAME):
            IngressBase.read(tmp_path)


def test_no_flipped_bit_of_a_small_document_passes() -> None:
    path, raw = Path("note.txt"), sealed(b"12 7")
    assert unsealed(path, raw, "") == b"12 7" and unsealed(path, sealed(b""), "") == b""
    for data in [*flips(raw), *(raw[:end] for end in range(len(raw)))]:
        with pytest.raises(Damaged):
            unsealed(path, data, "")


def test_a_torn_end_is_a_shorter_log_and_is_cut_off_before_others_follow(tmp_path: Path) -> None:
    path = fill(tmp_path)[-1]
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        found = IngressLogFile(tmp_path).read()
        assert found == ENTRIES[: len(found)] and len(found) >= 6
        again = IngressLogFile(tmp_path)
        following = Entry(len(found) + 1, 2, b"new")
        again.append(following)
        again.close()
        assert IngressLogFile(tmp_path).read() == [*found, following]
        for extra in sorted(tmp_path.glob("*.log"))[3:]:
            extra.unlink()


def test_blocks_that_were_reserved_and_never_written_are_a_torn_end(tmp_path: Path) -> None:
    path = fill(tmp_path)[-1]
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert IngressLogFile(tmp_path).read() == ENTRIES


def test_an_entry_of_which_only_the_first_blocks_were_written_is_a_torn_end(tmp_path: Path) -> None:
    """A file may have its full length after a power failure, and zeros where its last blocks should be."""
    path = fill(tmp_path)[-1]
    whole = path.read_bytes()
    for size in range(len(whole) - 3):
        path.write_bytes(whole[:size] + bytes(len(whole) - size))
        found = IngressLogFile(tmp_path).read()
        assert found == ENTRIES[: len(found)] and len(found) >= 6
        again = IngressLogFile(tmp_path)
        following = Entry(len(found) + 1, 2, b"new")
        again.append(following)
        again.close()
        assert IngressLogFile(tmp_path).read() == [*found, following]
        for extra in sorted(tmp_path.glob("*.log"))[3:]:
            extra.unlink()


@pytest.mark.parametrize("place", [0, 1])
def test_an_end_that_others_follow_is_no_shorter_log(tmp_path: Path, place: int) -> None:
    path = fill(tmp_path)[place]
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(Damaged, match=r"others follow it|is missing"):
            IngressLogFile(tmp_path).read()


def test_a_file_that_is_gone_is_missed(tmp_path: Path) -> None:
    fill(tmp_path)[1].unlink()
    with pytest.raises(Damaged, match="entry 4 is missing"):
        IngressLogFile(tmp_path).read()


def test_every_push_that_the_base_relies_on_is_required(tmp_path: Path) -> None:
    """The base is forced to disk; the entries it names must have been before."""
    paths = fill(tmp_path)
    IngressBase(9, 3, {"p": 3}, 1, {"p": (4, 5)}, {}).write(tmp_path)
    assert [entry.index for entry in IngressLogFile(tmp_path).read_waiting()] == [4, 5]
    for path in paths:
        path.write_bytes(b"")
    with pytest.raises(Damaged, match="entry 4, which the base relies on, is missing"):
        IngressLogFile(tmp_path).read_waiting()


def test_the_error_says_what_to_do(tmp_path: Path) -> None:
    path = fill(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged) as caught:
        IngressLogFile(tmp_path).read()
    assert f"damaged file: {path}" in str(caught.value) and f"truncate -s 0 {path}" in str(caught.value)
