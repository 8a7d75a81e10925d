"""Where the parts of a dataflow stand in its picture: columns from left to right, and their order in a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

INGRESS = "ingress"
"""The box of the sources: the ingress reads all of them."""

SWEEPS = 4
"""Times that the columns are put in order by their neighbours; more changes nothing for flows people write."""

Edge = tuple[str, str]


@dataclass(frozen=True)
class BoxPosition:
    column: int
    row: int


@dataclass(frozen=True)
class Picture:
    """Places of all boxes, and of the ``lanes`` by which edges pass the columns between their ends."""

    places: Mapping[str, BoxPosition]
    lanes: Mapping[Edge, Sequence[BoxPosition]]


def arranged(sources: Sequence[str], segments: Sequence[str], sinks: Sequence[str], edges: Sequence[Edge]) -> Picture:
    """A place for every box: the ingress in column 0, each segment right of all that it reads, sinks at the end.

    An edge that goes further than to the next column has a place of its own in each one between, so that it does not
    pass behind boxes. What is in a column is ordered such that edges cross little: each one is put near the middle of
    what comes before it and what comes after it, a few times in both directions.
    """
    joined = _between_boxes(sources, edges)
    column = _columns(segments, sinks, joined)
    ordered: dict[int, list[str]] = {}
    for part in [INGRESS, *segments, *sinks]:
        ordered.setdefault(column[part], []).append(part)
    ways = {edge: _way(edge, column) for edge in joined}
    for way in ways.values():
        for place, stop in enumerate(way[1:-1], start=column[way[0]] + 1):
            ordered[place].append(stop)
    steps = [step for way in ways.values() for step in pairwise(way)]
    before, after = _neighbours([(right, left) for left, right in steps]), _neighbours(steps)
    for sweep in range(SWEEPS):
        forwards = sweep % 2 == 0
        for place in sorted(ordered, reverse=not forwards):
            _arrange(ordered[place], before if forwards else after, ordered)
    found = {part: BoxPosition(place, row) for place, parts in ordered.items() for row, part in enumerate(parts)}
    boxes = {part: place for part, place in found.items() if part in column}
    return Picture(boxes, {edge: [found[stop] for stop in way[1:-1]] for edge, way in ways.items() if len(way) > 2})


def _between_boxes(sources: Sequence[str], edges: Sequence[Edge]) -> list[Edge]:
    """The edges with all sources as one box, each pair once."""
    boxes = [(INGRESS if producer in sources else producer, consumer) for producer, consumer in edges]
    return list(dict.fromkeys(boxes))


def _columns(segments: Sequence[str], sinks: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """The longest way from the sources. Sinks share the last column, so that results end at one side."""
    column = {INGRESS: 0, **dict.fromkeys(segments, 1)}
    for _ in segments:
        moved = False
        for producer, consumer in edges:
            if consumer in column and column[consumer] <= column.get(producer, 0):
                column[consumer] = column[producer] + 1
                moved = True
        if not moved:
            break
    last = max(column.values()) + 1
    return {**column, **dict.fromkeys(sinks, last)}


def _way(edge: Edge, column: Mapping[str, int]) -> list[str]:
    """From box to box, with a stop in each column between them; names of parts have no blanks."""
    left, right = edge
    return [left, *(f"{left} {right} {place}" for place in range(column[left] + 1, column[right])), right]


def _neighbours(pairs: Sequence[Edge]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for part, other in pairs:
        out.setdefault(part, []).append(other)
    return out


def _arrange(parts: list[str], beside: Mapping[str, list[str]], ordered: Mapping[int, list[str]]) -> None:
    """Order one column by the middle of its neighbours; what has none stays where it is."""
    height = {part: place / max(1, len(column) - 1) for column in ordered.values() for place, part in enumerate(column)}
    middle = {
        part: sum(height[other] for other in beside[part]) / len(beside[part]) if beside.get(part) else height[part]
        for part in parts
    }
    parts.sort(key=lambda part: middle[part])
