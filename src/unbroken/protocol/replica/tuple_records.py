"""What the colleagues of a replica have under way: small records of unit numbers, shared instead of the units.

The shards of a segment that share its load tell each other which units they have pending and which they are done with
(purged). Whoever takes a lost colleague's place knows from that what to ask the producers for again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unbroken.protocol.instructions import Instruction, Send
from unbroken.protocol.messages import Record
from unbroken.protocol.repair.upstream_backup import UNSAID
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId

if TYPE_CHECKING:
    from unbroken.protocol.machine import NodeProtocol


@dataclass
class Records:
    """The records that are known here, one per replica of a colleague's shard.

    Invariant: records only grow, so that one that comes late or twice does no harm.
    """

    node: NodeProtocol
    known: dict[ReplicaId, Record] = field(default_factory=dict)

    def received(self, record: Record) -> None:
        before = self.known.get(record.replica)
        if before is None or (before.purged, before.pending) < (record.purged, record.pending):
            self.known[record.replica] = record

    def of(self, shard: ShardId) -> Record | None:
        """The newest record of a shard, whichever of its replicas has left it."""
        found = [record for replica, record in self.known.items() if replica.shard == shard]
        return max(found, key=lambda record: (record.purged, record.pending), default=None)

    def committed(self, replica: SegmentReplica) -> list[Instruction]:
        """Tell the colleagues of a replica here what it has pending, as often as it acknowledges."""
        if not self.node.topology.strategy(replica.replica.shard.part).shares:
            return []
        if replica.acknowledged != replica.committed:
            return []
        record = self._record(replica)
        return [Send(to, record) for to in self._colleagues(replica.replica)]

    def tell(self, to: NodeId) -> list[Instruction]:
        """The same to a node that may have missed it."""
        return [
            Send(to, self._record(replica))
            for name, replica in self.node.replicas.items()
            if self.node.topology.strategy(name.shard.part).shares and to in self._colleagues(name)
        ]

    def layout_changed(self) -> None:
        """Records of shards that are not part of the flow any more are of no use."""
        shards = {replica.shard for replica in self.node.layout.placement}
        self.known = {replica: record for replica, record in self.known.items() if replica.shard in shards}

    def _record(self, replica: SegmentReplica) -> Record:
        purged, rebuilt = self.node.upstream.said.get(replica.replica, [UNSAID])[-1]
        pending = max((inbox.available for inbox in replica.inboxes.values()), default=0)
        return Record(replica.replica, purged, rebuilt, pending)

    def _colleagues(self, replica: ReplicaId) -> list[NodeId]:
        layout, mine = self.node.layout, replica.shard
        shards = [shard for shard in self.node.topology.shards(mine.part) if shard != mine]
        nodes = {node for shard in shards for node in layout.working_nodes_of(shard)}
        return sorted(nodes - {self.node.me})
