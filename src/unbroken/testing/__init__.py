"""Tests of your own flows with faults in them: `run_with_faults`, `assert_same_as_fault_free`, marks in the data.

Names are loaded when they are first used, so that importing this starts nothing and costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unbroken.testing.faults import Fault, Freeze, Kill, Partition, SourceFails
    from unbroken.testing.marks import kill_here, mark, pause_here
    from unbroken.testing.pool import WarmCluster
    from unbroken.testing.result import Run
    from unbroken.testing.running import RunFailed, run_with_faults
    from unbroken.testing.verdict import Different, assert_same_as_fault_free

__all__ = [
    "Different",
    "Fault",
    "Freeze",
    "Kill",
    "Partition",
    "Run",
    "RunFailed",
    "SourceFails",
    "WarmCluster",
    "assert_same_as_fault_free",
    "kill_here",
    "mark",
    "pause_here",
    "run_with_faults",
]

_HOMES = {
    "Different": "verdict",
    "Fault": "faults",
    "Freeze": "faults",
    "Kill": "faults",
    "Partition": "faults",
    "Run": "result",
    "RunFailed": "running",
    "SourceFails": "faults",
    "WarmCluster": "pool",
    "assert_same_as_fault_free": "verdict",
    "kill_here": "marks",
    "mark": "marks",
    "pause_here": "marks",
    "run_with_faults": "running",
}


def __getattr__(name: str) -> Any:
    """The public names, on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'unbroken.testing' has no attribute {name!r}")
    return getattr(import_module(f"unbroken.testing.{_HOMES[name]}"), name)
