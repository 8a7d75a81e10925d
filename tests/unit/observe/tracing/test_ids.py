"""Names of traces and spans: the same on every node, and for nothing else."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from unbroken.observe.tracing.ids import Ids, Sampling, SpanPlace
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId

SHARD = ShardId("sums", 0)
STREAM = StreamId.parse("sums.0>out.0")
REPLICA = ReplicaId(SHARD, 2)


def all_places(ids: Ids) -> list[SpanPlace]:
    return [
        ids.cut(7),
        ids.cut(8),
        ids.offer(7, SHARD, 7, "a"),
        ids.offer(7, SHARD, 7, "b"),
        ids.offer(7, SHARD, 8, "a"),
        ids.receive(7, STREAM, 7, "a"),
        ids.micro_batch(7, SHARD, 7, "a"),
        ids.delivery(7, STREAM, 7, "a"),
        ids.loss("a", "1", "b"),
        ids.loss("a", "1", "c"),
        ids.loss("a", "2", "b"),
        ids.lead(3),
        ids.join(REPLICA),
        ids.end(REPLICA),
        ids.within(ids.join(REPLICA), "copy", 1),
        ids.within(ids.join(REPLICA), "copy", 2),
    ]


def test_all_names_differ_and_another_run_has_others() -> None:
    places = [*all_places(Ids("one")), *all_places(Ids("two"))]
    assert len({place.span for place in places}) == len(places)


def test_what_belongs_together_is_in_one_trace() -> None:
    ids = Ids("one")
    pulse = [ids.cut(7), ids.offer(7, SHARD, 7, "a"), ids.receive(7, STREAM, 7, "b"), ids.delivery(7, STREAM, 9, "a")]
    assert len({place.trace for place in pulse}) == 1
    assert ids.cut(7).trace != ids.cut(8).trace
    assert ids.loss("a", "1", "b").trace == ids.loss("a", "1", "c").trace != ids.loss("a", "2", "b").trace
    assert ids.within(ids.join(REPLICA), "copy", 1).trace == ids.join(REPLICA).trace


def test_another_process_finds_the_same_names() -> None:
    """Python's own hash would not do: it is another one in each process."""
    code = "from unbroken.observe.tracing.ids import Ids; place = Ids('one').cut(7); print(place.trace, place.span)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.split() == [str(Ids("one").cut(7).trace), str(Ids("one").cut(7).span)]


@given(st.text(max_size=20), st.integers(0, 2**40))
def test_names_have_the_size_that_is_prescribed(run: str, pulse: int) -> None:
    place = Ids(run).cut(pulse)
    assert 0 < place.trace < 2**128 and 0 < place.span < 2**64


def test_every_so_many_pulses_are_traced() -> None:
    assert [pulse for pulse in range(1, 13) if Sampling(4).takes(pulse)] == [4, 8, 12]
    assert all(Sampling(1).takes(pulse) for pulse in range(5))
