"""The simulated cluster with whole copies of the dataflow: what may be lost, and what is asserted about copies."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from protocol.cluster_effects import SimNode
from protocol.cluster_model import Cluster
from protocol.schedules import pick_settings, pick_topology
from unbroken.protocol.instructions import Instruction, Send
from unbroken.protocol.messages import Subscribe
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout, Topology


def segments_of(topology: Topology) -> list[ShardId]:
    return [shard for shard in topology.placed_shards if shard != INGRESS]


def copy_on(layout: Layout, node: NodeId) -> set[ReplicaId]:
    return {replica for replica in layout.hosted(node) if replica.shard != INGRESS}


class WholeCluster(Cluster):
    """Faults leave one intact copy on some node, and one intact log. Asserted at each step: input comes from the own
    node alone, copies are promoted as wholes, and given up as wholes as long as another one is intact."""

    def spares(self, doomed: list[ReplicaId]) -> bool:
        if not doomed:
            return True
        copies = [node for node in self.store.layout.nodes if self.whole(node, doomed)]
        return bool(copies) and bool(self._intact(INGRESS) - set(doomed))

    def whole(self, node: NodeId, doomed: Collection[ReplicaId] = ()) -> bool:
        """Whether the disk of a node that counts as present has a whole copy, without these."""
        layout = self.store.layout
        shards = segments_of(self.topology)
        return all(layout.replica_on(node, shard) in self._intact(shard) - set(doomed) for shard in shards)

    def _has_copy(self, node: NodeId) -> bool:
        """Whether a node that is in sight has the state of a full copy, perhaps of one that has stopped unseen."""
        layout = self.store.layout
        found = [layout.replica_on(node, shard) for shard in segments_of(self.topology)]
        return all(r is not None and r in layout.full(r.shard) and self._on_disk(r) for r in found)

    def _carry_out(self, node: SimNode, step: Instruction, payload: int | None) -> None:
        if isinstance(step, Send) and isinstance(step.message, Subscribe):
            assert step.to == node.me, f"{node.me} asks {step.to} for {step.message.stream}"
        super()._carry_out(node, step, payload)

    def do_control(self) -> None:
        before = self.store.layout
        intact = [node for node in before.nodes if self.whole(node)]
        super().do_control()
        after = self.store.layout
        assert not intact or any(self._has_copy(node) for node in after.nodes), f"no copy is left of {intact}"
        for node in before.nodes:
            promoted = (before.joining - after.joining) & copy_on(after, node)
            if promoted:
                assert not after.joining & copy_on(after, node), f"only {promoted} were promoted on {node}"
                shards = {replica.shard for replica in after.hosted(node)}
                assert shards == set(self.topology.placed_shards), f"{node} counts with {shards}"
            had, has = copy_on(before, node), copy_on(after, node)
            assert had <= has or not had & has or not intact, f"{node} loses {had - has} and keeps {had & has}"

    def check(self) -> None:
        super().check()
        layout = self.store.layout
        for name, node in self.nodes.items():
            for replica in node.protocol.replicas.values():
                if replica.replica not in layout.full(replica.replica.shard) or replica.stopped is not None:
                    continue
                for stream, inbox in replica.inboxes.items():
                    box = node.protocol.outboxes.boxes.get(stream)
                    own = layout.replica_on(name, self.topology.host_shard(stream.producer))
                    if box is None or box.muted or node.protocol.outboxes.owners[stream] != own:
                        continue
                    assert box.base <= inbox.available, f"{name} has dropped unit {inbox.available + 1} of {stream}"

    def shortage(self) -> str | None:
        found = super().shortage()
        if found is not None:
            return found
        layout, shards = self.store.layout, set(self.topology.placed_shards)
        for node in layout.placement.values():
            if {replica.shard for replica in layout.hosted(node)} != shards:
                return f"{node} has no whole copy: {layout.hosted(node)}"
        return None


def pick_copies(choose: Callable[[int], int]) -> WholeCluster:
    """A small random dataflow in 2 or 3 copies, on 2 to 4 nodes and up to 2 standbys."""
    topology, nodes = pick_topology(choose)
    settings = replace(pick_settings(choose), ack_every=1 + choose(2))
    whole = replace(topology, whole=True)
    return WholeCluster(whole, nodes, 4 + choose(9), settings, standbys=choose(3), transfers=1 + choose(3))
