"""The base of an ingress log on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken.connectors.push.ledger import PushLedger
from unbroken.errors import UnbrokenError
from unbroken.node.ingress.base import FILE_NAME, IngressBase


def test_what_is_written_is_read(tmp_path: Path) -> None:
    ledger = PushLedger()
    ledger.accept("p", 3)
    ledger.accept("q", 1)
    base = IngressBase(
        9, 4, {"a": {"row": 7}, "b": 8, "c": None}, 1_234, {"b": (8, 9)}, {"b": ledger.known()}, 70, 2, True
    )
    assert IngressBase.read(tmp_path) is None
    base.write(tmp_path)
    assert IngressBase.read(tmp_path) == base
    assert base.ledger("b").last("p") == 3 and base.ledger("other").last("p") is None
    later = IngressBase(10, 5)
    later.write(tmp_path)
    assert IngressBase.read(tmp_path) == later
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"index":1}', b"null"])
def test_a_damaged_base_is_not_taken_for_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(data)
    with pytest.raises(UnbrokenError, match="damaged"):
        IngressBase.read(tmp_path)


def test_an_unfinished_base_counts_for_nothing(tmp_path: Path) -> None:
    IngressBase(3, 1).write(tmp_path)
    (tmp_path / f"{FILE_NAME}.tmp").write_bytes(b"half of i")
    assert IngressBase.read(tmp_path) == IngressBase(3, 1)
