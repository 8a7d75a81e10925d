"""Flows whose input fails and comes back, in the simulator, where all else happens at once."""

from __future__ import annotations

from dataclasses import replace

from unbroken.protocol.values.consistency import Consistency, DelayBound
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Topology
from unbroken_lab.sim.content import is_fork
from unbroken_lab.sim.steps.available import AvailableCluster
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.paths import StaticCluster

X_MS = 5_000.0
PATIENCE_MS = 2_500.0
BOUND = DelayBound(X_MS, alpha=0.5)
JOINED = StreamId(ShardId("join", 0), ShardId("sink", 0))
LAST = StreamId(ShardId("last", 0), ShardId("sink", 0))
UNIT_MS = 200
SETTLED_MS = 10_000.0
"""By then a flow has processed a few pulses."""


def cluster_of(
    shape: Topology,
    how: DelayBound | None = BOUND,
    cost_ms: float = 0.0,
    standing: bool = False,
    nodes: int = 2,
    single: bool = False,
    pulse_ms: int = 1_000,
) -> StaticCluster:
    """A flow whose segments all have the same bound, and whose sources go their own ways.

    They close five units with a pulse of a second, and one or none with one of ``UNIT_MS``.
    """
    topology = replace(
        shape,
        availability={} if how is None else dict.fromkeys(shape.segments, how),
        bucketed=True,
        tentative_sinks=frozenset({"sink"}),
    )
    settings = replace(
        SETTINGS,
        pulse_min_ms=pulse_ms,
        pulse_start_ms=pulse_ms,
        standing_ms=250_000 if standing else 0,
        single_delivery=single,
    )
    cluster = StaticCluster(topology, nodes, settings, cost_ms=cost_ms, fork_ms=250)
    cluster.run_to(SETTLED_MS)
    return cluster


def pass_ms(cluster: AvailableCluster, ms: float) -> None:
    cluster.run_to(cluster.now_ms + ms)


def states(cluster: AvailableCluster, part: str = "join") -> set[Consistency]:
    return {watch.state for _, watch in cluster.watches() if watch.replica.replica.shard.part == part}


def forks(cluster: AvailableCluster) -> list[ReplicaId]:
    return [replica for process in cluster.world.processes() for replica in process.disk.replicas if is_fork(replica)]


def behind(cluster: StaticCluster, stream: StreamId = JOINED, *, stable: bool = False) -> int:
    """How many pulses were cut after the newest one whose results the sink shows."""
    shown = cluster.sink.newest_cut_ms(stream, stable=stable)
    return sum(cut > shown for cut in cluster.cuts_ms().values())
