"""The bodies of the entries of the ingress log: what is one, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.connectors.push.source import PushBatch
from unbroken.node.ingress.entries import WISH, wish_of
from unbroken.protocol.ingress.skip import SkipRequest

HOLD = SkipRequest("hold", "orders", 7)


def test_a_wish_is_told_apart_from_pushed_rows() -> None:
    for wish in (HOLD, SkipRequest("release", "a", 1, 2), SkipRequest("skip", "ü", 2**40, 9)):
        assert WISH.begins(WISH.encode(wish)) and wish_of(WISH.encode(wish)) == wish
    rows = PushBatch("orders", "p", 1, b'{"a":1}').to_bytes()
    assert not WISH.begins(rows) and wish_of(rows) is None


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_an_entry_that_is_not_understood_changes_nothing(tail: bytes) -> None:
    wish_of(tail)
    found = wish_of(b"wish/1 " + tail)
    assert found is None or wish_of(WISH.encode(found)) == found


@pytest.mark.parametrize(
    "wish",
    [
        SkipRequest("drop", "a", 1),  # type: ignore[arg-type]
        SkipRequest("skip", "a", True),
        SkipRequest("skip", "a", 0),
        SkipRequest("skip", "a", -1),
    ],
    ids=repr,
)
def test_wishes_that_are_none(wish: SkipRequest) -> None:
    assert wish_of(WISH.encode(wish)) is None


def test_a_wish_of_another_version_changes_nothing() -> None:
    other = b"wish/2 " + WISH.encode(HOLD)[7:]
    assert WISH.begins(other) and wish_of(other) is None
