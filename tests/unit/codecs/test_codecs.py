"""Every codec of the product: values come back as they were, and all other bytes are refused or are a value."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unbroken
from kit.changed_bytes import changed
from kit.typed_values import values
from unbroken.codecs.codec import CODECS, Codec, Undecodable
from unbroken.codecs.derivation import derive, tag_of
from unbroken.protocol.values.ids import ShardId

LEFT_OUT = ("unbroken.__main__",)


def _all() -> list[Codec[Any]]:
    """Those of all modules, so that a type that is added is tested without anybody having to think of it."""
    for module in pkgutil.walk_packages(unbroken.__path__, "unbroken."):
        if module.name not in LEFT_OUT:
            import_module(module.name)
    return [codec for _, codec in sorted(CODECS.items())]


CODEC = pytest.mark.parametrize("codec", _all(), ids=lambda codec: codec.name)


def test_all_modules_were_looked_at() -> None:
    assert {"message", "unit-header", "owed", "hello", "pulse", "order-record", "code", "manifest"} <= CODECS.keys()


@CODEC
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read(codec: Codec[Any], data: st.DataObject) -> None:
    value = data.draw(values(codec.kind, readable=codec.readable))
    written = codec.encode(value)
    assert codec.decode(written) == value
    assert codec.encode(codec.decode(written)) == written
    assert codec.buffer(value) == written


@CODEC
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_changed_bytes_are_a_value_or_refused(codec: Codec[Any], data: st.DataObject) -> None:
    written = codec.encode(data.draw(values(codec.kind, readable=codec.readable)))
    try:
        found = codec.decode(changed(data, written))
    except Undecodable as error:
        assert len(str(error)) < 2_000
        return
    kinds = tuple(get_args(codec.kind)) or (codec.kind,)
    assert isinstance(found, kinds)
    codec.encode(found)


@CODEC
@given(data=st.binary(max_size=60))
def test_any_bytes_behind_the_head_are_a_value_or_refused(codec: Codec[Any], data: bytes) -> None:
    try:
        found = codec.decode(f"{codec.name}/{codec.version} ".encode() + data)
    except Undecodable:
        return
    codec.encode(found)


@CODEC
@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"{}", b"[" * 200_000, b"cposix\nsystem\n(S'true'\ntR."], ids=lambda data: repr(data[:9])
)
def test_other_bytes_are_refused_with_a_short_reason(codec: Codec[Any], data: bytes) -> None:
    for head in (b"", f"{codec.name}/{codec.version} ".encode()):
        if data == b"{}" and not fields(get_args(codec.kind)[0] if get_args(codec.kind) else codec.kind):
            continue
        with pytest.raises(Undecodable) as caught:
            codec.decode(head + data)
        assert len(str(caught.value)) < 2_000


# --- one small codec: what is said about wrong bytes -----------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    number: int
    names: frozenset[ShardId] = frozenset()


@dataclass(frozen=True)
class Tree:
    leaf: Leaf
    below: tuple[Tree, ...] = ()


@dataclass(frozen=True)
class Bare:
    pass


def _decoders(kind: Any) -> Mapping[bool, Any]:
    return {by_name: derive(kind, by_name=by_name) for by_name in (False, True)}


def test_a_type_may_contain_itself() -> None:
    tree = Tree(
        Leaf(1, frozenset({ShardId("b", 1), ShardId("a", 2)})), (Tree(Leaf(2)), Tree(Leaf(3), (Tree(Leaf(4)),)))
    )
    for by_name, derived in _decoders(Tree).items():
        written = msgspec.json.encode(derived.out(tree))
        assert derived.back(msgspec.json.decode(written, type=derived.wire)) == tree
        assert (b"leaf" in written) == by_name


def test_members_of_a_union_are_told_apart() -> None:
    assert tag_of(Leaf) == "leaf"
    for derived in _decoders(Leaf | Tree | Bare).values():
        for value in (Leaf(1), Tree(Leaf(2)), Bare()):
            assert (
                derived.back(msgspec.json.decode(msgspec.json.encode(derived.out(value)), type=derived.wire)) == value
            )


@pytest.mark.parametrize("kind", [complex, set[int], Leaf | int, type], ids=str)
def test_a_type_without_a_rule_is_refused_when_the_codec_is_made(kind: Any) -> None:
    with pytest.raises(TypeError, match="no rule"):
        derive(kind, by_name=True)


SMALL = CODECS["owed"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'owed/1 {"owed":1,"rebuilt":{"valid":1,"consumers":[]},"more":2}', "unknown field `more`"),
        (b'owed/1 {"owed":1}', "missing required field `rebuilt`"),
        (b'owed/1 {"owed":"1","rebuilt":{"valid":1,"consumers":[]}}', r"Expected `int`, got `str` - at `\$.owed`"),
        (b'owed/1 {"owed":1.5,"rebuilt":{"valid":1,"consumers":[]}}', r"`float` - at `\$.owed`"),
        (b'owed/1 {"owed":1,"rebuilt":{"valid":1,"consumers":[["x",{"valid":1,"consumers":[]}]]}}', "invalid literal"),
        (
            b'owed/2 {"owed":1,"rebuilt":{"valid":1,"consumers":[]}}',
            "of version 2 .* version 1 .* Run the same",
        ),
        (b'layout/1 {"owed":1}', "this is no owed"),
        (b'{"owed":1}', "this is no owed"),
    ],
)
def test_an_error_says_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(Undecodable, match=reason):
        SMALL.decode(data)


def test_halves_of_surrogate_pairs_do_not_keep_a_message_back() -> None:
    hello = CODECS["hello"]
    (name,) = (each.name for each in fields(hello.kind))
    for written in (hello.encode(hello.kind("a\udcff")), bytes(hello.buffer(hello.kind("a\udcff")))):
        assert getattr(hello.decode(written), name) == "a?"
