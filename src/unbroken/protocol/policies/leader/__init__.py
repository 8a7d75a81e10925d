"""Leader ordering: an elected replica decides the cuts and publishes them to an order log."""

from __future__ import annotations

from unbroken.protocol.agenda import Stage
from unbroken.protocol.kernel import Kernel
from unbroken.protocol.policies.leader.instructions import FollowOrders, Lead, OrderEffects, Publish
from unbroken.protocol.policies.leader.leadership import Leadership
from unbroken.protocol.policies.leader.orders import LeaderKnown, Ordered, OrderRefused, OrdersLost

VOCABULARY = (Ordered, LeaderKnown, OrderRefused, OrdersLost, FollowOrders, Lead, Publish, OrderEffects)


def build(kernel: Kernel) -> Leadership:
    policy = Leadership(kernel.around, kernel.roster)
    kernel.agenda.add(Stage.INPUT, policy.tick, policy.wake_times_ms, lambda: bool(policy.led))
    return policy
