"""Tests of your own flows with faults in them: `run_with_faults`, `assert_same_as_fault_free`, marks in the data.

Names are loaded when they are first used, so that importing this starts nothing and costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unbroken.testing.execution import RunFailed, run_with_faults
    from unbroken.testing.faults import (
        ClockStep,
        DiskFull,
        Fault,
        Freeze,
        Kill,
        Partition,
        Restart,
        SlowDisk,
        SourceFails,
        Wipe,
    )
    from unbroken.testing.marks import kill_here, mark, pause_here
    from unbroken.testing.result import Run
    from unbroken.testing.verdict import Different, assert_same_as_fault_free
    from unbroken.testing.warm.pool import WarmCluster

__all__ = [
    "ClockStep",
    "Different",
    "DiskFull",
    "Fault",
    "Freeze",
    "Kill",
    "Partition",
    "Restart",
    "Run",
    "RunFailed",
    "SlowDisk",
    "SourceFails",
    "WarmCluster",
    "Wipe",
    "assert_same_as_fault_free",
    "kill_here",
    "mark",
    "pause_here",
    "run_with_faults",
]

_HOMES = {
    "ClockStep": "faults",
    "Different": "verdict",
    "DiskFull": "faults",
    "Fault": "faults",
    "Freeze": "faults",
    "Kill": "faults",
    "Partition": "faults",
    "Restart": "faults",
    "Run": "result",
    "RunFailed": "execution",
    "SlowDisk": "faults",
    "SourceFails": "faults",
    "WarmCluster": "warm.pool",
    "Wipe": "faults",
    "assert_same_as_fault_free": "verdict",
    "kill_here": "marks",
    "mark": "marks",
    "pause_here": "marks",
    "run_with_faults": "execution",
}


def __getattr__(name: str) -> Any:
    """The public names, on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'unbroken.testing' has no attribute {name!r}")
    return getattr(import_module(f"unbroken.testing.{_HOMES[name]}"), name)
