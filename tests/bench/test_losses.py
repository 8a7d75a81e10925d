"""The ways to lose a node: what is done to its process, in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from unbroken_lab.experiments import losses
from unbroken_lab.experiments.losses import Loss, lose


class Recorded:
    """Stands for a node's process and for all else that is asked to do something."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.done.append(name)


@pytest.mark.parametrize(
    ("loss", "restart", "expected"),
    [
        (Loss.KILL, False, ["kill"]),
        (Loss.KILL, True, ["kill", "restart"]),
        (Loss.FREEZE, True, ["freeze", "thaw"]),
        (Loss.CUT, True, ["isolate", "heal_all"]),
        (Loss.RESTART, False, ["stop", "start_node"]),
    ],
)
def test_a_node_is_lost(monkeypatch: pytest.MonkeyPatch, loss: Loss, restart: bool, expected: list[str]) -> None:
    monkeypatch.setattr(losses, "AWAY_S", 0.05)
    one = Recorded()
    cluster = SimpleNamespace(nodes={"node-1": one}, start_node=one.start_node)
    reader = SimpleNamespace(ended=lambda: False)
    run: Any = SimpleNamespace(cluster=cluster, reader=reader, links=one, kill=one.kill, restart=one.restart)
    assert lose(run, "node-1", loss, restart=restart) > 0
    assert one.done == expected


@pytest.mark.parametrize(("loss", "expected"), [(Loss.FREEZE, ["freeze", "thaw"]), (Loss.CUT, ["isolate", "heal_all"])])
def test_a_node_that_is_away_comes_back_whatever_happens(loss: Loss, expected: list[str]) -> None:
    def ended() -> bool:
        raise ValueError("the results ended")

    one = Recorded()
    cluster, reader = SimpleNamespace(nodes={"node-1": one}), SimpleNamespace(ended=ended)
    run: Any = SimpleNamespace(cluster=cluster, reader=reader, links=one)
    with pytest.raises(ValueError, match="ended"):
        lose(run, "node-1", loss, restart=False)
    assert one.done == expected
