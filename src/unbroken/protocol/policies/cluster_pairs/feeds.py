"""A copy of the whole dataflow takes its input from nobody else."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from unbroken.protocol.policy import Policy
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import NodeId


@dataclass
class ClusterPairs(Policy):
    """Lets replicas of a copy take input from their own node alone.

    Others have to keep input for a newcomer all the same, because its own producer may have to be rebuilt.
    """

    around: Surroundings

    def feeders(self, nodes: Collection[NodeId]) -> Collection[NodeId] | None:
        return [node for node in nodes if node == self.around.me] if self.around.topology.whole else None

    def keepers(self) -> Collection[NodeId]:
        return (self.around.me,) if self.around.topology.whole else ()
