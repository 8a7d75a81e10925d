"""How a node's replicas and the shards of its flow stand, read off the protocol object while it rests.

Everything here is worked out when somebody asks; nothing is noted down for it while units pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.observe.status.node import ShardRedundancy
from unbroken.protocol.ingress.pause import Rest, rest_of
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.ids import ReplicaId, ShardId, generation_of
from unbroken.protocol.values.layout import INGRESS


@dataclass(frozen=True)
class Lateness:
    """How late a replica is, in ms; None where that is not known, or where nothing is to be expected."""

    lag_ms: float
    gap_ms: float | None = None
    latency_ms: float | None = None


def redundancy(protocol: NodeProtocol) -> dict[str, ShardRedundancy]:
    """For each shard: how many replicas are wanted, count, can be reached from here, and are on their way.

    The layout says since when a shard is short, as far as the controller could find out. A link that is lost is known
    here before, and also while ZooKeeper is away.
    """
    layout = protocol.layout
    out: dict[str, ShardRedundancy] = {}
    for shard in protocol.topology.placed_shards:
        wanted = _wanted(protocol, shard)
        if not wanted:
            continue
        full = layout.counted(shard) - layout.joining
        reachable = sum(1 for replica in full if _reachable(protocol, replica))
        since = layout.short_since.get(shard)
        out[str(shard)] = ShardRedundancy(
            wanted=wanted,
            full=len(full),
            reachable=reachable,
            joining=len(layout.counted(shard) & layout.joining),
            degraded=reachable < wanted or since is not None,
            short_since_ms=since,
        )
    return out


def _wanted(protocol: NodeProtocol, shard: ShardId) -> int:
    """Replicas and copies that a shard should have; none of code that comes, or whose successor has taken over."""
    topology, generation = protocol.topology, protocol.layout.generation
    later = topology.successor(shard.part)
    if generation_of(shard.part) > generation or (later is not None and generation_of(later) <= generation):
        return 0
    return topology.replicas[shard.part] + topology.strategy(shard.part).holding


def _reachable(protocol: NodeProtocol, replica: ReplicaId) -> bool:
    node = protocol.layout.placement[replica]
    here = protocol.replicas.get(replica)
    if node not in protocol.links or (here is not None and here.stopped is not None):
        return False
    return replica.shard != INGRESS or node in protocol.sync.members


def timing(protocol: NodeProtocol, replica: SegmentReplica, now_ms: float, clock_ms: float) -> Lateness:
    """How late a replica is.

    ``now_ms`` is the time by which the protocol goes, ``clock_ms`` the time of day by which the sources cut. While a
    pause keeps units from coming there is no gap, and nothing gets later.
    """
    still = rest_of(protocol.layout, protocol.policies.separate()) is Rest.STILL
    pause = protocol.layout.pause
    lag_ms = _lag_ms(replica, clock_ms if pause is None or not still else min(clock_ms, pause.since_ms))
    moved_ms = protocol.advance.moved.get(replica.replica)
    if moved_ms is None:
        return Lateness(lag_ms)
    ago_ms = max(0.0, now_ms - moved_ms)
    gap_ms = latency_ms = None
    outputs = protocol.topology.outputs(replica.replica.shard)
    if replica.final is None and not still and any(protocol.topology.is_sink(stream.consumer) for stream in outputs):
        gap_ms = round(ago_ms, 1)
    cut_ms = _cut_ms(replica)
    if cut_ms is not None and protocol.advance.reached.get(replica.replica) == replica.pulse:
        latency_ms = round(max(0.0, clock_ms - ago_ms - cut_ms), 1)
    return Lateness(lag_ms, gap_ms, latency_ms)


def _lag_ms(replica: SegmentReplica, clock_ms: float) -> float:
    """The age of the oldest unit that is here and not in a result."""
    waiting = [
        header.cut_ms
        for inbox in replica.inboxes.values()
        for header in inbox.headers.values()
        if header.pulse > replica.pulse
    ]
    return round(max(0.0, clock_ms - min(waiting)), 1) if waiting else 0.0


def _cut_ms(replica: SegmentReplica) -> int | None:
    """When the newest pulse in a replica's results was cut; None if its input is not known any more."""
    newest = 0
    for inbox in replica.inboxes.values():
        number = inbox.completing(replica.pulse)
        if number is None or inbox.pulse > replica.pulse:
            return None
        header = inbox.headers.get(number)
        newest = max(newest, inbox.cut_ms if header is None else header.cut_ms)
    return newest or None
