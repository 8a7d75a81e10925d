"""Long work: a bar where somebody watches, plain lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from unbroken.cli import progress as module
from unbroken.cli.progress import WaitDisplay


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    console = Console(file=io.StringIO(), width=100)
    with WaitDisplay("node-2 is being drained", console) as waiting:
        waiting.show("node-2 has 3 replicas left", 0, 3)
        waiting.show("node-2 has 3 replicas left", 0, 3)
        waiting.say("totals.0#2 is placed on node-3 [not markup]")
        clock[0] = 11.0
        waiting.show("node-2 has 3 replicas left", 0, 3)
        waiting.show("node-2 has 2 replicas left", 1, 3)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "node-2 is being drained",
        "node-2 has 3 replicas left",
        "totals.0#2 is placed on node-3 [not markup]",
        "node-2 has 3 replicas left",
        "node-2 has 2 replicas left",
    ]


def test_a_bar_where_somebody_watches() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with WaitDisplay("it begins", console) as waiting:
        waiting.show("half of it is done", 1, 2)
        assert waiting._progress is not None
        waiting._progress.refresh()
        waiting.say("something happened")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "half of it is done" in text and "━" in text and "something happened" in text
