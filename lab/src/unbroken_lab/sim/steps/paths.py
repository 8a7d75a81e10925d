"""What can be expected of a cluster in which nothing changes any more: which results get to the sinks, and when.

A replica has a stable path if each of its inputs comes from one that has; it has a tentative one if it may go on
without some of them and any input comes at all.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum

from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.consistency import InputHandling, Reconcile
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken_lab.sim.sources import Pulse
from unbroken_lab.sim.steps.available import AvailableCluster
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.failures import UNENDING, finish, pick_availability, shapes
from unbroken_lab.sim.steps.flows import Choose
from unbroken_lab.sim.steps.showing import ShownSink

BEGUN_MS = 7_500.0
"""By then a flow has processed a few pulses."""


class Path(IntEnum):
    NONE = 0
    TENTATIVE = 1
    STABLE = 2


class StaticCluster(AvailableCluster):
    """A cluster whose layout does not change, whatever happens to its nodes; its sink notes when results come."""

    forgets = False

    def __init__(
        self,
        topology: Topology,
        nodes: int,
        settings: ProtocolSettings = SETTINGS,
        cost_ms: float = 0.0,
        fork_ms: float = 0.0,
    ) -> None:
        super().__init__(topology, nodes, UNENDING, settings, 0, cost_ms, fork_ms)
        self.sink = ShownSink(self.kernel)
        self.world.sink = self.sink

    def cuts_ms(self) -> dict[int, float]:
        """When the sources were cut, by pulse."""
        entries = self.world.entries.values()
        return {entry.pulse: Pulse.of(entry).cut_ms for entry in entries if entry.pulse}

    def sinks(self) -> list[StreamId]:
        return [stream for stream in self.topology.streams if self.topology.is_sink(stream.consumer)]


def linked(cluster: AvailableCluster, client: NodeId, server: NodeId) -> bool:
    """Whether ``client`` can ask ``server`` for units and gets them."""
    processes = [cluster.world.process(name) for name in (client, server)]
    if any(process is None or process.frozen for process in processes):
        return False
    if client == server:
        return True
    network = cluster.world.network
    found = network.connections.get((client, server))
    return found is not None and network.reaches(client, server) and network.reaches(server, client)


def replica_paths(cluster: AvailableCluster) -> dict[ReplicaId, Path]:
    """The best that each replica can give."""
    found: dict[ReplicaId, Path] = {}
    for part in cluster.topology.segments:  # in the order in which data passes them
        for shard in cluster.topology.shards(part):
            for replica in cluster.layout.full(shard):
                found[replica] = _path(cluster, replica, found)
    return found


def paths(cluster: AvailableCluster) -> dict[StreamId, Path]:
    """The best that each sink can get of each of its streams.

    Where a whole shard is out of reach of the node that cuts the sources, and not all that read from it go on without
    it, sources are held: what it has yet to process has to be kept for it, and that is bounded.
    """
    topology, found = cluster.topology, replica_paths(cluster)
    heard = {replica: path for replica, path in found.items() if _is_heard(cluster, replica)}
    known = {shard: _best(shard, heard) for part in topology.segments for shard in topology.shards(part)}
    sinks = {stream: stream.producer for stream in topology.streams if topology.is_sink(stream.consumer)}
    for shard, path in known.items():
        consumers = [stream.consumer for stream in topology.outputs(shard)]
        if path is Path.NONE and any(known.get(consumer, Path.NONE) is Path.NONE for consumer in consumers):
            return dict.fromkeys(sinks, Path.NONE)
    return {stream: _best(shard, found) for stream, shard in sinks.items()}


def _best(shard: ShardId, found: Mapping[ReplicaId, Path]) -> Path:
    return max((path for replica, path in found.items() if replica.shard == shard), default=Path.NONE)


def _is_heard(cluster: AvailableCluster, replica: ReplicaId) -> bool:
    """Whether the leader of the ingress hears of a replica, at first or at second hand."""
    node, sync = cluster.layout.placement[replica], cluster.world.zookeeper.sync
    return any(linked(cluster, node, member) and linked(cluster, member, sync.leader) for member in sync.members)


def _path(cluster: AvailableCluster, replica: ReplicaId, found: dict[ReplicaId, Path]) -> Path:
    node, topology = cluster.layout.placement[replica], cluster.topology
    if not linked(cluster, node, node):
        return Path.NONE
    inputs = [_input(cluster, node, stream, found) for stream in topology.inputs(replica.shard)]
    if min(inputs) is Path.STABLE:
        return Path.STABLE
    how = topology.availability.get(replica.shard.part)
    continues = how is not None and how.during_failure is not InputHandling.SUSPEND
    return Path.TENTATIVE if continues and max(inputs) is not Path.NONE else Path.NONE


def _input(cluster: AvailableCluster, node: NodeId, stream: StreamId, found: dict[ReplicaId, Path]) -> Path:
    shard = cluster.topology.host_shard(stream.producer)
    if shard == INGRESS:
        there = any(linked(cluster, node, member) for member in cluster.world.zookeeper.sync.members)
        return Path.STABLE if there and stream.producer.part not in cluster.world.sources.away else Path.NONE
    placement = cluster.layout.placement
    reachable = [r for r in cluster.layout.full(shard) if linked(cluster, node, placement[r])]
    return max((found[producer] for producer in reachable), default=Path.NONE)


# --- failures that stay as they are ---------------------------------------------------------------------


def bound_ms(cluster: AvailableCluster) -> float:
    """The delay that the segments of the longest path may have together."""
    topology, costs = cluster.topology, cluster.world.costs
    delays: dict[str, float] = {}
    for part in topology.segments:
        how = topology.availability.get(part)
        before = max((delays.get(producer, 0.0) for producer in topology.producers_of(part)), default=0.0)
        delays[part] = before + (0.0 if how is None else how.max_delay_ms) + costs.batch_ms * 3
    hedges = max(topology.replicas.values()) * cluster.world.settings.hedge_ms
    return max(delays.values()) + hedges


def pick_static(choose: Choose) -> StaticCluster:
    """A small random flow all of whose segments go on without missing input, in a cluster whose work takes time."""
    shape = shapes(choose)[choose(5)]
    policies = (InputHandling.PROCESS, InputHandling.DELAY)
    fork = choose(2) == 0
    available = {
        part: replace(
            pick_availability(choose, Reconcile.FORK if fork else None),
            max_delay_ms=2_500.0 + 1_250 * choose(3),
            alpha=(0.5, 0.8)[choose(2)],
            during_failure=policies[choose(2)],
            during_stabilization=policies[choose(2)],
        )
        for part in shape.segments
    }
    bucketed = len(shape.sources) > 1 and choose(3) > 0
    topology = replace(shape, availability=available, bucketed=bucketed, tentative_sinks=frozenset({"sink"}))
    settings = replace(
        SETTINGS,
        pulse_min_ms=1_000,
        single_delivery=choose(4) == 0,
        ack_every=1 + choose(3),
        standing_ms=250_000 if choose(3) == 0 else 0,
    )
    return StaticCluster(topology, 2 + choose(3), settings, 125.0 * choose(2), 375.0 * choose(2))


def break_some(cluster: AvailableCluster, rng: random.Random) -> None:
    """A few failures at once, which leave a member of the ingress."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        kinds = ["part"] * 3 + ["kill"] + ["leave"] * (4 if cluster.topology.bucketed else 0)
        kind = rng.choice(kinds)
        faults = [fault for fault in cluster.faults() if fault[0] == kind]
        if kind == "kill":
            alive = cluster.world.zookeeper.sync.members & set(cluster.running())
            faults = [fault for fault in faults if alive - {fault[1]}]
        if faults:
            cluster.do(rng.choice(faults))


