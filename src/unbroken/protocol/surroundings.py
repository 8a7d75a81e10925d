"""What a node knows of the flow and of the nodes around it: the facts that every part looks at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.ingress_log import InSync
from unbroken.protocol.values.layout import INGRESS, Layout, Topology


class DeclaredFlow(Protocol):
    """The flow as it is declared, for parts that look at nothing else."""

    @property
    def topology(self) -> Topology: ...


@dataclass
class Surroundings:
    """The documents that a node works by, whom it can reach, and what time it is.

    What handles documents and links changes it before any part is asked; parts only look, except that they add to
    ``counters`` and ``traffic``, and that hosting a replica makes it one that is ``serving``. ``links`` are the nodes
    that messages can be sent to, ``seen_ms`` is the time of the event that is being handled.

    Invariant: ``layout`` and ``sync`` only get newer.
    """

    me: NodeId
    topology: Topology
    layout: Layout
    sync: InSync
    settings: ProtocolSettings
    disk: str = ""
    links: set[NodeId] = field(default_factory=set)
    serving: set[ReplicaId] = field(default_factory=set)
    seen_ms: float = 0.0
    counters: Counter[str] = field(default_factory=Counter)
    traffic: Counter[str] = field(default_factory=Counter)

    def placed_here(self) -> list[ReplicaId]:
        """What the layout wants here; a layout that knows another disk under this name means that one."""
        return self.layout.hosted(self.me) if self.layout.nodes.get(self.me) == self.disk else []

    def may_count(self, replica: ReplicaId) -> bool:
        """Whether the layout counts a replica, or a later one may: others can be ahead of this node."""
        return replica in self.layout.placement or replica.index >= self.layout.next_index.get(replica.shard, 0)

    def producers(self, stream: StreamId) -> set[NodeId]:
        """Where a stream comes from. The in-sync set has the last word on who cuts the sources, so a member that
        only the layout has given up is still listened to."""
        shard = self.topology.host_shard(stream.producer)
        return set(self.layout.working_nodes_of(shard)) | (self.sync.members if shard == INGRESS else set())

    def concerned(self, shard: ShardId) -> set[NodeId]:
        """The other nodes with a replica of ``shard``, or of the one that takes its place."""
        later = self.topology.successor(shard.part)
        nodes = set(self.layout.working_nodes_of(shard))
        if later is not None:
            nodes |= set(self.layout.working_nodes_of(ShardId(later, shard.index)))
        return nodes - {self.me}
