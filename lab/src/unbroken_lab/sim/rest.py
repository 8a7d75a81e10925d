"""What is still to come before a simulated flow is at rest: results, redundancy, and what has to be tidied up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.strategy import Ha
from unbroken_lab.sim.story import Unrest

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess
    from unbroken_lab.sim.world import World


def unfinished(world: World) -> Unrest | None:
    """What is still to be delivered, committed or taken over."""
    ended = world.ended()
    if ended is None:
        return Unrest(f"only {len(world.entries)} entries are agreed, and no last one")
    for stream in world.programs.lanes():
        last = _last_of(world, stream.producer, ended)
        done = world.sink.through(stream)
        if done < last:
            return Unrest(f"only {done} units of {stream} are delivered, not {last}", (stream,), done + 1)
    layout, wished = world.zookeeper.layout, world.zookeeper.wished
    for process in world.processes():
        for replica, query in process.engine.queries.items():
            comes = replica.shard.part in world.topology.replaces
            if replica in layout.placement and not query.stopped and not comes:
                last = _last_of(world, replica.shard, ended)
                done = query.disk.committed
                if done < last:
                    return Unrest(f"{replica} has only committed {done}, not {last}", (replica,), done + 1)
    if world.upgrades.under_way() and not world.upgrades.overtaken():
        return Unrest(f"generation {layout.generation} of {layout.generations} counts, {wished} is wished for")
    return None


def _last_of(world: World, shard: ShardId, ended: int) -> float:
    """The last unit that a shard produces; where units are not numbered by pulses, only the unit itself tells."""
    numbered = not world.topology.led and not world.topology.bucketed
    return ended if numbered else world.finals.get(shard, float("inf"))


def shortage(world: World) -> Unrest | None:
    """What is missing of the redundancy that the nodes can give."""
    layout, store, topology = world.zookeeper.layout, world.zookeeper, world.topology
    fit = {name for name in store.members if name not in store.draining and world.process(name) is not None}
    for shard in topology.placed_shards:
        if topology.successor(shard.part) is not None or shard.part in topology.replaces:
            continue  # on its way out, or not there yet
        full = {r for r in layout.full(shard) if layout.placement[r] in fit}
        healthy = {r for r in full if _hosts(world, layout.placement[r], r)}
        if len(healthy) < min(len(fit), topology.replicas[shard.part]):
            return Unrest(f"{shard} has only {sorted(str(r) for r in healthy)}", (shard,))
        copies = {r for r in layout.holding(shard) - layout.joining if layout.placement[r] in fit}
        if len(copies) < min(len(fit) - 1, topology.strategy(shard.part).holding):
            return Unrest(f"{shard} has only the copies {sorted(str(r) for r in copies)}", (shard,))
    upgrading = world.upgrades.under_way()
    away = [shard for shard, home in layout.homes.items() if home in fit and not upgrading]
    if away:
        return Unrest(f"{away[0]} is not back on {layout.homes[away[0]]}", (away[0],))
    if layout.joining and not upgrading:
        return Unrest(f"{sorted(str(r) for r in layout.joining)} are still joining", tuple(layout.joining))
    for node in layout.placement.values() if topology.whole else ():
        if {replica.shard for replica in layout.hosted(node)} != set(topology.placed_shards):
            hosted = layout.hosted(node)
            return Unrest(f"{node} has no whole copy: {[str(replica) for replica in hosted]}", tuple(hosted))
    members = set(layout.full_nodes_of(INGRESS))
    if store.sync.members == members:
        return None
    return Unrest(f"{store.sync} are in sync instead of {sorted(members)}", (INGRESS,))


def _hosts(world: World, name: NodeId, replica: ReplicaId) -> bool:
    process = world.process(name)
    return process is not None and process.protocol is not None and replica in process.protocol.hosted()


def unsettled(world: World) -> Unrest | None:
    """What is still tentative."""
    for process in world.processes():
        protocol = process.protocol
        for replica in () if protocol is None else protocol.replicas:
            found = None if protocol is None else protocol.policies.outlook(replica)
            if found is not None and not found.settled:
                text = f"{replica} on {process.name} is {found.state.value}, with the fork {found.fork}"
                return Unrest(text, (replica,))
    left = {str(stream): sorted(kept) for stream, kept in world.sink.tentative.items() if kept}
    streams = tuple(stream for stream, kept in world.sink.tentative.items() if kept)
    return Unrest(f"the sinks still have tentative results of {left}", streams) if left else None


def leftovers(world: World) -> str | None:
    """What nodes still have of replicas that are not theirs, or of units that no replica needs."""
    if world.upgrades.under_way():
        return None
    return next((found for process in world.processes() if (found := _left_on(world, process)) is not None), None)


def _left_on(world: World, process: NodeProcess) -> str | None:
    name, protocol, placed = process.name, process.protocol, world.zookeeper.layout.hosted(process.name)
    if protocol is None:
        return f"{name} has not begun"
    here = sorted([*protocol.hosted(), *protocol.policies.held()])
    outlooks = [protocol.policies.outlook(replica) for replica in protocol.replicas]
    ready = {outlook.fork for outlook in outlooks if outlook is not None and outlook.settled}
    held = [replica for replica in sorted(process.disk.replicas) if replica not in ready]
    if here != placed or held != placed:
        return f"{name} hosts {here} and holds {held}, not {placed}"
    if protocol.newcomers.joins or world.copying.of(process):
        return f"{name} is still building {[*protocol.newcomers.joins, *world.copying.of(process)]}"
    for box in protocol.outboxes.boxes.values():
        if world.topology.strategy(box.stream.consumer.part).ha in (Ha.PASSIVE, Ha.UPSTREAM):
            continue  # what follows the last copy is kept, and what a state is made of
        if len(box.headers) >= world.settings.ack_every and not box.muted:
            return f"{name} still keeps {list(box.headers)} of {box.stream} for {box.acked}"
    return None


def stuck(world: World) -> Unrest | None:
    """The first shard on the way through the flow that has not taken all its input; what follows waits for it."""
    for shard in [shard for part in world.topology.segments for shard in world.topology.shards(part)]:
        there = {r: world.where[r] for r in sorted(world.zookeeper.layout.full(shard)) if r in world.where}
        for stream in world.topology.inputs(shard):
            taken = {replica: held.taken(stream) for replica, held in there.items()}
            done = max(taken.values(), default=0)
            if done < max(world.units[stream], default=0):
                behind = [replica for replica, number in taken.items() if number == done]
                who: list[ReplicaId | ShardId] = [*behind] or [shard]
                text = f"{', '.join(map(str, who))} without unit {done + 1} of {stream}"
                return Unrest(text, (*who, stream), done + 1)
    return None
