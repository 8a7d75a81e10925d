"""The fault vocabulary of the test kit on simulated machines: what a page does to its flow is one of its values."""

from __future__ import annotations

from unbroken.errors import UnbrokenError
from unbroken.testing.faults import EVERYTHING, ZOOKEEPER, Fault, Freeze, Kill, NodeRef, Partition, Restart, Wipe
from unbroken.testing.targets import node_name
from unbroken_lab.sim import faults as simulator
from unbroken_lab.sim.faults import Kind

BACK_S = 1.0
"""How long a process is away if a fault does not say it."""

FOREVER_S = 30 * 86_400.0
"""A node that is killed and not restarted stays dead for longer than anybody looks."""


def simulated(fault: Fault, at_ms: float) -> simulator.Fault:
    """The fault of the simulator that is this one, at a simulated time; ``after_s`` counts from then.

    UnbrokenError for those that the simulator does to a machine of its own choice (disks, clocks, sources).
    """
    match fault:
        case Kill(node=node, back_after_s=back_s) if node == ZOOKEEPER:
            return _at(fault, at_ms, Kind.ZOOKEEPER, node, back_s or BACK_S)
        case Kill(node=node, jvm=True):
            return _at(fault, at_ms, Kind.QUERY, node, BACK_S)
        case Kill(node=node, back_after_s=back_s):
            return _at(fault, at_ms, Kind.KILL, node, FOREVER_S if back_s is None else back_s)
        case Freeze(node=node, for_s=for_s, jvm=False) if node != ZOOKEEPER:
            return _at(fault, at_ms, Kind.FREEZE, node, for_s)
        case Restart(node=node):
            return _at(fault, at_ms, Kind.BLACKOUT if node == EVERYTHING else Kind.KILL, node, BACK_S)
        case Wipe(node=node):
            return _at(fault, at_ms, Kind.WIPE, node, BACK_S)
        case Partition(a=node, b=None, for_s=for_s):
            return _at(fault, at_ms, Kind.ISOLATE, node, for_s)
        case Partition(a=node, b=other, for_s=for_s) if other is not None:
            return _at(fault, at_ms, Kind.BLIND if other == ZOOKEEPER else Kind.PART, node, for_s, other)
    raise UnbrokenError(f"{fault} cannot be done to a simulated flow")


def _at(
    fault: Fault, now_ms: float, kind: Kind, node: NodeRef, length_s: float, other: NodeRef = ZOOKEEPER
) -> simulator.Fault:
    at_ms = now_ms + (fault.after_s or 0.0) * 1000
    return simulator.Fault(at_ms, kind, node_name(node), node_name(other), length_s * 1000)
