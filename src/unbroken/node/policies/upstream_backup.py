"""How a node makes place for a replica that is rebuilt from what its producers keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unbroken.node.policies import NodePolicy, PolicyHost
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.transfers import Transfers
from unbroken.protocol.policies.upstream_backup.instructions import BeginReplica, RebuildEffects


class Rebuilding(NodePolicy, RebuildEffects):
    """Makes directories for replicas that begin with nothing."""

    def __init__(self, transfers: Transfers[Any, Path], dirs: ReplicaDirs) -> None:
        self._transfers = transfers
        self._dirs = dirs

    def begin_replica(self, step: BeginReplica) -> None:
        self._transfers.begin(
            step.replica, lambda: self._dirs.begin_anew(step.replica, step.base, step.valid, step.owed)
        )


def build(host: PolicyHost) -> Rebuilding:
    return Rebuilding(host.transfers, host.dirs)
