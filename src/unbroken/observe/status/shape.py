"""The shape of a flow: its parts and how they are connected; the same from every node, and before the flow runs."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from unbroken.protocol.values.layout import Topology


class SegmentShape(Struct, frozen=True, kw_only=True):
    """A segment of a flow."""

    shards: int
    """Shards that it is split into."""
    ha: str
    """Its strategy for high availability."""
    replicas: int
    """Replicas of each shard that run."""


class SinkShape(Struct, frozen=True, kw_only=True):
    """A sink of a flow."""

    client: bool
    """Whether subscribers read it, instead of nodes writing it."""


class FlowShape(Struct, frozen=True, kw_only=True):
    """The parts of a flow and their connections."""

    name: str
    """The name of the flow."""
    sources: tuple[str, ...]
    """Its sources."""
    segments: Mapping[str, SegmentShape]
    """Its segments."""
    sinks: Mapping[str, SinkShape]
    """Its sinks."""
    edges: tuple[tuple[str, str], ...]
    """Its edges: producer and consumer."""


def flow_shape(name: str, topology: Topology) -> FlowShape:
    """The shape of the flow that a topology describes."""
    return FlowShape(
        name=name,
        sources=tuple(topology.sources),
        segments={
            part: SegmentShape(shards=shards, ha=strategy.ha.value, replicas=strategy.running)
            for part, shards in topology.segments.items()
            for strategy in (topology.strategy(part),)
        },
        sinks={sink: SinkShape(client=sink in topology.client_sinks) for sink in topology.sinks},
        edges=tuple((producer, consumer) for producer, consumer in topology.edges),
    )
