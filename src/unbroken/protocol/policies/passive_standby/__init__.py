"""Passive standby: nodes hold copies of a replica's state."""

from __future__ import annotations

from unbroken.protocol.agenda import Stage
from unbroken.protocol.kernel import Kernel
from unbroken.protocol.policies.passive_standby.copies import PassiveStandby
from unbroken.protocol.policies.passive_standby.messages import Offer
from unbroken.protocol.policies.passive_standby.takeover import CopyTakesOver

VOCABULARY = (Offer,)

PLACEMENT = CopyTakesOver()


def build(kernel: Kernel) -> PassiveStandby:
    policy = PassiveStandby(kernel.around, kernel.roster, kernel.newcomers)
    kernel.agenda.add(Stage.NEWCOMERS, policy.tick, policy.wake_times_ms, lambda: bool(policy.copies))
    return policy
