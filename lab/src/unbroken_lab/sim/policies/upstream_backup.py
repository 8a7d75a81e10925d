"""How a simulated node makes place for a replica that is rebuilt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unbroken.protocol.policies.upstream_backup.instructions import BeginReplica, RebuildEffects
from unbroken_lab.sim.policies import SimulatedPolicy

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


class SimulatedRebuilding(SimulatedPolicy, RebuildEffects):
    """Makes directories for replicas that begin with nothing."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process

    def begin_replica(self, step: BeginReplica) -> None:
        self._process.transfers.begin(
            step.replica, lambda: self._process.dirs.begin_anew(step.base, step.valid, step.owed)
        )


def build(process: NodeProcess) -> SimulatedRebuilding:
    return SimulatedRebuilding(process)
