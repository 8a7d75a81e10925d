"""Upstream backup: producers keep what a spare needs to rebuild the state."""

from __future__ import annotations

from unbroken.protocol.agenda import Stage
from unbroken.protocol.kernel import Kernel
from unbroken.protocol.policies.upstream_backup.backup import UpstreamBackup
from unbroken.protocol.policies.upstream_backup.instructions import BeginReplica, RebuildEffects
from unbroken.protocol.policies.upstream_backup.takeover import SpareTakesOver

VOCABULARY = (BeginReplica, RebuildEffects)

PLACEMENT = SpareTakesOver()


def build(kernel: Kernel) -> UpstreamBackup:
    policy = UpstreamBackup(
        kernel.around, kernel.roster, kernel.outboxes, kernel.hosting, kernel.newcomers, kernel.policies
    )
    kernel.agenda.add(Stage.OUTPUT, policy.tick, busy=lambda: bool(policy.causes))
    return policy
