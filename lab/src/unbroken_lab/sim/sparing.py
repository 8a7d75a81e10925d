"""Whether a simulated flow can stand a loss: what a strategy covers, at this moment, as the layout has it.

More than that is lost in any system; a run in which it happens says nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.strategy import Ha
from unbroken_lab.sim.world import World


def spares(world: World, doomed: Collection[ReplicaId]) -> bool:
    """Whether each shard can go on without these: with an intact full replica, or as its strategy has it. Of whole
    copies of a flow, one has to be intact on some node, and one log."""
    if world.topology.whole and doomed:
        shards = [shard for shard in world.topology.placed_shards if shard != INGRESS]
        left = {shard: intact(world, shard) - set(doomed) for shard in world.topology.placed_shards}
        placement = world.zookeeper.layout.placement
        copies = [{placement[replica] for replica in left[shard]} for shard in shards]
        return bool(left[INGRESS]) and bool(set.intersection(*copies))
    return all(_spared(world, replica, set(doomed)) for replica in doomed)


def intact(world: World, shard: ShardId) -> set[ReplicaId]:
    """The full replicas that are on disks that count, and at work."""
    layout, store = world.zookeeper.layout, world.zookeeper
    out = {r for r in layout.full(shard) if r not in store.stopped and on_disk(world, r) and not _stopping(world, r)}
    if shard == INGRESS:
        # Whatever is decided next, an intact member has to be in it.
        sets = [store.sync, *(step.proposal for step in store.proposals if step.replaces == store.sync.version)]
        out = {replica for replica in out if all(layout.placement[replica] in found.members for found in sets)}
    return out


def forgettable(world: World, node: NodeId) -> bool:
    """Whether the controller may take it that a node will not return, for those shards that then go on elsewhere."""
    alone = [
        replica
        for replica in world.zookeeper.layout.hosted(node)
        if world.topology.strategy(replica.shard.part).ha in (Ha.PASSIVE, Ha.UPSTREAM)
    ]
    return spares(world, alone)


def restorable(world: World, doomed: Collection[ReplicaId]) -> bool:
    """Whether each shard can go on without these: with an intact replica, or from its snapshot, if its producers, which
    have kept what follows that, are intact."""
    lost = [shard for shard in world.topology.placed_shards if not intact(world, shard) - set(doomed)]
    if INGRESS in lost:
        return False
    makers = {world.topology.host_shard(stream.producer) for shard in lost for stream in world.topology.inputs(shard)}
    return all(shard in world.snapshots.saved for shard in lost) and not makers & set(lost)


def _spared(world: World, replica: ReplicaId, doomed: set[ReplicaId]) -> bool:
    shard, layout = replica.shard, world.zookeeper.layout
    if intact(world, shard) - doomed:
        return True
    strategy = world.topology.strategy(shard.part)
    if strategy.ha is Ha.PASSIVE:
        copies = layout.holding(shard) - layout.joining - doomed
        return any(on_disk(world, copy) for copy in copies) and replica in layout.full(shard)
    if strategy.ha is not Ha.UPSTREAM or replica not in layout.full(shard):
        return False
    readers = [stream.consumer for stream in world.topology.outputs(shard)]
    readers = [reader for reader in readers if world.topology.strategy(reader.part).ha is Ha.UPSTREAM]
    if all(intact(world, reader) - doomed for reader in readers) and _kept_for(world, shard, doomed):
        return True
    nodes = {layout.placement[lost] for lost in doomed}
    return len(nodes) <= strategy.backups and _settled(world)


def _settled(world: World) -> bool:
    """Whether as many nodes may be lost as strategies say: all that relies on its producers is at work, and what was
    agreed when the layout changed last has been acknowledged through all levels."""
    topology, store = world.topology, world.zookeeper
    relying = [shard for shard in topology.placed_shards if topology.strategy(shard.part).ha is Ha.UPSTREAM]
    if not all(intact(world, shard) for shard in relying):
        return False
    streams = [stream for shard in relying for stream in topology.inputs(shard)]
    return store.layout.version == 1 or all(_owed(world, stream) > world.changed_at for stream in streams)


def _owed(world: World, stream: StreamId) -> int:
    """How far a stream has been acknowledged, so that a producer has dropped it or could."""
    producers = intact(world, world.topology.host_shard(stream.producer))
    nodes = [world.process(world.zookeeper.layout.placement[producer]) for producer in producers]
    boxes = [n.protocol.outboxes.boxes.get(stream) for n in nodes if n is not None and n.protocol is not None]
    return max((box.owed for box in boxes if box is not None), default=0)


def _kept_for(world: World, shard: ShardId, doomed: set[ReplicaId]) -> bool:
    """Whether producers that are well keep all that a shard's state can be built again from."""
    for stream in world.topology.inputs(shard):
        producers = intact(world, world.topology.host_shard(stream.producer)) - doomed
        nodes = [world.process(world.zookeeper.layout.placement[producer]) for producer in producers]
        boxes = [n.protocol.outboxes.boxes.get(stream) for n in nodes if n is not None and n.protocol is not None]
        if not any(box is not None and box.rebuilds for box in boxes):
            return False
    return True


def on_disk(world: World, replica: ReplicaId) -> bool:
    layout, store = world.zookeeper.layout, world.zookeeper
    node = layout.placement[replica]
    disk, member = world.machines[node].disk, store.members.get(node)
    if member is None or node in store.doubted or any(suspect == node for suspect, _ in store.suspicions):
        return False
    return member.disk == layout.nodes[node] == disk.identity and replica in disk.replicas


def _stopping(world: World, replica: ReplicaId) -> bool:
    """Whether a node has given a replica up, which ZooKeeper may not know yet."""
    if replica in world.zookeeper.stopping:
        return True
    process = world.process(world.zookeeper.layout.placement[replica])
    protocol = None if process is None else process.protocol
    state = None if protocol is None else protocol.replicas.get(replica)
    return state is not None and state.stopped is not None
