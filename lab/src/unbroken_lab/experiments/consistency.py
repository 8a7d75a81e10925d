"""`unbroken bench consistency`: what becomes of results while an input is missing, and until all of them are right.

The measures are those of Balazinska et al. (Fault-Tolerance in the Borealis Distributed Stream Processing System): the
longest delay of new results and the number of tentative ones, for failures of different length and each choice of what
to do with new input meanwhile; and the time it takes to put results right again in different ways.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.table import Table

from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken.flow.plan import build_topology, load_flow
from unbroken_lab.experiments.consistency_figures import (
    Failure,
    delays,
    figures,
    micro_batches,
    ratios,
    summary,
    usual_ms,
)
from unbroken_lab.experiments.consistency_reader import BoundedReader
from unbroken_lab.experiments.consistency_settings import Case, ConsistencySettings
from unbroken_lab.experiments.interrupted import SOURCES, Stream
from unbroken_lab.experiments.observed import LOOK_S, Observed, Say, observed
from unbroken_lab.experiments.strategies import cpu_seconds
from unbroken_lab.experiments.strategy_figures import told_since

if TYPE_CHECKING:
    pass

FLOW = "bounded.py"
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
class Progress:
    """The micro-batches that nodes told of, and when they were heard of first."""

    heard: dict[tuple[str, int], tuple[float, dict[str, float]]] = field(default_factory=dict)
    next_s: float = 0.0

    def look(self, run: Observed) -> None:
        if time.monotonic() < self.next_s:
            return
        self.next_s = time.monotonic() + PROGRESS_S
        for state in run.cluster.status():
            for replica in state.get("replicas", []):
                if "batch" in replica:
                    key = (str(replica["replica"]), int(replica["batch"]))
                    self.heard.setdefault(key, (_now_ms(), replica["duration_ms"]))

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


def run_consistency(settings: ConsistencySettings, say: Say) -> dict[str, Any]:
    """Every case with a cluster of its own."""
    for case in settings.cases():
        _check(case, settings)
    runs = [run for case in settings.cases() for run in measure_case(case, settings, say)]
    summed = summary(runs)
    return {
        "max_delay_ms": settings.max_delay_ms,
        "alpha": settings.alpha,
        "rate_per_s": settings.rate // SOURCES * SOURCES,
        "bucket_ms": settings.bucket_ms,
        "replicas": settings.replicas,
        "cores": os.cpu_count(),
        "runs": runs,
        "summary": summed,
        "ratios": ratios(summed, settings.alpha * settings.max_delay_ms / 1000),
    }


def consistency_table(result: dict[str, Any]) -> Table:
    """One line for each case and length of the failure."""
    table = Table(title="Results while an input is missing, and until all of them are right")
    for column in ("policies", "reconcile"):
        table.add_column(column)
    columns = ("failure", "delay", "below X", "tentative", "units", "corrections", "right after", "p50", "p99")
    for column in (*columns, "CPU", "batch", "wrong"):
        table.add_column(column, justify="right")
    for each in result["summary"]:
        case = (each["policy"], each["reconcile"], f"{each['duration_s']:g} s")
        if not each["runs"]:
            table.add_row(*case, "failed")
            continue
        table.add_row(
            *case,
            _shown(each["delay_new_ms"], " ms"),
            {True: "yes", False: "no", None: "-"}[each["below_max_delay"]],
            _shown(each["tentative_rows"], ""),
            _shown(each["tentative_units"], ""),
            _shown(each["corrections"], ""),
            _shown(each["reconciliation_s"], " s", 2),
            _shown(each["p50_ms"], " ms"),
            _shown(each["p99_ms"], " ms"),
            _shown(each["cpu_s"], " s", 1),
            _shown(each["micro_batch_ms"], " ms"),
            f"{each['wrong']:,}",
        )
    table.caption = (
        f"X: {result['max_delay_ms']:g} ms; delay: longest of new results; tentative: rows; right after: from the end "
        "of the failure until all results are stable and as soon as before; p50, p99: before the failure; CPU: from "
        "its beginning until then; batch: median micro-batch; wrong: stable rows that are not as they have to be"
    )
    return table


# --- a run --------------------------------------------------------------------------------------------


def _check(case: Case, settings: ConsistencySettings) -> None:
    """Refuse what makes no sense before anything is started."""
    load = settings.load(case, 0, Path("switch"))
    with variables({f"UNBROKEN_BENCH_{name}": str(value) for name, value in load.items()}):
        build_topology(load_flow(Path(__file__).with_name(FLOW)))


def measure_case(case: Case, settings: ConsistencySettings, say: Say) -> list[dict[str, Any]]:
    """All failures of a case; if one of them cannot be measured, neither can those that follow it."""
    say(f"{case}: starting {max(2, settings.replicas)} nodes")
    watched: list[Watched] = []
    readers: list[BoundedReader] = []
    progress, error = Progress(), None
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
    case, progress = settings.cases()[0], Progress()
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
        raise UnbrokenError(
            f"results are {late_s:.1f} s late without a failure; the machine may be too busy: try alone"
        )


def _fail(
    run: Observed, duration_s: float, quiet_s: float, quiet_ms: float, switch: Path, progress: Progress
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
        raise UnbrokenError("there was no result; the machine may be too busy: try again alone")
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


def _stay(run: Observed, seconds: float, progress: Progress) -> None:
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
    progress: Progress,
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


def _shown(value: float | None, unit: str, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}{unit}"


def _now_ms() -> float:
    return time.time() * 1000