def run_static(seed: int) -> tuple[StaticCluster, Path]:
    """Some things fail and stay so for a while: sinks with a stable path get stable results, those with a tentative one
    get some, in time. Then all heals. The best path that there was."""
    rng = random.Random(seed)
    cluster = pick_static(rng.randrange)
    try:
        cluster.run_to(BEGUN_MS)
        break_some(cluster, rng)
        bound = bound_ms(cluster)
        cluster.run_to(cluster.now_ms + bound + BEGUN_MS)
        best = paths(cluster)
        _check_delays(cluster, best, bound)
        cluster.recover_all()
        continues = all(how.reconcile is Reconcile.FORK for how in cluster.topology.availability.values())
        if continues and max(best.values()) is not Path.NONE:
            cluster.run_to(cluster.now_ms + 1)
            _check_delays(cluster, dict.fromkeys(best, Path.TENTATIVE), bound)
        finish(cluster)
    except Exception as error:
        raise AssertionError(f"run_static({seed}): {error}") from error
    return cluster, max(best.values())


def _check_delays(cluster: StaticCluster, best: dict[StreamId, Path], bound: float) -> None:
    """What is cut from this moment on gets to the sinks in time."""
    start, end = cluster.now_ms, cluster.now_ms + bound + 5_000
    cluster.run_to(end + bound)
    cuts = {pulse: ms for pulse, ms in cluster.cuts_ms().items() if start <= ms <= end}
    if max(best.values()) is not Path.NONE and len(cuts) < 2:
        raise AssertionError(f"only {cuts} are cut although there is a path: {best}")
    for stream, path in best.items():
        for pulse, cut_ms in cuts.items() if path is not Path.NONE else ():
            reached = cluster.sink.reached_ms(stream, cut_ms, stable=path is Path.STABLE)
            if reached is None:
                raise AssertionError(f"pulse {pulse} has not come to {stream}: {path.name} after {bound} ms")
            if reached - cut_ms > bound:
                raise AssertionError(f"pulse {pulse} took {reached - cut_ms} ms to {stream}: {path.name}, not {bound}")
