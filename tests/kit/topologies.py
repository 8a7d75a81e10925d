"""Shapes of dataflows that tests are about."""

from __future__ import annotations

from unbroken.protocol.values.layout import INGRESS, Topology


def chain(shards: tuple[int, ...], replicas: int = 2) -> Topology:
    """source > s0 > s1 > ... > sink, segment i with ``shards[i]`` shards."""
    names = [f"s{i}" for i in range(len(shards))]
    edges = list(zip(["source", *names], [*names, "sink"], strict=True))
    return Topology(
        sources=("source",),
        segments=dict(zip(names, shards, strict=True)),
        sinks=("sink",),
        edges=tuple(edges),
        replicas=dict.fromkeys([*names, INGRESS.part], replicas),
    )


def join(shards: int = 1, replicas: int = 2) -> Topology:
    """Two sources into one segment: a query with two source instances."""
    return Topology(
        sources=("left", "right"),
        segments={"join": shards},
        sinks=("sink",),
        edges=(("left", "join"), ("right", "join"), ("join", "sink")),
        replicas={"join": replicas, INGRESS.part: replicas},
    )


def diamond(shards: int = 1, replicas: int = 2) -> Topology:
    """source > a > (b, c) > d > sink."""
    return Topology(
        sources=("source",),
        segments={"a": 1, "b": shards, "c": 1, "d": 1},
        sinks=("sink",),
        edges=(("source", "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "sink")),
        replicas=dict.fromkeys(["a", "b", "c", "d", INGRESS.part], replicas),
    )


def join_of_two(replicas: int = 2) -> Topology:
    """left > a, right > b, (a, b) > join > (last > sink)."""
    return Topology(
        sources=("left", "right"),
        segments={"a": 1, "b": 1, "join": 1, "last": 1},
        sinks=("sink",),
        edges=(("left", "a"), ("right", "b"), ("a", "join"), ("b", "join"), ("join", "last"), ("last", "sink")),
        replicas=dict.fromkeys(["a", "b", "join", "last", INGRESS.part], replicas),
    )
