"""The schema of statuses as bytes: what is encoded is read back, and what is no status is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.statuses import running, starting
from unbroken.observe.status.codec import UnreadableStatus, decode, decode_node, encode
from unbroken.observe.status.flow import FlowStatus, FlowTopology
from unbroken.observe.status.node import SCHEMA, NodeStatus
from unbroken.observe.status.summary import flow_status
from unbroken_lab.docsgen.status import texts, types

TYPES = types(FlowStatus, FlowTopology)
NAMES = st.text(max_size=8)


@cache
def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of any type that the schema uses."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        fields = {name: values(one) for name, one in get_type_hints(hint).items() if name != "schema"}
        return st.builds(hint, **fields)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        if Ellipsis in inner:
            return st.lists(values(inner[0]), max_size=2).map(tuple)
        return st.tuples(*(values(one) for one in inner))
    if get_origin(hint) is Mapping:
        return st.dictionaries(NAMES, values(get_args(hint)[1]), max_size=2)
    if get_args(hint):
        return st.one_of(*(values(one) for one in get_args(hint)))
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(2**53), 2**53),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: NAMES,
        bool: st.booleans(),
        type(None): st.none(),
    }
    return simple[hint]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_encoded_is_read_back(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    value = data.draw(values(kind))
    assert msgspec.json.decode(encode(value), type=kind) == value


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_refused_and_never_crash_the_reader(data: st.DataObject) -> None:
    whole = bytearray(encode(running()))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        assert isinstance(decode_node(bytes(whole), "a"), NodeStatus)
    except UnreadableStatus as error:
        assert "the status of a" in str(error)


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_are_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(UnreadableStatus, match="the status of a cannot be read"):
        decode_node(data, "a")


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_value_of_another_type_is_refused(data: st.DataObject) -> None:
    """Each field of a status in turn gets a value that no field has."""
    facts = json.loads(encode(running()))
    name = data.draw(st.sampled_from(sorted(facts)))
    facts[name] = [[None]]
    with pytest.raises(UnreadableStatus):
        decode_node(json.dumps(facts).encode(), "a")


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(encode(running())), **changes}).encode()


def test_another_version_is_named_with_what_to_do() -> None:
    with pytest.raises(UnreadableStatus) as caught:
        decode_node(changed(schema=SCHEMA + 1, node=7), "a")
    told = str(caught.value)
    assert f"schema {SCHEMA + 1}" in told and f"schema {SCHEMA}" in told
    assert "Use the unbroken command of the version that a runs." in told


def test_a_wrong_field_is_named() -> None:
    with pytest.raises(UnreadableStatus, match=r"\$\.ingress\.pulse"):
        decode_node(changed(ingress={**json.loads(encode(running()))["ingress"], "pulse": "many"}), "a")


def test_deeply_nested_bytes_are_refused() -> None:
    with pytest.raises(UnreadableStatus):
        decode_node(b'{"schema":' * 100_000, "a")


def test_a_field_of_a_newer_node_is_passed_over_and_one_of_an_older_node_has_its_default() -> None:
    assert decode_node(changed(invented={"deep": [1]}), "a") == running()
    facts = json.loads(encode(starting()))
    assert decode_node(json.dumps({key: facts[key] for key in ("schema", "node", "state")}).encode(), "a").links == ()


def test_the_answer_of_another_node_is_not_taken() -> None:
    with pytest.raises(UnreadableStatus, match="that of 'a'"):
        decode_node(encode(running()), "b")


def test_every_field_is_present() -> None:
    status = flow_status("orders", [running(), starting(node="b")], zookeeper_away=False, time_ms=1)
    assert decode(FlowStatus, encode(status)) == status
    for node in json.loads(encode(status))["nodes"]:
        assert set(node) == {field.encode_name for field in msgspec.structs.fields(NodeStatus)}


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_field_is_described(kind: type[msgspec.Struct]) -> None:
    described = texts(kind)
    assert set(described) == {field.name for field in msgspec.structs.fields(kind)}
    assert all(text.endswith(".") for text in described.values()), described


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_statuses_cannot_be_changed(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.frozen
