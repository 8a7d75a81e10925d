"""What a person sees while the demonstration runs: one panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from unbroken.observe.status.node import NodeState, NodeStatus, ReplicaState

STORY_SHOWN = 6
REFRESH_S = 0.5
PLAIN_LINE_S = 5.0
"""Outside a terminal a line of figures is printed this often."""


@dataclass(frozen=True)
class View:
    """The figures of one moment; None where there is none yet, and no total before packets flow."""

    headline: str
    elapsed_s: float = 0.0
    total_s: float = 0.0
    rows_in: int = 0
    rows_out: int = 0
    pulse_ms: float | None = None
    latency_ms: float | None = None
    nodes: tuple[tuple[str, str], ...] = field(default_factory=tuple)


class Screen:
    """Shows views and tells the story; a context manager, so that the terminal is always given back."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._story: deque[str] = deque(maxlen=STORY_SHOWN)
        self._view = View("starting")
        self._shown_s = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live = Live(self._panel(), console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, sentence: str) -> None:
        """Add a sentence to the story."""
        line = f"{time.strftime('%H:%M:%S')} {sentence}"
        self._story.append(line)
        if self._live is None:
            self._console.print(line, highlight=False, markup=False)
        else:
            self._refresh()

    def show(self, view: View) -> None:
        """Show the figures, as often as makes sense."""
        changed = view.headline != self._view.headline
        self._view = view
        now = time.monotonic()
        if not changed and now - self._shown_s < (REFRESH_S if self._live is not None else PLAIN_LINE_S):
            return
        self._shown_s = now
        if self._live is not None:
            self._refresh()
        else:
            self._console.print(_line(view), highlight=False, markup=False, soft_wrap=True)

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)

    def _panel(self) -> Panel:
        view = self._view
        figures = Table.grid(padding=(0, 3))
        for _ in range(5):
            figures.add_column(justify="right")
        figures.add_row(*(Text(name, style="dim") for name, _ in _figures(view)))
        figures.add_row(*(Text(value, style="bold") for _, value in _figures(view)))
        nodes = Table.grid(padding=(0, 2))
        for name, replicas in view.nodes:
            nodes.add_row(Text(name, style="bold"), Text(replicas))
        story = Text("\n".join(self._story), style="dim")
        return Panel(Group(figures, Text(), nodes, Text(), story), title=f"netmon: {view.headline}")


def describe_node(state: NodeStatus | None) -> str:
    """One line about a node: what it hosts, from its status; None if it has not reported any."""
    if state is None or not state.running:
        return (NodeState.STARTING if state is None else state.state).value
    hosted = [
        f"{replica.replica}{' (stopped)' if replica.state is ReplicaState.STOPPED else ''}"
        for replica in state.replicas
    ]
    if state.ingress is not None:
        hosted.insert(0, "ingress (leads)" if state.leading else "ingress")
    return ", ".join(hosted)


def _figures(view: View) -> list[tuple[str, str]]:
    return [
        ("elapsed", f"{view.elapsed_s:.0f} of {view.total_s:.0f} s" if view.total_s else "-"),
        ("rows in", f"{view.rows_in:,}"),
        ("results out", f"{view.rows_out:,}"),
        ("pulse", "-" if view.pulse_ms is None else f"{view.pulse_ms:.0f} ms"),
        ("latency p50", "-" if view.latency_ms is None else f"{view.latency_ms:.0f} ms"),
    ]


def _line(view: View) -> str:
    if not view.total_s:
        return view.headline
    return f"{view.headline}: " + ", ".join(f"{name} {value}" for name, value in _figures(view))
