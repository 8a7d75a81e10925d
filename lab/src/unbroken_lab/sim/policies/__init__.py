"""What a simulated node does for single policies: one module for each policy that has instructions of its own.

A module has the name of the policy's package and a function ``build``. Nothing else in the simulator knows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unbroken.protocol.registry import counterparts
from unbroken.protocol.values.ids import ShardId
from unbroken.protocol.vocabulary import PolicyEffects

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


class SimulatedPolicy(PolicyEffects):
    """What a simulated node does for one policy; each one also has the methods of the policy's interface."""

    def dropped(self, shard: ShardId) -> None:
        """The replica of a shard is not wanted here any longer."""

    def ordered(self, shard: ShardId) -> None:
        """There may be something new in the order log of a shard."""

    def back_in_reach(self) -> None:
        """The store can be reached once more; what it has told others meanwhile was missed."""


def build(process: NodeProcess) -> Sequence[SimulatedPolicy]:
    """The parts of a simulated node for the policies that are installed."""
    return [module.build(process) for module in counterparts(__name__)]
