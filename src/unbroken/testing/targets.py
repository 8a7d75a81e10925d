"""Which node a fault means: by number, by name, or by what it does at that moment."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import NodeId, ShardId, segment_of
from unbroken.protocol.values.layout import Layout
from unbroken.testing.faults import (
    EVERYTHING,
    LEADER,
    REPLICA_OF,
    ZOOKEEPER,
    Fault,
    Freeze,
    Kill,
    NodeRef,
    Partition,
    Restart,
)
from unbroken.wording import choices


@dataclass(frozen=True)
class Roles:
    """Who does what at a moment: the leader of the ingress, the layout, and the nodes that are alive."""

    leader: NodeId | None
    layout: Layout | None
    alive: Collection[NodeId]

    def find(self, node: NodeRef) -> NodeId:
        """The node that is meant; raises UnbrokenError if at this moment nobody is."""
        name = node_name(node)
        if name == LEADER:
            if self.leader is None:
                raise UnbrokenError("nobody leads the ingress at this moment")
            return self.leader
        if name.startswith(REPLICA_OF):
            return self._replica(name.removeprefix(REPLICA_OF))
        return name

    def _replica(self, what: str) -> NodeId:
        """Of the nodes with a replica one that does not lead the ingress, so that one thing goes wrong at a time."""
        if self.layout is None:
            raise UnbrokenError(f"where the replicas of {what} are is not known yet")
        nodes = [
            host
            for replica, host in sorted(self.layout.placement.items())
            if _matches(replica.shard, what) and replica not in self.layout.joining and host in self.alive
        ]
        if not nodes:
            raise UnbrokenError(f"no node that is alive has a replica of {what}")
        return next((host for host in nodes if host != self.leader), nodes[0])


def _matches(shard: ShardId, what: str) -> bool:
    return what in (segment_of(shard.part), f"{segment_of(shard.part)}.{shard.index}")


def node_name(node: NodeRef) -> str:
    """A node by the name that it has in the cluster, or its role as it was written."""
    return f"node-{node}" if isinstance(node, int) else node


def node_names(count: int, standbys: int) -> list[NodeId]:
    return [
        *(f"node-{number}" for number in range(1, count + 1)),
        *(f"standby-{number}" for number in range(1, standbys + 1)),
    ]


def _other_targets(fault: Fault) -> tuple[str, ...]:
    """What a fault can be about besides nodes by their names."""
    match fault:
        case Kill() | Freeze() | Partition():
            return (LEADER, ZOOKEEPER)
        case Restart():
            return (LEADER, EVERYTHING)
    return (LEADER,)


def refuse_unknown(faults: Iterable[Fault], nodes: Collection[NodeId], segments: dict[str, int]) -> None:
    """Raise UnbrokenError if a fault is about something that the flow does not have."""
    parts = [*segments, *(f"{name}.{shard}" for name, shards in segments.items() for shard in range(shards))]
    for fault in faults:
        for target in fault.targets():
            name = node_name(target)
            if isinstance(target, bool) or not isinstance(target, int | str):
                raise UnbrokenError(f"{fault}: {target!r} is no node; give a number, a name or a role such as 'leader'")
            if name.startswith(REPLICA_OF):
                what = name.removeprefix(REPLICA_OF)
                if what not in parts:
                    raise UnbrokenError(f"{fault}: there is no segment or shard {what!r}; {choices(parts, what)}")
            elif name not in nodes and name not in (others := _other_targets(fault)):
                known = [*nodes, *others]
                raise UnbrokenError(
                    f"{fault}: there is no node {name!r}; {choices(known, name)}, or 'replica of SEGMENT'"
                )
