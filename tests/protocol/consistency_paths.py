"""What can be expected of a simulated cluster in which nothing changes any more: which results get to the sinks.

A replica has a stable path if each of its inputs comes from one that has; it has a tentative one if it may go on
without some of them and any input comes at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Any

from protocol.cluster_effects import SETTINGS
from protocol.consistency_model import AvailableCluster
from protocol.consistency_schedules import UNENDING, Choose, pick_availability, shapes
from protocol.sim_programs import Lane, lane_of
from protocol.sim_tentative import Reached
from unbroken.protocol.values.consistency import Policy, Reconcile
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS


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


def replica_paths(cluster: AvailableCluster) -> dict[ReplicaId, Path]:
    """The best that each replica can give."""
    found: dict[ReplicaId, Path] = {}
    for part in cluster.topology.segments:  # in the order in which data passes them
        for shard in cluster.topology.shards(part):
            for replica in cluster.store.layout.full(shard):
                found[replica] = _path(cluster, replica, found)
    return found


def paths(cluster: AvailableCluster) -> dict[Lane, Path]:
    """The best that each sink can get of each of its streams.

    Where a whole shard is out of reach of whoever cuts the sources, and not all that read from it go on without it,
    sources are held: what it has yet to process has to be kept for it, and that is bounded.
    """
    topology, found = cluster.topology, replica_paths(cluster)
    heard = {replica: path for replica, path in found.items() if _is_heard(cluster, replica)}
    known = {shard: _best(shard, heard) for part in topology.segments for shard in topology.shards(part)}
    sinks = {lane_of(stream): stream.producer for stream in topology.streams if topology.is_sink(stream.consumer)}
    for shard, path in known.items():
        consumers = [stream.consumer for stream in topology.outputs(shard)]
        if path is Path.NONE and any(known.get(consumer, Path.NONE) is Path.NONE for consumer in consumers):
            return dict.fromkeys(sinks, Path.NONE)
    return {lane: _best(shard, found) for lane, shard in sinks.items()}


def _best(shard: ShardId, found: Mapping[ReplicaId, Path]) -> Path:
    return max((path for replica, path in found.items() if replica.shard == shard), default=Path.NONE)


def _is_heard(cluster: AvailableCluster, replica: ReplicaId) -> bool:
    """Whether the leader of the ingress hears of a replica, at first or at second hand."""
    node, sync = cluster.store.layout.placement[replica], cluster.store.sync
    return any(linked(cluster, node, member) and linked(cluster, member, sync.leader) for member in sync.members)


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


# --- failures that stay as they are ---------------------------------------------------------------------


class StaticCluster(AvailableCluster):
    """A cluster whose layout does not change, whatever happens to its nodes."""

    gate_wait_ms = 150.0

    def may_forget(self, _name: NodeId) -> bool:
        return False


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


def pick_static(choose: Choose) -> StaticCluster:
    """A small random flow all of whose segments go on without missing input, in a cluster whose work takes time."""
    shape = shapes(choose)[choose(5)]
    policies = (Policy.PROCESS, Policy.DELAY)
    fork = choose(2) == 0
    available = {
        part: replace(
            pick_availability(choose, Reconcile.FORK if fork else None),
            max_delay_ms=100.0 + 50 * choose(3),
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
        pulse_min_ms=40,
        single_delivery=choose(4) == 0,
        ack_every=1 + choose(3),
        standing_ms=10_000 if choose(3) == 0 else 0,
    )
    times: dict[str, Any] = {"cost_ms": 5.0 * choose(2), "fork_ms": 15.0 * choose(2)}
    return StaticCluster(topology, 2 + choose(3), UNENDING, settings, **times)


def break_some(cluster: AvailableCluster, rng: random.Random) -> None:
    """A few failures at once, which leave a member of the ingress."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        kinds = ["part"] * 3 + ["kill"] + ["leave"] * (4 if cluster.topology.bucketed else 0)
        kind = rng.choice(kinds)
        faults = [fault for fault in cluster.faults() if fault[0] == kind]
        if kind == "kill":
            alive = cluster.store.sync.members & cluster.nodes.keys()
            faults = [fault for fault in faults if alive - {fault[1]}]
        if faults:
            cluster.perform(rng.choice(faults))


def run_static(seed: int, pick: Callable[[Choose], StaticCluster] = pick_static) -> tuple[StaticCluster, Path]:
    """Some things fail and stay so for a while: whoever has a stable path gets stable results, whoever has a tentative
    one gets some, in time. Then all heals. The best path that there was."""
    rng = random.Random(seed)
    cluster = pick(rng.randrange)
    try:
        cluster.run_to(300)
        break_some(cluster, rng)
        bound = bound_ms(cluster)
        cluster.run_to(cluster.now + bound + 300)
        best = paths(cluster)
        _check_delays(cluster, best, bound)
        cluster.recover_all()
        goes_on = all(how.reconcile is Reconcile.FORK for how in cluster.topology.availability.values())
        if goes_on and max(best.values()) is not Path.NONE:
            cluster.run_to(cluster.now + 1)
            _check_delays(cluster, dict.fromkeys(best, Path.TENTATIVE), bound)
        cluster.pulses = max(entry.pulse for entry in cluster.entries.values()) + 3
        cluster.settle()
    except Exception as error:
        raise AssertionError(f"run_static({seed}): {error}") from error
    return cluster, max(best.values())


def _check_delays(cluster: AvailableCluster, best: dict[Lane, Path], bound: float) -> None:
    """What is cut from this moment on gets to the sinks in time."""
    start, end = cluster.now, cluster.now + bound + 200
    cluster.run_to(end + bound)
    pulses = {pulse: ms for pulse, ms in cluster.cut_ms.items() if start <= ms <= end}
    if max(best.values()) is not Path.NONE:
        assert len(pulses) >= 2, f"only {pulses} are cut although there is a path: {best}"
    for lane, path in best.items():
        reached = cluster.sink.reached.get(lane, Reached())
        found = reached.stable if path is Path.STABLE else reached.any
        for pulse, cut_ms in pulses.items() if path is not Path.NONE else ():
            assert pulse in found, f"pulse {pulse} has not come to {lane}: {path.name} after {bound} ms"
            took_ms = found[pulse] - cut_ms
            assert took_ms <= bound, f"pulse {pulse} took {took_ms} ms to {lane}: {path.name}"
