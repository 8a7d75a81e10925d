"""Sealed documents: not made without the token, not changed, not moved."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kit.support import TOKEN
from unbroken.security.sealing import ForgedDocument, Seal

SEAL = Seal(TOKEN)
PATHS = st.sampled_from(
    [
        "/unbroken/f/layout",
        "/unbroken/g/layout",
        "/unbroken/f/in-sync",
        "/unbroken/f/orders/s.0",
        "/unbroken/f/orders/s.0/1",
        "/unbroken/f/orders/s.0/1000000000",
        "/unbroken/f/members/0000000001",
        "/unbroken/f/history/e",
        "/unbroken/f/controller/x",
    ]
)


@given(PATHS, st.binary(max_size=200))
def test_what_was_sealed_is_read(path: str, data: bytes) -> None:
    assert SEAL.unseal(path, SEAL.seal(path, data)) == data


@settings(max_examples=200)
@given(PATHS, st.binary(max_size=60), st.data())
def test_a_changed_byte_is_seen(path: str, data: bytes, draw: st.DataObject) -> None:
    sealed = bytearray(SEAL.seal(path, data))
    at = draw.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= 1 << draw.draw(st.integers(0, 7))
    with pytest.raises(ForgedDocument):
        SEAL.unseal(path, bytes(sealed))


@given(PATHS, PATHS, st.binary(max_size=60))
def test_a_document_is_good_for_one_path(path: str, other: str, data: bytes) -> None:
    assume(path != other)
    with pytest.raises(ForgedDocument, match=f"the document {other} in ZooKeeper does not carry the seal"):
        SEAL.unseal(other, SEAL.seal(path, data))


@given(st.binary(max_size=300))
def test_what_a_stranger_writes_is_refused(data: bytes) -> None:
    for written in (data, Seal(f"{TOKEN}.").seal("/unbroken/f/layout", data)):
        with pytest.raises(ForgedDocument):
            SEAL.unseal("/unbroken/f/layout", written)


def test_a_number_that_zookeeper_adds_is_not_part_of_the_seal() -> None:
    assert SEAL.unseal("/unbroken/f/history/e0000000042", SEAL.seal("/unbroken/f/history/e", b"x")) == b"x"
    for moved in (
        "/unbroken/g/history/e0000000042",
        "/unbroken/f/controller/e0000000042",
        "/unbroken/f/history/d0000000042",
    ):
        with pytest.raises(ForgedDocument):
            SEAL.unseal(moved, SEAL.seal("/unbroken/f/history/e", b"x"))
    with pytest.raises(ForgedDocument):
        SEAL.unseal("/unbroken/f/orders/1000000000", SEAL.seal("/unbroken/f/orders/", b""))


def test_nothing_is_no_document() -> None:
    for nothing in (None, b"", b"\n", b"{}"):
        with pytest.raises(ForgedDocument):
            SEAL.unseal("/unbroken/f/layout", nothing)
