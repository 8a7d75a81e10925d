"""What can be expected of a simulated cluster in which nothing changes any more: which results get to the sinks.

A replica has a stable path if each of its inputs comes from one that has; it has a tentative one if it may go on without
some of them and any input comes at all.
"""

from __future__ import annotations

from enum import IntEnum

from protocol.consistency_model import AvailableCluster
from protocol.sim_programs import Lane, lane_of
from unbroken.protocol.consistency import Policy
from unbroken.protocol.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.layout import INGRESS


class Path(IntEnum):
    NONE = 0
    TENTATIVE = 1
    STABLE = 2


def linked(cluster: AvailableCluster, client: NodeId, server: NodeId) -> bool:
    """Whether ``client`` can ask ``server`` for units and gets them."""
    if not cluster.runs(client) or not cluster.runs(server):
        return False
    exchange = cluster.exchanges.get((client, server))
    return exchange is not None and exchange.alive and not exchange.stalled


def paths(cluster: AvailableCluster) -> dict[Lane, Path]:
    """The best that each sink can get of each of its streams."""
    topology, found = cluster.topology, {}
    for part in topology.segments:  # in the order in which data passes them
        for shard in topology.shards(part):
            for replica in cluster.store.layout.full(shard):
                found[replica] = _path(cluster, replica, found)
    sinks = [stream for stream in topology.streams if topology.is_sink(stream.consumer)]
    out: dict[Lane, Path] = {}
    for stream in sinks:
        best = max(found[replica] for replica in cluster.store.layout.full(stream.producer))
        if best is Path.TENTATIVE and stream.consumer.part not in topology.tentative_sinks:
            best = Path.NONE
        out[lane_of(stream)] = best
    return out


def _path(cluster: AvailableCluster, replica: ReplicaId, found: dict[ReplicaId, Path]) -> Path:
    node, topology = cluster.store.layout.placement[replica], cluster.topology
    if not cluster.runs(node):
        return Path.NONE
    inputs = [_input(cluster, node, stream, found) for stream in topology.inputs(replica.shard)]
    if min(inputs) is Path.STABLE:
        return Path.STABLE
    how = topology.availability.get(replica.shard.part)
    goes_on = how is not None and how.during_failure is not Policy.SUSPEND
    return Path.TENTATIVE if goes_on and max(inputs) is not Path.NONE else Path.NONE


def _input(cluster: AvailableCluster, node: NodeId, stream: StreamId, found: dict[ReplicaId, Path]) -> Path:
    layout = cluster.store.layout
    shard = cluster.topology.host_shard(stream.producer)
    if shard == INGRESS:
        there = any(linked(cluster, node, member) for member in cluster.store.sync.members)
        return Path.STABLE if there and stream.producer.part not in cluster.away else Path.NONE
    reachable = [r for r in layout.full(shard) if linked(cluster, node, layout.placement[r])]
    return max((found[producer] for producer in reachable), default=Path.NONE)


def bound_ms(cluster: AvailableCluster) -> float:
    """The delay that the segments of the longest path may have together."""
    topology = cluster.topology
    delays: dict[str, float] = {}
    for part in topology.segments:
        how = topology.availability.get(part)
        before = max((delays.get(producer, 0.0) for producer in topology.producers_of(part)), default=0.0)
        delays[part] = before + (0.0 if how is None else how.max_delay_ms) + cluster.cost_ms * 3
    hedges = max(topology.replicas.values()) * cluster.settings.hedge_ms
    return max(delays.values()) + hedges


def shard_of(lane: Lane) -> ShardId:
    return ShardId(lane[0], lane[1])
