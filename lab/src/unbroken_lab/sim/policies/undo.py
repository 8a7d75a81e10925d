"""How a simulated node undoes the tentative state of a replica."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from unbroken.errors import require
from unbroken.node.policies.undo import Undone
from unbroken.protocol.policies.undo.instructions import UndoReplica
from unbroken_lab.sim.content import Folded
from unbroken_lab.sim.policies import SimulatedPolicy

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


class SimulatedUndo(Undone, SimulatedPolicy):
    """The replicas of a simulated node that are set back."""


def build(process: NodeProcess) -> SimulatedUndo:
    return SimulatedUndo(partial(undo, process), lambda: process.hosting.queries)


def undo(process: NodeProcess, step: UndoReplica) -> None:
    """Forget the state of a replica; the input from which it is built again is there."""
    world, held = process.world, process.disk.replicas[step.replica]
    require(held.committed >= step.valid, f"{step.replica} is at {held.committed}, not {step.valid}", step.replica)
    for stream in world.topology.inputs(step.replica.shard):
        missing = [n for n in range(step.base + 1, step.valid + 1) if (stream, n) not in held.inbox]
        require(
            not missing,
            f"unit {missing[:1]} of {stream} is missing where {step.replica} is set back",
            stream,
            step.replica,
            unit=next(iter(missing), 0),
        )
    world.counts["undone"] += 1
    held.committed, held.states, held.cuts = step.base, {step.base: Folded()}, {}
    held.valid = max(step.valid, held.valid)
