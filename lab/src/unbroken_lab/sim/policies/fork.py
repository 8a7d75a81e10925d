"""How a simulated node forks replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unbroken.node.policies.fork import ForkFiles, ForkQueries
from unbroken.protocol.policies.fork.instructions import FeedFork, ForkReplica
from unbroken_lab.sim.disk import ReplicaDisk
from unbroken_lab.sim.policies import SimulatedPolicy

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


class SimulatedForkFiles(ForkFiles):
    """The states and the units of forks on the disk of one machine."""

    def __init__(self, process: NodeProcess) -> None:
        self._world = process.world
        self._disk = process.disk

    def copy(self, step: ForkReplica) -> None:
        held = self._disk.replicas.get(step.replica)
        if held is None:
            raise FileNotFoundError(f"{step.replica} is not here")
        copy = self._disk.replicas.setdefault(step.fork, ReplicaDisk())
        copy.committed, copy.states = step.version, {step.version: held.states[step.version]}
        if step.version in held.cuts:
            copy.cuts[step.version] = held.cuts[step.version]
        self._world.counts["forks"] += 1

    def feed(self, step: FeedFork) -> None:
        unit = self._disk.replicas[step.replica].inbox[step.stream, step.number]
        fork = self._disk.replicas.setdefault(step.fork, ReplicaDisk())
        fork.inbox[step.stream.home, step.as_number] = unit


class SimulatedForks(ForkQueries, SimulatedPolicy):
    """The forks of a simulated node."""


def build(process: NodeProcess) -> SimulatedForks:
    return SimulatedForks(SimulatedForkFiles(process), lambda: process.hosting.queries, process.post)
