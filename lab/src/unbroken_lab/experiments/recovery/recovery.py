"""`unbroken bench recovery`: a node dies; how long until redundancy is restored, and what it costs the survivor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.bars import draw_bars
from unbroken_lab.experiments.experiment import (
    Experiment,
    ReportClaim,
    ReportColumn,
    Row,
    Rows,
    Size,
    aimed,
    flat,
    none_of,
    number,
    parameter,
    seen,
)
from unbroken_lab.experiments.observation.figures import STEADY_S, judge
from unbroken_lab.experiments.observation.observed import END_SLACK_S, Say, observed
from unbroken_lab.experiments.parameters.rows import PAYLOAD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESTORE_DEADLINE_S = 120.0
WARM_UP_S = 30.0
"""Time from the first result until the queries are compiled."""

TAIL_S = 15.0
"""Time for which rows come when redundancy is back."""

QUICK_SIZE, QUICK_RATE, QUICK_WARM_UP_S = 0.1, 500, 2.0
AIM_S, AIM_MB = 10.0, 100.0
"""Redundancy is to be back within so many seconds, with so much state or less."""


@dataclass(frozen=True)
class RedundancyRecovery(Experiment):
    """One case for each size of state, with a cluster of its own."""

    name = "recovery"
    title = "A node is killed: time until everything is redundant again"
    source = "unbroken bench recovery"
    columns: ClassVar = (
        ReportColumn("state_mb", "state in MB", digits=1),
        ReportColumn("restored_s", "redundant again", " s", 1),
        ReportColumn("bytes_moved", "MB moved", digits=1, divisor=1e6),
        ReportColumn("latency_ms.before.p50", "p50 before", " ms", 0),
        ReportColumn("latency_ms.during.p50", "p50 during", " ms", 0),
        ReportColumn("latency_ms.before.p99", "p99 before", " ms", 0),
        ReportColumn("latency_ms.during.p99", "p99 during", " ms", 0),
        ReportColumn("gap_ms.during", "longest gap", " ms", 0),
        ReportColumn("lost", "lost", digits=0),
        ReportColumn("duplicated", "duplicated", digits=0),
    )

    sizes: str = parameter("10,100", "Megabytes of state, one measurement each.")
    rate: int = parameter(10_000, "Rows per second.")

    def __post_init__(self) -> None:
        if self.rate < 1:
            raise UnbrokenError(f"a rate of {self.rate} rows per second cannot be measured; give 1 or more")
        self.megabytes()

    def megabytes(self) -> list[float]:
        try:
            found = [float(size) for size in self.sizes.split(",")]
        except ValueError:
            found = []
        if not found or min(found) <= 0:
            raise UnbrokenError(f"{self.sizes!r} are no sizes; write megabytes with commas between them, as 10,100")
        return found

    def scale(self, size: Size) -> str:
        rate = QUICK_RATE if size.quick else self.rate
        return f"Two nodes and a warm standby on one machine, one stateful segment, {rate:,} rows/s"

    def cases(self, size: Size) -> Sequence[Row]:
        return [{"state_mb": megabytes} for megabytes in ([QUICK_SIZE] if size.quick else self.megabytes())]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        state_bytes = int(float(case["state_mb"] or 0) * 1e6)
        warm_s, rate = size.of(WARM_UP_S, QUICK_WARM_UP_S), int(size.of(self.rate, QUICK_RATE))
        return [flat(_measure(state_bytes, rate, warm_s, say))]

    def draw(self, rows: Rows, figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        draw_bars(left, rows, "state_mb", {"restored_s": ""}, "redundant again after s")
        left.set_xlabel("MB of state")
        phases = {f"latency_ms.{phase}.p99": phase for phase in ("before", "during", "after")}
        draw_bars(right, rows, "state_mb", phases, "p99 of the latency in ms")
        right.set_xlabel("MB of state")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = [none_of(rows, "lost", "duplicated")]
        for row in rows:
            megabytes, restored_s = number(row, "state_mb") or 0.0, number(row, "restored_s")
            what = f"redundancy restored with {megabytes:g} MB of state"
            if megabytes <= AIM_MB:
                out.append(aimed(what, f"at most {AIM_S:g} s", restored_s, lambda value: value <= AIM_S, " s"))
            else:
                out.append(seen(what, f"{restored_s:.1f} s"))
        return out


def _measure(state_bytes: int, rate: int, warm_s: float, say: Say) -> dict[str, Any]:
    keys = max(1, state_bytes // PAYLOAD)
    fill_s = keys / rate
    seconds = int(fill_s + warm_s + STEADY_S + RESTORE_DEADLINE_S / 2 + TAIL_S)
    with observed("stateful.py", {"KEYS": keys, "RATE": rate, "SECONDS": seconds}) as run:
        time.sleep(max(warm_s, fill_s) + STEADY_S)
        victim = run.leader()
        killed_ms = run.kill(victim)
        say(f"state of {state_bytes / 1e6:g} MB: {victim} killed")
        restored_ms = run.await_redundancy(victim, RESTORE_DEADLINE_S)
        moved, story = run.state_moved(), run.story()
        say(f"state of {state_bytes / 1e6:g} MB: redundant again after {(restored_ms - killed_ms) / 1000:.1f} s")
        run.await_end(seconds + END_SLACK_S)
    return {
        "bytes_moved": moved,
        "restored_s": round((restored_ms - killed_ms) / 1000, 2),
        **judge(run.reader.samples, killed_ms, restored_ms),
        "lost": run.reader.lost(rate * seconds),
        "duplicated": run.reader.duplicated,
        "story": story,
    }
