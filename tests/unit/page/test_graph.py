"""Where the parts of a dataflow stand in its picture."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from unbroken.page.graph import INGRESS, BoxPosition, Picture, arranged
from unbroken_lab.sim.flows import tangle


def places(*flow: Any) -> Mapping[str, BoxPosition]:
    return arranged(*flow).places


def test_a_chain_goes_from_left_to_right() -> None:
    found = places(["clicks"], ["a", "b"], ["screen"], [("clicks", "a"), ("a", "b"), ("b", "screen")])
    assert found == {
        INGRESS: BoxPosition(0, 0),
        "a": BoxPosition(1, 0),
        "b": BoxPosition(2, 0),
        "screen": BoxPosition(3, 0),
    }


def test_sinks_stand_at_the_end_whatever_feeds_them() -> None:
    edges = [("clicks", "a"), ("a", "b"), ("a", "early"), ("b", "late")]
    found = places(["clicks"], ["a", "b"], ["early", "late"], edges)
    assert found["early"].column == found["late"].column == 3


def test_edges_do_not_cross_where_they_need_not() -> None:
    edges = [("s", "a"), ("s", "b"), ("a", "y"), ("b", "x"), ("y", "out1"), ("x", "out2")]
    found = places(["s"], ["a", "b", "x", "y"], ["out2", "out1"], edges)
    assert (found["a"].row < found["b"].row) == (found["y"].row < found["x"].row)
    assert (found["y"].row < found["x"].row) == (found["out1"].row < found["out2"].row)


def test_an_edge_that_passes_a_column_has_a_place_there() -> None:
    edges = [("s", "a"), ("t", "b"), ("a", "b"), ("b", "out")]
    picture = arranged(["s", "t"], ["a", "b"], ["out"], edges)
    assert list(picture.lanes) == [(INGRESS, "b")]
    (lane,) = picture.lanes[INGRESS, "b"]
    assert lane.column == 1 and lane != picture.places["a"]


def rows_of(picture: Picture) -> dict[int, list[int]]:
    """What is in each column."""
    found: dict[int, list[int]] = {}
    for place in [*picture.places.values(), *(lane for lanes in picture.lanes.values() for lane in lanes)]:
        found.setdefault(place.column, []).append(place.row)
    return found


@given(st.integers(0, 10_000), st.integers(1, 30))
def test_everything_is_right_of_what_it_reads_and_has_a_place_of_its_own(seed: int, shards: int) -> None:
    topology = tangle(Random(seed), shards)
    picture = arranged(topology.sources, list(topology.segments), topology.sinks, topology.edges)
    found = picture.places
    for producer, consumer in topology.edges:
        left = INGRESS if producer in topology.sources else producer
        assert found[left].column < found[consumer].column
        between = [lane.column for lane in picture.lanes.get((left, consumer), ())]
        assert between == list(range(found[left].column + 1, found[consumer].column))
    assert len(found) == 1 + len(topology.segments) + len(topology.sinks)
    for rows in rows_of(picture).values():
        assert sorted(rows) == list(range(len(rows)))
