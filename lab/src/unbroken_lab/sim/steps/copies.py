"""Clusters with whole copies of a dataflow: what is asserted about copies where steps are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from unbroken.errors import broken, require
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout, Topology
from unbroken_lab.sim.sparing import intact, on_disk
from unbroken_lab.sim.steps.faults import FaultyCluster
from unbroken_lab.sim.steps.flows import Choose, pick_settings, pick_topology


def segments_of(topology: Topology) -> list[ShardId]:
    return [shard for shard in topology.placed_shards if shard != INGRESS]


def copy_on(layout: Layout, node: NodeId) -> set[ReplicaId]:
    return {replica for replica in layout.hosted(node) if replica.shard != INGRESS}


class WholeCluster(FaultyCluster):
    """Asserted at each decision: copies are promoted as wholes, and given up as wholes as long as another one is
    intact. The own producer of a replica has not dropped what that needs next."""

    def start(self) -> None:
        super().start()
        self.world.zookeeper.audit = self._audit

    def _audit(self) -> Callable[[], None]:
        before = self.layout
        whole = [node for node in before.nodes if self.whole(node)]
        return lambda: self._decided(before, self.layout, whole)

    def whole(self, node: NodeId) -> bool:
        """Whether the disk of a node that counts as present has a whole copy."""
        shards = segments_of(self.topology)
        return all(self.layout.replica_on(node, shard) in intact(self.world, shard) for shard in shards)

    def _has_copy(self, node: NodeId) -> bool:
        """Whether a node that is in sight has the state of a full copy, perhaps of one that has stopped unseen."""
        layout = self.layout
        found = [layout.replica_on(node, shard) for shard in segments_of(self.topology)]
        return all(r is not None and r in layout.full(r.shard) and on_disk(self.world, r) for r in found)

    def _decided(self, before: Layout, after: Layout, whole: list[NodeId]) -> None:
        left = not whole or any(self._has_copy(node) for node in after.nodes)
        require(left, f"no copy is left of {whole}")
        for node in before.nodes:
            promoted = (before.joining - after.joining) & copy_on(after, node)
            if promoted:
                require(not after.joining & copy_on(after, node), f"only {promoted} were promoted on {node}")
                shards = {replica.shard for replica in after.hosted(node)}
                require(shards == set(self.topology.placed_shards), f"{node} counts with {shards}")
            had, has = copy_on(before, node), copy_on(after, node)
            kept = had <= has or not had & has or not whole
            require(kept, f"{node} loses {had - has} and keeps {had & has}")

    def check(self) -> None:
        super().check()
        layout = self.layout
        for name, protocol in self.protocols().items():
            for replica in protocol.replicas.values():
                if replica.replica not in layout.full(replica.replica.shard) or replica.stopped is not None:
                    continue
                for stream, inbox in replica.inboxes.items():
                    box = protocol.outboxes.boxes.get(stream)
                    own = layout.replica_on(name, self.topology.host_shard(stream.producer))
                    if box is None or box.muted or protocol.outboxes.owners[stream] != own:
                        continue
                    if box.base > inbox.available:
                        broken(
                            f"{name} has dropped unit {inbox.available + 1} of {stream}",
                            stream,
                            unit=inbox.available + 1,
                        )


def pick_copies(choose: Choose) -> WholeCluster:
    """A small random dataflow in 2 or 3 copies, on 2 to 4 nodes and up to 2 standbys."""
    topology, nodes = pick_topology(choose)
    settings = replace(pick_settings(choose), ack_every=1 + choose(2))
    whole = replace(topology, whole=True)
    return WholeCluster(whole, nodes, 4 + choose(9), settings, standbys=choose(3), transfers=1 + choose(3))
