"""`unbroken bench consistency`: what becomes of results while an input is missing, and until all of them are right.

The measures are those of Balazinska et al. (Fault-Tolerance in the Borealis Distributed Stream Processing System): the
longest delay of new results and the number of tentative ones, for failures of different length and each choice of what
to do with new input meanwhile; and the time it takes to put results right again in different ways.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken_lab.experiments.bars import COLORS
from unbroken_lab.experiments.consistency.claims import consistency_claims
from unbroken_lab.experiments.consistency.figures import (
    Failure,
    delays,
    figures,
    micro_batches,
    usual_ms,
)
from unbroken_lab.experiments.consistency.reader import BoundedReader
from unbroken_lab.experiments.consistency.settings import PAIRS, ConsistencySettings, HandlingCase
from unbroken_lab.experiments.experiment import (
    ERROR,
    Experiment,
    ReportClaim,
    ReportColumn,
    Row,
    Rows,
    Size,
    flat,
    number,
    parameter,
)
from unbroken_lab.experiments.flows import FLOWS
from unbroken_lab.experiments.flows.interrupted import SOURCES, Stream
from unbroken_lab.experiments.observation.observed import LOOK_S, Observed, Say, observed
from unbroken_lab.experiments.observation.usage import cpu_seconds
from unbroken_lab.experiments.recovery.strategy_figures import told_since

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOW = "bounded.py"
QUICK_RATE = 900
SETTLE_S = 150.0
"""How much longer than planned the warm-up may take until results come within a few buckets. What has come while the
first micro-batches were slow is worked off bucket by bucket, which takes a while."""

AFTER_S = 5.0
"""Time in which is watched what comes when results are as before."""

END_S = 120.0
END_FACTOR = 4.0
"""How long it may take until results are as before: so long, and so many times the failure."""

PROGRESS_S = 0.5
"""Nodes are asked this often for their last micro-batch; some of those that follow each other quickly are not seen."""


@dataclass
class HeardBatches:
    """The micro-batches that nodes told of, and when they were heard of first."""

    heard: dict[tuple[str, int], tuple[float, dict[str, float]]] = field(default_factory=dict)
    next_s: float = 0.0

    def look(self, run: Observed) -> None:
        if time.monotonic() < self.next_s:
            return
        self.next_s = time.monotonic() + PROGRESS_S
        for state in run.cluster.status():
            for replica in state.replicas:
                if replica.batch is not None:
                    key = (replica.replica, replica.batch.number)
                    self.heard.setdefault(key, (_now_ms(), dict(replica.batch.duration_ms)))

    def between(self, begin_ms: float, end_ms: float) -> list[dict[str, float]]:
        return [durations for at_ms, durations in self.heard.values() if begin_ms <= at_ms < end_ms]


@dataclass(frozen=True)
class Watched:
    """One failure: its times, the processor time of the nodes, and what they told."""

    failure: Failure
    over_ms: float
    quiet_cpu_s: float
    failure_cpu_s: float
    story: list[str]


@dataclass(frozen=True)
class ConsistencyExperiment(Experiment):
    """Every case (policies and way to reconcile) with a cluster of its own, a row for each failure."""

    name = "consistency"
    title = "Results while an input is missing, and until all of them are right"
    source = "unbroken bench consistency, with the measures of Balazinska et al., 2005"
    columns: ClassVar = (
        ReportColumn("policy", "policies"),
        ReportColumn("reconcile", "reconcile"),
        ReportColumn("duration_s", "failure", " s", 1),
        ReportColumn("delay_new_ms", "delay", " ms", 0),
        ReportColumn("tentative_rows", "tentative", digits=0),
        ReportColumn("tentative_units", "units", digits=0),
        ReportColumn("corrections", "corrections", digits=0),
        ReportColumn("reconciliation_s", "right after", " s", 2),
        ReportColumn("latency_ms.before.p50", "p50", " ms", 0),
        ReportColumn("latency_ms.before.p99", "p99", " ms", 0),
        ReportColumn("cpu_s.failure", "CPU", " s", 1),
        ReportColumn("micro_batch_ms.failure.p50", "batch", " ms", 0),
        ReportColumn("wrong", "wrong", digits=0),
    )
    caption = (
        "Delay: longest of new results; tentative: rows; right after: from the end of the failure until all results "
        "are stable and as soon as before; p50, p99: before the failure; CPU: from its beginning until then; batch: "
        "median micro-batch; wrong: stable rows that are not as they have to be."
    )

    durations: str = parameter("2,5,15,30", "Seconds without one of three inputs.")
    policies: str = parameter(
        ",".join(PAIRS), "Treatment of new input during the failure / while results are corrected."
    )
    reconcile: str = parameter("fork,redo,undo", "Ways to correct results; all of them with the first policies.")
    max_delay: str = parameter("3s", "The bound X on the delay of new results.")
    alpha: float = parameter(0.9, "The share of X that is spent waiting.")
    rate: int = parameter(4_500, "Rows per second of all inputs together.")
    bucket: str = parameter("500ms", "Length of event time that makes one unit.")
    replicas: int = parameter(1, "Replicas of the measured segment.")
    repeat: int = parameter(1, "How often each failure is caused.")

    def __post_init__(self) -> None:
        self.plan(Size())

    def plan(self, size: Size) -> ConsistencySettings:
        """What is measured; a quick run has one short failure."""
        if size.quick:
            return ConsistencySettings((4.0,), PAIRS[:1], ("fork",), rate=QUICK_RATE)
        return ConsistencySettings.parse(
            self.durations,
            self.policies,
            self.reconcile,
            max_delay=self.max_delay,
            alpha=self.alpha,
            rate=self.rate,
            bucket=self.bucket,
            replicas=self.replicas,
            repeat=self.repeat,
        )

    def scale(self, size: Size) -> str:
        plan = self.plan(size)
        return (
            f"{max(2, plan.replicas)} nodes on one machine, {plan.rate // SOURCES * SOURCES:,} rows/s of {SOURCES} "
            f"inputs, buckets of {plan.bucket_ms} ms, X = {plan.max_delay_ms:g} ms, alpha = {plan.alpha:g}"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        plan = self.plan(size)
        for case in plan.cases():
            _check(case, plan)
        return [case.to_json() for case in plan.cases()]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        runs = measure_case(HandlingCase(str(case["policy"]), str(case["reconcile"])), self.plan(size), say)
        if all(ERROR in run for run in runs):
            raise UnbrokenError(str(runs[0][ERROR]))
        return [flat(run) for run in runs]

    def draw(self, rows: Rows, figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        for at, name in enumerate(dict.fromkeys(f"{row['policy']}, {row['reconcile']}" for row in rows)):
            found = [row for row in rows if f"{row['policy']}, {row['reconcile']}" == name]
            for axes, column, divisor in ((upper, "delay_new_ms", 1000), (lower, "tentative_rows", 1)):
                known = [(number(row, "duration_s"), number(row, column)) for row in found]
                points = sorted((x, y / divisor) for x, y in known if x is not None and y is not None)
                if points:
                    axes.plot(
                        *zip(*points, strict=True), "o-", color=COLORS[at % len(COLORS)], label=name, markersize=4
                    )
        upper.set_ylabel("largest delay of\nnew results in s")
        lower.set_ylabel("tentative rows")
        lower.set_xlabel("seconds without an input")
        upper.legend(fontsize=6, frameon=False, ncols=2)

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        plan = self.plan(Size())
        return consistency_claims(rows, plan.max_delay_ms, plan.alpha * plan.max_delay_ms / 1000)


# --- a run --------------------------------------------------------------------------------------------


def _check(case: HandlingCase, settings: ConsistencySettings) -> None:
    """Refuse what makes no sense before anything is started."""
    load = settings.load(case, 0, Path("switch"))
    with variables({f"UNBROKEN_BENCH_{name}": str(value) for name, value in load.items()}):
        build_topology(load_flow(FLOWS / FLOW))


def measure_case(case: HandlingCase, settings: ConsistencySettings, say: Say) -> list[dict[str, Any]]:
    """All failures of a case; if one of them cannot be measured, neither can those that follow it."""
    say(f"{case}: starting {max(2, settings.replicas)} nodes")
    watched: list[Watched] = []
    readers: list[BoundedReader] = []
    progress, error = HeardBatches(), None
    begin_ms = int(_now_ms())
    with tempfile.TemporaryDirectory() as directory:
        switch = Path(directory) / "disconnected"
        try:
            load = settings.load(case, begin_ms, switch)
            with observed(FLOW, load, settings.reader()) as run:
                assert isinstance(run.reader, BoundedReader)
                readers.append(run.reader)
                _settle(run, settings)
                for duration in settings.failures():
                    quiet_ms = watched[-1].failure.done_ms if watched else _now_ms()
                    watched.append(_fail(run, duration, settings.quiet_s, quiet_ms, switch, progress))
                    say(f"{case}: {duration:g} s without an input; results are as before after {_took(watched[-1])}")
        except UnbrokenError as failed:
            # The other runs take an hour: what is there of them is worth having.
            error = str(failed)
            say(f"{case}: failed: {error}")
    streams = settings.streams(begin_ms)
    runs = [
        {
            **case.to_json(),
            "duration_s": each.failure.planned_s,
            **_figures(each, readers[0], progress, streams, settings),
        }
        for each in watched
    ]
    missing = settings.failures()[len(watched) :] if error is not None else []
    return [*runs, *({**case.to_json(), "duration_s": duration, "error": error} for duration in missing)]


def measure_quiet(settings: ConsistencySettings, seconds: float, say: Say) -> dict[str, Any]:
    """How old rows are when they are in a result while nothing is missing, and how long micro-batches take."""
    say(f"buckets of {settings.bucket_ms} ms: starting {max(2, settings.replicas)} nodes")
    case, progress = settings.cases()[0], HeardBatches()
    load = settings.load(case, int(_now_ms()), Path(os.devnull) / "never")
    with observed(FLOW, load, settings.reader()) as run:
        assert isinstance(run.reader, BoundedReader)
        _settle(run, settings)
        began_ms = _now_ms()
        _stay(run, seconds, progress)
        grid, arrivals, ended_ms = run.reader.grid, list(run.reader.arrivals), _now_ms()
    assert grid is not None
    ages = list(delays(arrivals, grid, began_ms, ended_ms).values())
    return {
        # Rows come evenly, so that a row is half a bucket older than the newest of its bucket.
        "mean_ms": round(fmean(ages) + settings.bucket_ms / 2, 1) if ages else None,
        "newest_mean_ms": round(fmean(ages), 1) if ages else None,
        "newest_max_ms": round(max(ages), 1) if ages else None,
        "buckets": len(ages),
        "micro_batch_ms": micro_batches(progress.between(began_ms, ended_ms))["p50"],
    }


def _settle(run: Observed, settings: ConsistencySettings) -> None:
    latency_ms = settings.settled_ms
    run.settle(settings.warm_s, latency_ms, settings.warm_s + SETTLE_S)
    late_s = run.reader.last_latency_ms / 1000
    if late_s > latency_ms / 1000:
        raise UnbrokenError(f"results are {late_s:.1f} s late without a failure; run it alone on the machine")


def _fail(
    run: Observed, duration_s: float, quiet_s: float, quiet_ms: float, switch: Path, progress: HeardBatches
) -> Watched:
    """Let the flow run, disconnect an input for a while, and wait until nothing is to be seen of it."""
    reader, pids = run.reader, [process.pid for process in run.cluster.nodes.values()]
    assert isinstance(reader, BoundedReader)
    cpu_s = [cpu_seconds(pids)]
    _stay(run, quiet_s, progress)
    cpu_s.append(cpu_seconds(pids))
    began_ms = _now_ms()
    switch.touch()
    try:
        _stay(run, duration_s, progress)
    finally:
        switch.unlink()
    healed_ms = _now_ms()
    if reader.grid is None:
        raise UnbrokenError("there was no result; run it alone on the machine")
    usual = usual_ms(list(reader.arrivals), reader.grid, quiet_ms, began_ms)
    deadline = time.monotonic() + END_S + END_FACTOR * duration_s
    while not (reader.ended() or reader.caught_up(healed_ms, usual)):
        if time.monotonic() > deadline:
            told = "; ".join(told_since(run.history(), began_ms))
            raise UnbrokenError(f"results did not become as before a failure of {duration_s:g} s. Since then: {told}")
        progress.look(run)
        time.sleep(LOOK_S)
    over_ms = _now_ms()
    cpu_s.append(cpu_seconds(pids))
    _stay(run, AFTER_S, progress)
    failure = Failure(duration_s, quiet_ms, began_ms, healed_ms, _now_ms())
    story = told_since(run.history(), began_ms)
    return Watched(failure, over_ms, cpu_s[1] - cpu_s[0], cpu_s[2] - cpu_s[1], story)


def _stay(run: Observed, seconds: float, progress: HeardBatches) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if run.reader.ended():
            raise UnbrokenError("the flow ended by itself")
        if left > PROGRESS_S:
            progress.look(run)
        time.sleep(min(LOOK_S, left))


def _figures(
    watched: Watched,
    reader: BoundedReader,
    progress: HeardBatches,
    streams: tuple[Stream, ...],
    settings: ConsistencySettings,
) -> dict[str, Any]:
    failure, grid = watched.failure, reader.grid
    assert grid is not None
    return {
        **figures(reader.arrivals, grid, failure, settings.max_delay_ms),
        **reader.judge(streams, failure),
        "cpu_s": {"quiet": round(watched.quiet_cpu_s, 2), "failure": round(watched.failure_cpu_s, 2)},
        "watched_s": {
            "quiet": round((failure.began_ms - failure.quiet_ms) / 1000, 3),
            "failure": round((watched.over_ms - failure.began_ms) / 1000, 3),
        },
        "micro_batch_ms": {
            "quiet": micro_batches(progress.between(failure.quiet_ms, failure.began_ms)),
            "failure": micro_batches(progress.between(failure.began_ms, failure.done_ms)),
        },
        "story": watched.story,
    }


def _took(watched: Watched) -> str:
    return f"{(watched.over_ms - watched.failure.healed_ms) / 1000:.1f} s"


def _now_ms() -> float:
    return time.time() * 1000
