"""What the colleagues of a replica have under way: small records of unit numbers, shared instead of the units.

The shards of a segment that share its load tell each other which units they have pending and which they are done with
(purged). Whoever takes a lost colleague's place knows from that what to ask the producers for again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from unbroken.errors import require
from unbroken.protocol.instructions import Instruction, Send
from unbroken.protocol.plausibility import Plausibility
from unbroken.protocol.policies.load_sharing.messages import Record, check_record
from unbroken.protocol.policy import MessageCheck, MessageHandler, Policy
from unbroken.protocol.policy_set import Policies
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.rebuilt_state import FROM_THE_FIRST, Rebuilt


@dataclass
class LoadSharing(Policy):
    """The records that are known here, one per replica of a colleague's shard.

    Invariant: records only grow, so that one that comes late or twice does no harm.
    """

    around: Surroundings
    roster: Roster
    policies: Policies
    known: dict[ReplicaId, Record] = field(default_factory=dict)

    def messages(self) -> Mapping[type[Any], MessageHandler]:
        return {Record: lambda _sender, record, _now_ms: self.received(record)}

    def checks(self, names: Plausibility) -> Mapping[type[Any], MessageCheck]:
        return {Record: partial(check_record, names)}

    def check(self) -> None:
        for replica, record in self.known.items():
            require(record.replica == replica, f"the record of {record.replica} is taken for one of {replica}")

    def received(self, record: Record) -> list[Instruction]:
        before = self.known.get(record.replica)
        if before is None or (before.purged, before.pending) < (record.purged, record.pending):
            self.known[record.replica] = record
        return []

    def known_start(self, shard: ShardId) -> tuple[int, Rebuilt] | None:
        record = self.of(shard)
        return None if record is None else (record.purged, record.rebuilt)

    def of(self, shard: ShardId) -> Record | None:
        """The newest record of a shard, whichever of its replicas has left it."""
        found = [record for replica, record in self.known.items() if replica.shard == shard]
        return max(found, key=lambda record: (record.purged, record.pending), default=None)

    def committed(self, replica: SegmentReplica) -> list[Instruction]:
        """Tell the colleagues of a replica here what it has pending, as often as it acknowledges."""
        if not self.around.topology.strategy(replica.replica.shard.part).shares:
            return []
        if replica.acknowledged != replica.committed:
            return []
        record = self._record(replica)
        return [Send(to, record) for to in self._colleagues(replica.replica)]

    def briefing(self, to: NodeId) -> list[Instruction]:
        """The same to a node that may have missed it."""
        return [
            Send(to, self._record(replica))
            for name, replica in self.roster.replicas.items()
            if self.around.topology.strategy(name.shard.part).shares and to in self._colleagues(name)
        ]

    def layout_changed(self, _placed: Collection[ReplicaId], _now_ms: float) -> list[Instruction]:
        """Records of shards that are not part of the flow any more are of no use."""
        shards = {replica.shard for replica in self.around.layout.placement}
        self.known = {replica: record for replica, record in self.known.items() if replica.shard in shards}
        return []

    def _record(self, replica: SegmentReplica) -> Record:
        purged, rebuilt = self.policies.done_with(replica.replica) or (0, FROM_THE_FIRST)
        pending = max((inbox.available for inbox in replica.inboxes.values()), default=0)
        return Record(replica.replica, purged, rebuilt, pending)

    def _colleagues(self, replica: ReplicaId) -> list[NodeId]:
        layout, mine = self.around.layout, replica.shard
        shards = [shard for shard in self.around.topology.shards(mine.part) if shard != mine]
        nodes = {node for shard in shards for node in layout.working_nodes_of(shard)}
        return sorted(nodes - {self.around.me})
