"""The ways to lose a node: which fault each is, and what follows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from unbroken.testing.faults import Fault, Freeze, Kill, Partition, Restart
from unbroken_lab.experiments.observation.losses import AWAY_S, Loss, lose

BEGAN_MS = 5_000.0


class Run:
    """Stands for a flow that is struck; a fault lasts until it was looked at twice."""

    def __init__(self, ended: bool = False) -> None:
        self.done: list[object] = []
        self.looks = 2
        self.harness = self
        self.reader = SimpleNamespace(ended=lambda: ended)

    @property
    def lasting(self) -> bool:
        self.looks -= 1
        return self.looks >= 0 and isinstance(self.done[0], Freeze | Partition)

    def strike(self, fault: Fault) -> Any:
        self.done.append(fault)
        return SimpleNamespace(at_ms=BEGAN_MS)

    def restart(self, node: str) -> None:
        self.done.append(f"restart {node}")


@pytest.mark.parametrize(
    ("loss", "restart", "expected"),
    [
        (Loss.KILL, False, [Kill("node-1")]),
        (Loss.KILL, True, [Kill("node-1"), "restart node-1"]),
        (Loss.FREEZE, True, [Freeze("node-1", AWAY_S)]),
        (Loss.CUT, True, [Partition("node-1", for_s=AWAY_S)]),
        (Loss.RESTART, False, [Restart("node-1")]),
    ],
)
def test_a_node_is_lost(loss: Loss, restart: bool, expected: list[object]) -> None:
    run: Any = Run()
    assert lose(run, "node-1", loss, restart=restart) == BEGAN_MS
    assert run.done == expected
    assert run.looks < 2, "what lasts is waited for"


def test_the_end_of_a_fault_is_not_waited_for_when_results_have_ended() -> None:
    run: Any = Run(ended=True)
    lose(run, "node-1", Loss.FREEZE, restart=False)
    assert run.looks == 1
