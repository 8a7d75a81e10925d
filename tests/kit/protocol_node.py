"""A node of two whose decisions are looked at event by event."""

from __future__ import annotations

from kit.topologies import chain
from unbroken.protocol.events import GateAsked
from unbroken.protocol.ingress.log import Held, InSync, ProposeInSync, Tip
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.protocol.values.recovery import StoredReplica
from unbroken.protocol.values.units import Digest, UnitHeader

SOURCE, SHARD, SINK = ShardId("source", 0), ShardId("s0", 0), ShardId("sink", 0)
INPUT, OUTPUT = StreamId(SOURCE, SHARD), StreamId(SHARD, SINK)
MINE, SIBLING = ReplicaId(SHARD, 0), ReplicaId(SHARD, 1)
FIRST, SECOND = ReplicaId(INGRESS, 0), ReplicaId(INGRESS, 1)
SETTINGS = ProtocolSettings(pulse_min_ms=100, pulse_start_ms=100, hedge_ms=50, ring_period_ms=0)


def node(me: str = "b", topology: Topology | None = None, names: tuple[str, ...] = ("a", "b")) -> NodeProtocol:
    """Of two nodes, ``b`` hosts replica 0 of the segment and replica 1 of the ingress, which ``a`` leads.

    A leader that starts begins a term of its own, so ``a`` has seen one document more.
    """
    topology = topology or chain((1,))
    layout = chained_placement(topology, {name: f"disk of {name}" for name in names})
    members = frozenset(layout.nodes_of(INGRESS))
    recovered = {replica: StoredReplica() for replica in layout.hosted(me)}
    sync = InSync(1, "a", members, 0)
    out = NodeProtocol(me, topology, layout, sync, recovered, SETTINGS, f"disk of {me}")
    for step in out.start(0):
        if isinstance(step, ProposeInSync):
            assert out.sources is not None
            out.around.sync = step.proposal
            out.sources.in_sync(step.proposal)
            for member in members - {me}:
                out.sources.received(member, Held(step.proposal.term, Tip(), 0))
    assert out.hosted() == layout.hosted(me)
    out.around.links.update(names)
    for replica in out.replicas.values():
        for feed in replica.feeds.values():
            feed.update(names)
    return out


def unit(stream: StreamId, number: int, content: int = 1) -> UnitHeader:
    return UnitHeader(stream, number, number, 0, Digest(1, content))


def ask(start: int, ticket: int = 1, deadline_ms: float = 100) -> GateAsked:
    return GateAsked(MINE, "source", start, ticket, deadline_ms)
