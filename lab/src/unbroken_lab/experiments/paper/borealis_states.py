"""Experiments of Balazinska et al. (Borealis) about putting results right: along a chain, and with more to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from unbroken_lab.experiments.consistency.settings import WARM_S, HandlingCase
from unbroken_lab.experiments.experiment import Experiment, PaperValue, ReportClaim, Row, Rows, Say, Size, number, seen
from unbroken_lab.experiments.flows.interrupted import SOURCES
from unbroken_lab.experiments.paper.missing_input import (
    ALPHA,
    MAX_DELAY_S,
    correctness,
    draw_lines,
    draw_pair,
    fail_inputs,
    points_of,
    settings_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ChainDepth(Experiment):
    """A failure at the beginning of a chain: delay and tentative results at its end, by the length of the chain."""

    name = "borealis-fig11"
    title = "A failure at the beginning of a chain of segments"
    source = "Balazinska et al., 2005, Figure 11"
    paper: ClassVar = (
        PaperValue("failure, chain", "15 s; 1 to 4 nodes, each with a bound of 3 s"),
        PaperValue("Process & Process", "lowest delay: 2.7 s and the processing along the chain"),
        PaperValue("Delay & Delay", "2.7 s more for each node, within the bound of the chain"),
        PaperValue("Process & Suspend", "sum of what each node needs to put its results right: beyond the bound"),
        PaperValue("tentative tuples, Process & Process", "more with each node"),
        PaperValue("tentative tuples, Delay & Delay", "no fewer than with Process & Process"),
    )
    failure_s: ClassVar = 10.0
    rate: ClassVar = 1_500
    depths: ClassVar[Mapping[str, Sequence[int]]] = {
        "process/process": (1, 2, 3, 4),
        "delay/delay": (1, 2, 4),
        "process/suspend": (1, 2, 4),
    }

    def scale(self, size: Size) -> str:
        return (
            f"Paper: a failure of 15 s, a node for each join. Here: {self.failure_s:g} s, {self.rate:,} rows/s, "
            "segments with windows and a fork of each, on 2 nodes of one machine, one run each"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"policy": "process/process", "depth": 2}]
        return [{"policy": policy, "depth": depth} for policy, depths in self.depths.items() for depth in depths]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        settings = settings_of(size, (self.failure_s,), rate=self.rate, depth=int(number(case, "depth") or 1))
        return fail_inputs(HandlingCase(str(case["policy"]), "fork"), settings, say)

    def draw(self, rows: Rows, figure: Figure) -> None:
        upper = draw_pair(
            figure, rows, {policy: {"policy": policy} for policy in self.depths}, "depth", "segments in the chain"
        )
        most = max((number(row, "depth") or 1.0 for row in rows), default=1.0)
        upper.plot([1, most], [MAX_DELAY_S, MAX_DELAY_S * most], ":", color="0.6", label="bound of the chain")
        upper.set_xticks(range(1, int(most) + 1))
        upper.legend(fontsize=7, frameon=False, ncols=2)

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = [correctness(rows)]
        found: dict[str, tuple[dict[float, float], dict[float, float]]] = {}
        for policy in self.depths:
            delays = points_of(rows, {"policy": policy}, "depth", "delay_new_s")
            counts = points_of(rows, {"policy": policy}, "depth", "tentative_rows")
            if delays:
                found[policy] = (dict(delays), dict(counts))
                told = ", ".join(f"{delay:.2f} s with {depth:g}" for depth, delay in delays)
                out.append(seen(f"{policy}: largest delay by segments", told))
                out.append(seen(f"{policy}: tentative rows along the chain", _listed(counts)))
                within = all(delay <= depth * MAX_DELAY_S for depth, delay in delays)
                wanted = policy != "process/suspend"
                paper = f"{'kept' if wanted else 'broken'}"
                largest = max(delay / depth for depth, delay in delays)
                what = f"{policy}: bound of {MAX_DELAY_S:g} s for each segment"
                out.append(ReportClaim(what, paper, f"{largest:.2f} s for each segment at most", within == wanted))
        return [*out, *_along(found)]


Along = Mapping[str, tuple[dict[float, float], dict[float, float]]]
"""The delays and the tentative rows of each policy, by the length of the chain."""


def _along(found: Along) -> list[ReportClaim]:
    """How the policies differ in a chain."""
    out = []
    process, delay = found.get("process/process"), found.get("delay/delay")
    if process and len(found) > 1:
        others = [
            (delays, depth) for policy, (delays, _) in found.items() if policy != "process/process" for depth in delays
        ]
        longer = [(delays[depth], process[0].get(depth, 0.0)) for delays, depth in others if depth > 1]
        lowest = sum(own <= other for other, own in longer)
        what = "chains of two and more in which process/process has the lowest delay"
        out.append(ReportClaim(what, "all", f"{lowest} of {len(longer)} comparisons", lowest == len(longer)))
    if process and len(process[1]) > 1:
        counts = [process[1][depth] for depth in sorted(process[1])]
        grows = all(after >= before for before, after in pairwise(counts)) and counts[-1] > counts[0]
        here = ", ".join(f"{count:,.0f}" for count in counts)
        out.append(
            ReportClaim(
                "process/process: tentative rows by the length of the chain", "more with every segment", here, grows
            )
        )
    if delay and len(delay[0]) > 1:
        first, last = min(delay[0]), max(delay[0])
        each, there = (delay[0][last] - delay[0][first]) / (last - first), ALPHA * MAX_DELAY_S
        what = "delay/delay: delay that each further segment adds"
        out.append(ReportClaim(what, f"{there:.1f} s", f"{each:.2f} s", abs(each / there - 1) <= 0.25))
    if process and delay:
        both = sorted(depth for depth in delay[1] if depth in process[1] and depth > 1)
        if both:
            here = "; ".join(f"{delay[1][depth]:,.0f} against {process[1][depth]:,.0f}" for depth in both)
            no_fewer = all(delay[1][depth] >= process[1][depth] for depth in both)
            what = "delay/delay: tentative rows of chains of two and more, against process/process"
            out.append(ReportClaim(what, "no fewer", here, no_fewer))
    return out


class StateAndRate(Experiment):
    """How long results take to be right again, by the size of the state and by the number of rows to process again."""

    name = "borealis-fig12"
    title = "Putting results right: more state, more rows"
    source = "Balazinska et al., 2005, Figure 12 and Table 2"
    paper: ClassVar = (
        PaperValue("failure, time waited", "5 s; 1 s"),
        PaperValue(
            "by state size (1,000 tuples/s)", "both ways linear; redo faster, it copies the state and undo rebuilds it"
        ),
        PaperValue("by tuples to process again (state of 20)", "both ways linear; redo faster"),
        PaperValue("Table 2, delay with checkpoint/redo", "P + S p_copy + (D + 0.5 l) λ p_proc"),
        PaperValue("Table 2, delay with undo/redo", "P + S (p_comp + p_proc) + (D + 0.5 l) λ (p_comp + p_proc)"),
    )
    ways: ClassVar = ("redo", "undo", "fork")
    rate: ClassVar = 1_500
    keys: ClassVar = 20_000
    failure_s: ClassVar = 5.0
    failures_s: ClassVar = (5.0, 10.0, 20.0)
    windows_s: ClassVar = (5, 20, 40)

    def scale(self, size: Size) -> str:
        return (
            f"Paper: failures of 5 s at several rates. Here: {self.rate:,} rows/s, failures of "
            f"{min(self.failures_s):g} to {max(self.failures_s):g} s; state grows with the windows, of "
            f"{min(self.windows_s)} to {max(self.windows_s)} s, and is 2,500 rows at least (20 there); the time until "
            "all results are right (there: the delay of new ones); one run each, 2 nodes on one machine"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"reconcile": "redo", "window_s": 5}]
        small: list[Row] = [{"reconcile": way, "window_s": self.windows_s[0]} for way in self.ways]
        paper = [way for way in self.ways if way != "fork"]
        large: list[Row] = [{"reconcile": way, "window_s": window} for window in self.windows_s[1:] for way in paper]
        return [*small, *large]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        window_s = int(number(case, "window_s") or 0)
        durations = self.failures_s if window_s == self.windows_s[0] else (self.failure_s,)
        settings = settings_of(
            size,
            durations,
            rate=self.rate,
            # The state is as large as it becomes when a window has passed.
            warm_s=max(WARM_S, 1.2 * window_s),
            window_ms=window_s * 1000,
            keys=self.keys,
            max_delay_ms=1_200.0,
            alpha=5 / 6,
        )
        rows = fail_inputs(HandlingCase("process/process", str(case["reconcile"])), settings, say)
        state = state_rows(settings.rate, window_s, settings.keys)
        return [{**row, **state, "again_rows": (number(row, "duration_s") or 0.0) * settings.rate} for row in rows]

    def draw(self, rows: Rows, figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        by_state = {way: {"reconcile": way, "duration_s": self.failure_s} for way in self.ways}
        by_rows = {way: {"reconcile": way, "window_s": self.windows_s[0]} for way in self.ways}
        draw_lines(
            left, rows, by_state, "state_rows", "reconciliation_s", label=RIGHT, below="rows in a window's state"
        )
        draw_lines(right, rows, by_rows, "again_rows", "reconciliation_s", label="", below="rows to process again")
        for axes in (left, right):
            axes.legend(fontsize=8, frameon=False)

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = [correctness(rows)]
        for way in self.ways:
            state = points_of(rows, {"reconcile": way, "duration_s": self.failure_s}, "state_rows", "reconciliation_s")
            again = points_of(rows, {"reconcile": way, "window_s": self.windows_s[0]}, "again_rows", "reconciliation_s")
            if state or again:
                out.append(seen(f"{way}: right with {_places(state)} rows of state", _listed(state, " s", 1)))
                out.append(seen(f"{way}: right with {_places(again)} rows to process again", _listed(again, " s", 1)))
            for points, more in ((state, "state"), (again, "rows to process again")):
                if way != "fork" and len(points) > 1:
                    grows = all(after > before for (_, before), (_, after) in pairwise(points))
                    here = ", ".join(f"{took:.1f} s" for _, took in points)
                    out.append(ReportClaim(f"{way}: time with more {more}", "longer with every step", here, grows))
        redo, undo = (_by_case(rows, way) for way in ("redo", "undo"))
        both = [place for place in redo if place in undo]
        if both:
            faster = sum(redo[place] < undo[place] for place in both)
            what = "cases in which redo is faster than undo"
            out.append(ReportClaim(what, "all", f"{faster} of {len(both)}", faster == len(both)))
        return out


RIGHT = "seconds from the end of the failure\nuntil all results are right"


def state_rows(rate: int, window_s: float, keys: int) -> dict[str, int]:
    """Keys with a count in one window: each input has them in turn, and all inputs have the same."""
    return {"state_rows": int(min(keys, rate // SOURCES * window_s))}


def _by_case(rows: Rows, way: str) -> dict[tuple[Any, ...], float]:
    """How long it took, by what else tells a case from the others."""
    found = {}
    for row in rows:
        took = number(row, "reconciliation_s")
        if row["reconcile"] == way and took is not None:
            found[number(row, "window_s"), number(row, "duration_s")] = took
    return found


def _listed(points: Sequence[tuple[float, float]], unit: str = "", digits: int = 0) -> str:
    return ", ".join(f"{value:,.{digits}f}{unit}" for _, value in points) or "no time that is known"


def _places(points: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{place:,.0f}" for place, _ in points) or "no"
