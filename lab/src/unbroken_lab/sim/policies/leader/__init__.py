"""How a simulated node deals with order logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unbroken.protocol.policies.leader.instructions import FollowOrders, Lead, OrderEffects, Publish
from unbroken.protocol.values.ids import ShardId
from unbroken_lab.sim.policies import SimulatedPolicy
from unbroken_lab.sim.policies.leader.orders import Orders

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


class SimulatedOrders(SimulatedPolicy, OrderEffects):
    """Hands what is asked of it to what reads and writes the simulated logs."""

    def __init__(self, process: NodeProcess) -> None:
        self._orders = Orders(process)

    def follow_orders(self, step: FollowOrders) -> None:
        self._orders.follow(step)

    def lead(self, step: Lead) -> None:
        self._orders.ask(step)

    def publish(self, step: Publish) -> None:
        self._orders.ask(step)

    def dropped(self, shard: ShardId) -> None:
        self._orders.forget(shard)

    def ordered(self, shard: ShardId) -> None:
        self._orders.look(shard)

    def back_in_reach(self) -> None:
        self._orders.look_at_all()


def build(process: NodeProcess) -> SimulatedOrders:
    return SimulatedOrders(process)
