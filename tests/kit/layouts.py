"""Layouts in a few words."""

from __future__ import annotations

from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import Layout


def layout(places: dict[str, str], version: int = 1) -> Layout:
    """A layout from replicas to nodes, such as ``{"totals.0#0": "node-1"}``."""
    placement = {ReplicaId.parse(replica): node for replica, node in places.items()}
    next_index = {replica.shard: 9 for replica in placement}
    return Layout(version, dict.fromkeys(places.values(), "disk"), placement, next_index)
