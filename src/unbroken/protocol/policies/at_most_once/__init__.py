"""At most once: a sink is never handed a unit that it may have."""

from __future__ import annotations

from unbroken.protocol.agenda import Stage
from unbroken.protocol.kernel import Kernel
from unbroken.protocol.policies.at_most_once.delivery import AtMostOnce
from unbroken.protocol.policies.at_most_once.turns import Turns

PLACEMENT = Turns()


def build(kernel: Kernel) -> AtMostOnce:
    policy = AtMostOnce(kernel.around, kernel.outboxes, kernel.sinks, kernel.generation_switch, kernel.reports)
    errand = kernel.agenda.add(Stage.BEFORE_SINKS, policy.tick)
    kernel.sinks.on_change(errand.mark)
    return policy
