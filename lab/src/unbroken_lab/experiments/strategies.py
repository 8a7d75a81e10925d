"""`unbroken bench strategies`: what each way to keep a segment available costs, and how long it takes to go on.

The measures are those of Hwang et al. (High-Availability Algorithms for Distributed Stream Processing): bytes for
availability per byte for processing, the time until a loss is noticed, until results come again, and until they come as
soon as before; for several intervals between acknowledgements or checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import psutil
from rich.table import Table

from unbroken.errors import UnbrokenError
from unbroken.node.status import overhead
from unbroken.protocol.values.ids import ShardId
from unbroken.protocol.values.strategy import Ha
from unbroken_lab.experiments.delivery import reading
from unbroken_lab.experiments.figures import STEADY_S, Phases, pulse, spread
from unbroken_lab.experiments.losses import Loss, lose
from unbroken_lab.experiments.observed import END_SLACK_S, START_S, Observed, Say, observed
from unbroken_lab.experiments.restart import measure_restart
from unbroken_lab.experiments.strategy_figures import (
    UNDETECTED,
    Recovery,
    first_notice,
    gaps,
    missing_units,
    ratios,
    spent,
    told_since,
)

STRATEGIES = tuple(ha.value for ha in Ha)
MEASURED = ShardId("counted", 0)
"""The shard that is kept available in different ways, in ``windowed.py``."""

PULSE_MS = 750
WARM_S = 25.0
SETTLE_S = 20.0
"""How much longer than planned the warm-up may take until results come within a few pulses."""

SETTLED_PULSES = 4
AFTER_S = 20.0
RESTART_S = 45.0
"""Time for which rows come after the kill, and where the node has to be started again, which takes half of it."""

LONGEST_INTERVAL = 1_000


@dataclass(frozen=True)
class StrategiesSettings:
    """What to measure; one run with a kill takes about two minutes."""

    strategies: Sequence[str] = STRATEGIES
    intervals: Sequence[int] = (1, 2, 4, 8)
    rate: int = 2_000

    @classmethod
    def parse(cls, strategies: str, intervals: str, rate: int) -> StrategiesSettings:
        """Settings as they are written on the command line."""
        names = [name.strip() for name in strategies.split(",")]
        unknown = sorted(set(names) - set(STRATEGIES))
        if unknown:
            raise UnbrokenError(f"there is no strategy {', '.join(unknown)}; use some of: {','.join(STRATEGIES)}")
        try:
            numbers = [int(number) for number in intervals.split(",")]
        except ValueError:
            numbers = []
        if not numbers or not all(1 <= number <= LONGEST_INTERVAL for number in numbers):
            raise UnbrokenError(f"{intervals!r} are no intervals; write numbers from 1 to {LONGEST_INTERVAL} as 1,2,4")
        if rate < 1:
            raise UnbrokenError(f"a rate of {rate} rows per second cannot be measured; give 1 or more")
        return cls(tuple(dict.fromkeys(names)), tuple(dict.fromkeys(numbers)), rate)


@dataclass(frozen=True)
class Quiet:
    """What a flow needed in a time in which nothing happened."""

    bytes: dict[str, int]
    rows: int
    cpu_cores: float


@dataclass(frozen=True)
class Trial:
    """One run in which a node is lost, and how long each part of it takes.

    ``start_s`` is what the first result may take: so much longer the rows come.
    """

    strategy: str
    interval: int = 1
    rate: int = 2_000
    loss: Loss = Loss.KILL
    start_s: float = START_S
    warm_s: float = WARM_S
    settle_s: float = SETTLE_S
    quiet_s: float = STEADY_S
    after_s: float = AFTER_S

    def __str__(self) -> str:
        return f"{self.strategy}, every {self.interval} units"

    @property
    def counted_s(self) -> float:
        """The quiet time in which bytes are counted: whole intervals, as each has one acknowledgement or copy."""
        interval_s = self.interval * PULSE_MS / 1000
        return interval_s * ceil(self.quiet_s / interval_s)

    @property
    def seconds(self) -> int:
        """For how long rows come: the longer results can be away, the longer."""
        after_s = self.after_s + self.loss.away_s
        if not self.loss.away_s and self.strategy == Ha.NONE.value:
            after_s = max(after_s, RESTART_S)
        return int(self.start_s + self.warm_s + self.counted_s + after_s)

    def load(self) -> dict[str, Any]:
        return {
            "STRATEGY": self.strategy,
            "INTERVAL": self.interval,
            "RATE": self.rate,
            "SECONDS": self.seconds,
            "PULSE_MS": PULSE_MS,
        }


@dataclass(frozen=True)
class Kill:
    """What was lost when, and whether it was the node that decides about the layout, which costs an election."""

    node: str
    at_ms: float
    controlled: bool


def run_strategies(settings: StrategiesSettings, say: Say) -> dict[str, Any]:
    """Every strategy with every interval, each with a cluster of its own, and a restart of plain Spark."""
    plain = measure_restart(settings.rate, WARM_S, STEADY_S, say)
    say(f"plain Structured Streaming: {plain['gap_ms']['after'] / 1000:.1f} s without results")
    runs: list[dict[str, Any]] = []
    for strategy in settings.strategies:
        for interval in settings.intervals:
            case = {"strategy": strategy, "interval": interval}
            try:
                runs.append({**case, **measure_loss(Trial(strategy, interval, settings.rate), say)})
            except UnbrokenError as error:
                # The other runs take an hour: what is there of them is worth having.
                say(f"{strategy} {interval}: failed: {error}")
                runs.append({**case, "error": str(error)})
    return {
        "rate_per_s": settings.rate,
        "pulse_ms": PULSE_MS,
        "cores": os.cpu_count(),
        "plain": plain,
        "runs": runs,
        "ratios": ratios(runs, plain["gap_ms"]["after"]),
    }


def strategies_table(result: dict[str, Any]) -> Table:
    """One line for each run, and one for plain Spark."""
    table = Table(title="What availability costs, and what it takes to go on")
    for column in ("strategy", "interval", "overhead", "cores", "detected", "results", "as before", "gap", "lost"):
        table.add_column(column, justify="left" if column == "strategy" else "right")
    for run in result["runs"]:
        if "error" in run:
            table.add_row(run["strategy"], str(run["interval"]), "failed")
            continue
        table.add_row(
            run["strategy"],
            str(run["interval"]),
            _shown(run["overhead"], "", 3),
            _shown(run["cpu_cores"], ""),
            _shown(run["detection_s"], " s"),
            _shown(run["partial_s"]["from_kill"], " s"),
            _shown(run["full_s"]["from_kill"], " s"),
            _shown(run["gap_ms"]["after"] / 1000, " s"),
            f"{run['lost']:,}",
        )
    plain = result["plain"]
    again = _shown(plain["partial_s"]["from_kill"], " s")
    table.add_row(
        "plain Spark, restarted", "", "", "", "", again, "", _shown(plain["gap_ms"]["after"] / 1000, " s"), ""
    )
    table.caption = "times from the kill; overhead: bytes for availability per byte of data; lost: rows"
    return table


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of processes and their descendants, those that have ended included."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for each in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    used = each.cpu_times()
                    total += used.user + used.system + used.children_user + used.children_system
    return total


def measure_loss(trial: Trial, say: Say) -> dict[str, Any]:
    """Run the flow once, and lose the node with the replica that works."""
    strategy, name = trial.strategy, str(trial)
    say(f"{name}: starting three nodes")
    seconds = trial.seconds
    with observed("windowed.py", trial.load(), cuttable=trial.loss is Loss.CUT) as run:
        run.settle(trial.warm_s, SETTLED_PULSES * PULSE_MS, trial.warm_s + trial.settle_s)
        quiet = _stay_quiet(run, trial.counted_s)
        kill = _lose(run, trial)
        say(f"{name}: {kill.node} lost")
        try:
            run.await_end(seconds + END_SLACK_S)
        except UnbrokenError as error:
            story = "; ".join(told_since(run.history(), kill.at_ms))
            raise UnbrokenError(f"{error}. Since the loss: {story}") from error
        history = run.history()
    detected_ms = None
    if strategy not in UNDETECTED:
        detected_ms = first_notice(history, kill.at_ms, (kill.node, str(MEASURED)))
    samples, units = run.reader.samples, [number for _, number in run.reader.units]
    phases = Phases.of(samples, kill.at_ms, float("inf"))
    figures = {
        "overhead": overhead(quiet.bytes),
        "bytes": quiet.bytes,
        "rows": quiet.rows,
        "cpu_cores": quiet.cpu_cores,
        "pulse_ms": pulse(phases.before),
        "latency_ms": {"before": spread(phases.before), "after": spread(phases.during)},
        "killed": kill.node,
        "controlled": kill.controlled,
        **Recovery.of(samples, kill.at_ms, detected_ms).to_json(),
        "gap_ms": gaps(samples, kill.at_ms),
        "lost": run.reader.lost(trial.rate * seconds),
        "missing_units": missing_units(units),
        "first_unit": min(units),
        "duplicated": run.reader.duplicated,
        "story": told_since(history, kill.at_ms),
    }
    say(f"{name}: overhead {figures['overhead']}, {figures['gap_ms']['after'] / 1000:.1f} s without results")
    return figures


def _stay_quiet(run: Observed, seconds: float) -> Quiet:
    """Let the flow run, and tell what it needed."""
    pids = [process.pid for process in run.cluster.nodes.values()]
    first, began_cpu, began = reading(run), cpu_seconds(pids), time.monotonic()
    while time.monotonic() < began + seconds:
        if run.reader.ended():
            raise UnbrokenError("the flow ended before the kill; the machine may be too busy: try again alone")
        time.sleep(0.1)
    last, used, passed = reading(run), cpu_seconds(pids) - began_cpu, time.monotonic() - began
    return Quiet(spent(first, last), last.rows - first.rows, round(used / passed, 3))


def _lose(run: Observed, trial: Trial) -> Kill:
    """Lose the node with the replica that works, the oldest of them."""
    hosts = run.layout().working_nodes_of(MEASURED)
    if not hosts:
        raise UnbrokenError(f"no node hosts {MEASURED}")
    node, controller = next(iter(hosts)), run.controller()
    began_ms = lose(run, node, trial.loss, restart=trial.strategy == Ha.NONE.value)
    return Kill(node, began_ms, node == controller)


def _shown(value: float | None, unit: str, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"
