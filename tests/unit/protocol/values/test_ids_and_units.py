"""Names and headers survive being written down, and digests compare what they should."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.data.unit_store import HEADER
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

PARTS = st.from_regex(r"[a-z][a-z0-9_.-]{0,10}", fullmatch=True)
SHARDS = st.builds(ShardId, PARTS, st.integers(0, 99))


@given(SHARDS)
def test_a_shard_is_its_text(shard: ShardId) -> None:
    assert ShardId.parse(str(shard)) == shard


@given(st.builds(ReplicaId, SHARDS, st.integers(0, 9)))
def test_a_replica_is_its_text(replica: ReplicaId) -> None:
    assert ReplicaId.parse(str(replica)) == replica


@given(st.builds(StreamId, SHARDS, SHARDS))
def test_a_stream_is_its_text(stream: StreamId) -> None:
    assert StreamId.parse(str(stream)) == stream
    assert str(StreamId.parse(str(stream))) == str(stream)


@given(
    st.builds(
        UnitHeader,
        stream=st.builds(StreamId, SHARDS, SHARDS),
        number=st.integers(1, 2**60),
        pulse=st.integers(1, 2**60),
        cut_ms=st.integers(0, 2**50),
        digest=st.builds(
            Digest,
            st.integers(0, 2**40),
            st.integers(-(2**63), 2**63 - 1),
            st.lists(st.floats(allow_nan=False)).map(tuple),
        ),
        size=st.integers(0, 2**50),
        stable=st.booleans(),
        final=st.booleans(),
    )
)
def test_a_header_survives_the_wire(header: UnitHeader) -> None:
    assert HEADER.decode(HEADER.encode(header)) == header


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (Digest(3, 7, (1.0, 2.0)), True),
        (Digest(3, 7, (1.0 + 1e-13, 2.0)), True),
        (Digest(3, 7, (1.0001, 2.0)), False),
        (Digest(4, 7, (1.0, 2.0)), False),
        (Digest(3, 8, (1.0, 2.0)), False),
        (Digest(3, 7, (1.0,)), False),
        (Digest(3, 7, (math.nan, 2.0)), False),
    ],
)
def test_digests_match_within_the_tolerance_of_sums(other: Digest, same: bool) -> None:
    assert Digest(3, 7, (1.0, 2.0)).matches(other) is same


def test_sums_that_are_not_numbers_match() -> None:
    odd = Digest(1, 1, (math.nan, math.inf, -math.inf))
    assert odd.matches(Digest(1, 1, (math.nan, math.inf, -math.inf)))
    assert not odd.matches(Digest(1, 1, (math.nan, math.inf, math.inf)))
