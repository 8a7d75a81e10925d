"""What a node does for single policies: a module or package for each policy that has something to do there.

It has the name of the policy's package, and a function ``build`` if there are instructions to carry out. Nothing else
in the node imports it: a ``FEEDER`` for the ingress, and ``SHARD_DOCUMENTS``, the documents in ZooKeeper that exist for
each shard, are looked up by the registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from kazoo.client import KazooClient

from unbroken.flow.dataflow import Dataflow
from unbroken.node.fair_queue import Sender
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.programs import Programs
from unbroken.node.replicas.queries import Queries
from unbroken.node.replicas.transfers import Transfers
from unbroken.protocol.events import Event
from unbroken.protocol.registry import counterparts
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.run import RunIdentity
from unbroken.protocol.vocabulary import PolicyEffects


class PolicyHost(Protocol):
    """The parts of a node from which policies are built; each policy is given those that it needs."""

    @property
    def name(self) -> NodeId: ...

    @property
    def flow(self) -> Dataflow: ...

    @property
    def programs(self) -> Programs: ...

    @property
    def token(self) -> str: ...

    @property
    def run(self) -> RunIdentity: ...

    @property
    def dirs(self) -> ReplicaDirs: ...

    @property
    def queries(self) -> Queries | None:
        """None before Spark has started."""

    @property
    def transfers(self) -> Transfers[Any, Path]: ...

    @property
    def zookeeper(self) -> KazooClient | None:
        """None on a node without."""

    def post(self, event: Event) -> None: ...

    def post_from(self, sender: Sender, event: Event) -> None: ...

    def room_of(self, sender: Sender, timeout_s: float) -> bool: ...


class NodePolicy(PolicyEffects):
    """What a node does for one policy; each one also has the methods of the policy's interface."""

    def dropped(self, replica: ReplicaId) -> None:
        """A replica is not wanted here any longer."""

    def kept_in_zookeeper(self) -> frozenset[str]:
        """The parts that cannot continue once ZooKeeper has lost its data."""
        return frozenset()

    def close(self) -> None:
        """End everything that was started for the policy."""


def build(host: PolicyHost) -> Sequence[NodePolicy]:
    """The parts of a node for the policies that are installed."""
    return [module.build(host) for module in counterparts(__name__)]
