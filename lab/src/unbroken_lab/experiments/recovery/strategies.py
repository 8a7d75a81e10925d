"""`unbroken bench strategies`: what each way to keep a segment available costs, and how long it takes to continue.

The measures are those of Hwang et al. (High-Availability Algorithms for Distributed Stream Processing): bytes for
availability per byte for processing, the time until a loss is noticed, until results come again, and until they come as
soon as before; for several intervals between acknowledgements or checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar

from unbroken.errors import UnbrokenError
from unbroken.observe.status.traffic import overhead
from unbroken.protocol.values.ids import ShardId
from unbroken.protocol.values.strategy import Ha
from unbroken_lab.experiments.bars import draw_bars
from unbroken_lab.experiments.experiment import (
    Experiment,
    ReportClaim,
    ReportColumn,
    Row,
    Rows,
    Size,
    flat,
    parameter,
    parted,
)
from unbroken_lab.experiments.observation.figures import STEADY_S, Phases, pulse, spread
from unbroken_lab.experiments.observation.losses import Loss, NodeLoss, lose
from unbroken_lab.experiments.observation.observed import END_SLACK_S, START_S, Observed, Say, observed
from unbroken_lab.experiments.observation.usage import cpu_seconds, reading, spent
from unbroken_lab.experiments.recovery.restart import measure_restart
from unbroken_lab.experiments.recovery.strategy_figures import (
    PLAIN,
    UNDETECTED,
    Recovery,
    first_notice,
    gaps,
    missing_units,
    strategy_claims,
    told_since,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
QUICK_RATE = 500


@dataclass(frozen=True)
class QuietCost:
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

    def shortened(self) -> Trial:
        """As short as it can be: it shows that it runs, and measures nothing worth keeping."""
        return replace(self, rate=QUICK_RATE, start_s=20.0, warm_s=2.0, settle_s=0.0, quiet_s=3.0, after_s=6.0)

    def load(self) -> dict[str, Any]:
        return {
            "STRATEGY": self.strategy,
            "INTERVAL": self.interval,
            "RATE": self.rate,
            "SECONDS": self.seconds,
            "PULSE_MS": PULSE_MS,
        }


@dataclass(frozen=True)
class Strategies(Experiment):
    """Every strategy with every interval, each with a cluster of its own, and a restart of plain Spark."""

    name = "strategies"
    title = "What availability costs, and what it takes to continue"
    source = "unbroken bench strategies, with the measures of Hwang et al., 2003"
    columns: ClassVar = (
        ReportColumn("strategy", "strategy"),
        ReportColumn("interval", "interval"),
        ReportColumn("overhead", "overhead", digits=3),
        ReportColumn("cpu_cores", "cores", digits=2),
        ReportColumn("detection_s", "detected", " s", 2),
        ReportColumn("partial_s.from_kill", "results", " s", 2),
        ReportColumn("full_s.from_kill", "as before", " s", 2),
        ReportColumn("gap_ms.after", "gap", " s", 2, 1000),
        ReportColumn("lost", "lost", digits=0),
        ReportColumn("duplicated", "duplicated", digits=0),
    )
    caption = "Times from the kill; overhead: bytes for availability per byte of data; lost: rows."

    strategies: str = parameter(",".join(STRATEGIES), "Ways to keep a segment available.")
    intervals: str = parameter("1,2,4,8", "Units between two acknowledgements.")
    rate: int = parameter(2_000, "Rows per second.")

    def __post_init__(self) -> None:
        parted(self.strategies, STRATEGIES, "strategy")
        self.numbers()
        if self.rate < 1:
            raise UnbrokenError(f"a rate of {self.rate} rows per second cannot be measured; give 1 or more")

    def numbers(self) -> tuple[int, ...]:
        """The intervals as numbers, each once."""
        try:
            found = [int(each) for each in self.intervals.split(",")]
        except ValueError:
            found = []
        if not found or not all(1 <= each <= LONGEST_INTERVAL for each in found):
            raise UnbrokenError(
                f"{self.intervals!r} are no intervals; write numbers from 1 to {LONGEST_INTERVAL} as 1,2,4"
            )
        return tuple(dict.fromkeys(found))

    def scale(self, size: Size) -> str:
        return (
            f"Three nodes on one machine, {self.rate:,} rows/s, pulses of {PULSE_MS} ms; the node with the measured "
            "segment is killed once in a run, plain Spark is killed and restarted"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"strategy": Ha.ACTIVE_STANDBY.value, "interval": 1}]
        names = parted(self.strategies, STRATEGIES, "strategy")
        runs: list[Row] = [{"strategy": name, "interval": each} for name in names for each in self.numbers()]
        return [{"strategy": PLAIN, "interval": ""}, *runs]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        if case["strategy"] == PLAIN:
            return [flat(measure_restart(self.rate, WARM_S, STEADY_S, say))]
        strategy, interval = str(case["strategy"]), int(float(case["interval"] or 1))
        trial = Trial(strategy, interval, self.rate)
        return [flat(measure_loss(trial.shortened() if size.quick else trial, say))]

    def draw(self, rows: Rows, figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        draw_bars(upper, rows, ("strategy", "interval"), {"overhead": ""}, "overhead")
        draw_bars(lower, rows, ("strategy", "interval"), {"gap_ms.after": ""}, "longest gap in s", 1000)

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        return strategy_claims(rows)


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


def _stay_quiet(run: Observed, seconds: float) -> QuietCost:
    """Let the flow run, and tell what it needed."""
    pids = [process.pid for process in run.cluster.nodes.values()]
    first, began_cpu, began = reading(run), cpu_seconds(pids), time.monotonic()
    while time.monotonic() < began + seconds:
        if run.reader.ended():
            raise UnbrokenError("the flow ended before the kill; run it alone on the machine")
        time.sleep(0.1)
    last, used, passed = reading(run), cpu_seconds(pids) - began_cpu, time.monotonic() - began
    return QuietCost(spent(first, last), last.rows - first.rows, round(used / passed, 3))


def _lose(run: Observed, trial: Trial) -> NodeLoss:
    """Lose the node with the replica that works, the oldest of them."""
    hosts = run.layout().working_nodes_of(MEASURED)
    if not hosts:
        raise UnbrokenError(f"no node hosts {MEASURED}")
    node, controller = next(iter(hosts)), run.controller()
    began_ms = lose(run, node, trial.loss, restart=trial.strategy == Ha.NONE.value)
    return NodeLoss(node, began_ms, node == controller)
