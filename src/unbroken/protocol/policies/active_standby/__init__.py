"""Active standby: one replica sends, the others have everything ready."""

from __future__ import annotations

from unbroken.protocol.agenda import Stage
from unbroken.protocol.kernel import Kernel
from unbroken.protocol.policies.active_standby.standby import ActiveStandby


def build(kernel: Kernel) -> ActiveStandby:
    policy = ActiveStandby(kernel.around, kernel.outboxes)
    errand = kernel.agenda.add(Stage.BEFORE_SINKS, policy.tick)
    kernel.outboxes.on_open(errand.mark)
    return policy
