"""The micro-benchmarks MiB 1 to 3 of Rosinosky et al.: identity segments in a row, in shards, and behind two sources.

Latency is that of rows, from the time at which a row is due at its source until it is in a result that a subscriber
has; it contains the time for which the row waits for the next pulse.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from unbroken_lab.experiments.experiment import (
    Experiment,
    PaperValue,
    ReportClaim,
    Row,
    Rows,
    Say,
    Size,
    chosen,
    number,
    seen,
)
from unbroken_lab.experiments.paper.rosinosky.boxes import distinct, draw_boxes, figure_of, ratio, shown
from unbroken_lab.experiments.paper.rosinosky.quiet import MeasuredSpan, measure_quiet
from unbroken_lab.experiments.parameters.ways import LEADER, NONE, PASSIVE, PULSE, UNORDERED, name_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IDENTITY = "identity.py"
UNION = "union.py"
RATE = 5_000
PULSE_MS = 1_500
"""Long enough for eight queries that share two cores, so that the machine is not what is measured."""

LITTLE = 0.25
"""Part by which medians may differ that count as about the same."""

SOURCE = "Rosinosky et al. 2021"
CLUSTER = "the paper: 28 task managers, 2 partitions of each task, heartbeats of 10 ms"


class Chain(Experiment):
    """How latency grows with the length of a chain, without replicas and with each way to order them."""

    name = "mib1"
    title = "Latency of rows through a chain of identity segments"
    source = f"{SOURCE}, Fig. 10"
    paper = (
        PaperValue("latency with 1 to 4 tasks", "grows with every task, in all configurations"),
        PaperValue("lowest median of the replicated configurations", "no ordering"),
        PaperValue("median of the leader (KaZoo) and of heartbeats (LiveRobin)", "the leader's is the lower one"),
        PaperValue("variability", "larger with the leader than with heartbeats"),
    )

    def scale(self, size: Size) -> str:
        return f"2 nodes, 1 shard per segment, {RATE:,} rows/s, pulses of {PULSE_MS:,} ms ({CLUSTER})"

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"length": 2, "way": PULSE}]
        ways = (NONE, UNORDERED, LEADER, PULSE)
        return [{"length": length, "way": way} for length in range(1, 5) for way in ways]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        load = {"WAY": case["way"], "LENGTH": case["length"], "RATE": RATE}
        found = measure_quiet(IDENTITY, load, MeasuredSpan.of(size), PULSE_MS)
        return [{**found.latency("rows", RATE), **found.costs(), **found.mistakes("rows")}]

    def draw(self, rows: Rows, figure: Figure) -> None:
        axes = figure.subplots()
        draw_boxes(axes, rows, "length", "way")
        axes.set_xlabel("segments")
        axes.set_ylabel("latency of rows (ms)")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = []
        for length in distinct(rows, "length"):
            of = chosen(rows, length=length)
            base, segments = figure_of(of, "p50_ms", way=NONE), segments_of(length)
            for row in of:
                p50 = number(row, "p50_ms")
                beside = (
                    "" if base is None or row["way"] == NONE else f"; p50 {ratio(p50, base)} of that without replicas"
                )
                here = f"p50 {shown(p50)}, p99 {shown(number(row, 'p99_ms'))}{beside}"
                out.append(seen(f"{segments}, {name_of(str(row['way']))}", here))
        for way in distinct(rows, "way"):
            newest = by_place(chosen(rows, way=way), "length", "newest_p50_ms")
            if len(newest) > 1:
                steps = [after - before for before, after in pairwise(newest.values())]
                what = f"{name_of(way)}: latency that a further segment adds to the newest row of a unit"
                here = f"{min(steps):,.0f} to {max(steps):,.0f} ms"
                out.append(ReportClaim(what, "above 0", here, min(steps) > 0))
        return [*out, *_beside_each_other(rows), *mistakes(rows)]


class PulseSweep(Experiment):
    """How the length of the pulse shows in the latency of rows, and what short pulses cost."""

    name = "mib1-pulse"
    title = "Latency of rows by the length of the pulse"
    source = f"{SOURCE}, Fig. 11"
    paper = (
        PaperValue("heartbeat periods", "5 to 100 ms, 10 ms is chosen"),
        PaperValue("latency", "grows with the period, the more the longer the chain"),
        PaperValue("short periods", "cost bandwidth"),
    )
    lengths = (1, 3)
    periods = (300, 600, 1_000, 2_000, 4_000)

    def scale(self, size: Size) -> str:
        return (
            f"2 nodes, 1 shard per segment, 2 replicas, {RATE:,} rows/s, pulses of {self.periods[0]} to "
            f"{self.periods[-1]:,} ms, because a unit is a micro-batch of Spark ({CLUSTER})"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"length": 1, "period_ms": 1_000}]
        return [{"length": length, "period_ms": period} for length in self.lengths for period in self.periods]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        period = number(case, "period_ms")
        assert period is not None
        span = MeasuredSpan.of(size)
        # A box is made of several pulses, whatever their length.
        longer = MeasuredSpan(span.warm_s, max(span.seconds, 6 * period / 1_000)) if not size.quick else span
        load = {"WAY": PULSE, "LENGTH": case["length"], "RATE": RATE}
        found = measure_quiet(IDENTITY, load, longer, period)
        return [{**found.latency("rows", RATE), **found.costs(), **found.mistakes("rows")}]

    def draw(self, rows: Rows, figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        draw_boxes(above, rows, "period_ms", "length", segments_of)
        above.set_ylabel("latency of rows (ms)")
        periods = distinct(rows, "period_ms")
        for length in distinct(rows, "length"):
            of = chosen(rows, length=length)
            cores = [(periods.index(str(row["period_ms"])), number(row, "cpu_cores")) for row in of]
            below.plot([at for at, _ in cores], [value for _, value in cores], "o-", label=length)
        below.set_ylabel("cores")
        below.set_ylim(0, 1.15 * max((number(row, "cpu_cores") or 0.0 for row in rows), default=1.0))
        below.grid(alpha=0.3)
        below.set_xlabel("length of the pulse (ms)")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = []
        for row in rows:
            asked, was = number(row, "period_ms"), number(row, "pulse_ms")
            held = f" (they came every {was:.0f} ms)" if was and asked and was > 1.2 * asked else ""
            segments = segments_of(str(row["length"]))
            here = (
                f"p50 {shown(number(row, 'p50_ms'))}, p99 {shown(number(row, 'p99_ms'))}, "
                f"{shown(number(row, 'cpu_cores'), 'cores', 2)}, {shown(_kilo(number(row, 'bytes_per_s')), 'kB/s')}"
            )
            out.append(seen(f"{segments}, pulses of {shown(asked)}{held}", here))
        for length in distinct(rows, "length"):
            medians = by_place(chosen(rows, length=length), "period_ms", "p50_ms")
            if len(medians) > 1:
                best = min(medians, key=lambda period: medians[period])
                grows = all(before < after for before, after in pairwise(medians.values()))
                what = f"{segments_of(length)}: the median grows with every longer pulse"
                out.append(ReportClaim(what, "it does", f"lowest with pulses of {best:,.0f} ms", grows))
        return [*out, *self._along_the_chain(rows), *mistakes(rows)]

    def _along_the_chain(self, rows: Rows) -> list[ReportClaim]:
        """What a longer pulse adds in a short chain and in a long one, and what a short one costs."""
        out = []
        added = {}
        for length in distinct(rows, "length"):
            newest = by_place(chosen(rows, length=length), "period_ms", "newest_p50_ms")
            if len(newest) > 1:
                added[length] = newest[max(newest)] - min(newest.values())
            sent = by_place(chosen(rows, length=length), "period_ms", "bytes_per_s")
            if len(sent) > 1 and sent[max(sent)]:
                times = sent[min(sent)] / sent[max(sent)]
                what = f"{segments_of(length)}: bytes with the shortest pulses by those with the longest"
                out.append(ReportClaim(what, "above 1", f"{times:.2f}", times > 1))
        if len(added) == len(self.lengths):
            short, long = (added[str(length)] for length in self.lengths)
            what = f"latency that the longest pulses add with {self.lengths[0]} segment, and with {self.lengths[1]}"
            out.append(ReportClaim(what, "more in the longer chain", f"{short:,.0f} ms, {long:,.0f} ms", long > short))
        return out


class Shards(Experiment):
    """What more shards of one segment do to latency."""

    name = "mib2"
    title = "Latency of rows through one segment in 1 to 4 shards"
    source = f"{SOURCE}, Fig. 12"
    paper = (
        PaperValue("1 to 4 partitions", "little difference, in almost all configurations"),
        PaperValue("heartbeats (LiveRobin) with 1 partition", "as fast as no ordering: there is one input only"),
        PaperValue("highest tail", "that of the leader (KaZoo)"),
    )

    def scale(self, size: Size) -> str:
        return f"2 nodes, one source, {RATE:,} rows/s, pulses of {PULSE_MS:,} ms ({CLUSTER})"

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"shards": 2, "way": PULSE}]
        return [{"shards": shards, "way": way} for shards in (1, 2, 4) for way in (NONE, UNORDERED, LEADER, PULSE)]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        load = {"WAY": case["way"], "LENGTH": 1, "SHARDS": case["shards"], "RATE": RATE}
        found = measure_quiet(IDENTITY, load, MeasuredSpan.of(size), PULSE_MS)
        return [{**found.latency("rows", RATE), **found.costs(), **found.mistakes("rows")}]

    def draw(self, rows: Rows, figure: Figure) -> None:
        axes = figure.subplots()
        draw_boxes(axes, rows, "shards", "way")
        axes.set_xlabel("shards")
        axes.set_ylabel("latency of rows (ms)")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = [
            seen(
                f"{row['shards']} shards, {name_of(str(row['way']))}",
                f"p50 {shown(number(row, 'p50_ms'))}, p99 {shown(number(row, 'p99_ms'))}",
            )
            for row in rows
        ]
        for way in distinct(rows, "way"):
            few, many = (figure_of(rows, "p50_ms", way=way, shards=shards) for shards in (1, 4))
            if few and many is not None:
                what = f"{name_of(way)}: median with 4 shards by that with one"
                out.append(ReportClaim(what, "about 1", ratio(many, few), abs(many / few - 1) <= LITTLE))
        pulse, unordered = (figure_of(rows, "p50_ms", way=way, shards=1) for way in (PULSE, UNORDERED))
        if pulse and unordered:
            what = "one shard: median with pulses by that without any order"
            out.append(ReportClaim(what, "about 1", ratio(pulse, unordered), abs(pulse / unordered - 1) <= LITTLE))
        return [*out, *_highest_tail(rows, "shards"), *mistakes(rows)]


class Unbalanced(Experiment):
    """Two sources of very different rates into one segment."""

    name = "mib3"
    title = "Latency of rows of two sources with different rates"
    source = f"{SOURCE}, Fig. 13"
    paper = (
        PaperValue("rates", "5 events/s against 10, 1,000 and 10,000"),
        PaperValue("median of passive replication and of the leader (KaZoo)", "does not change"),
        PaperValue("median of heartbeats (LiveRobin)", "grows a little with the imbalance"),
        PaperValue("highest tail", "that of the leader (KaZoo)"),
    )
    rare = 5
    rates = (10, 1_000, 10_000)
    pulse_ms = 750

    def scale(self, size: Size) -> str:
        return f"2 nodes, 1 shard, pulses of {self.pulse_ms} ms ({CLUSTER})"

    def cases(self, size: Size) -> Sequence[Row]:
        if size.quick:
            return [{"rate": 1_000, "way": PULSE}]
        return [{"rate": rate, "way": way} for rate in self.rates for way in (PASSIVE, LEADER, PULSE)]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        rate = number(case, "rate")
        assert rate is not None
        load = {"WAY": case["way"], "RARE_RATE": self.rare, "RATE": case["rate"]}
        found = measure_quiet(UNION, load, MeasuredSpan.of(size), self.pulse_ms)
        rare = {f"rare_{name}": value for name, value in found.latency("rare", self.rare).items()}
        return [{**found.latency("often", rate), **rare, **found.costs(), **found.mistakes("rare", "often")}]

    def draw(self, rows: Rows, figure: Figure) -> None:
        both = figure.subplots(1, 2, sharey=True)
        for axes, prefix, what in zip(both, ("rare_", ""), (f"the {self.rare} rows/s", "the others"), strict=True):
            draw_boxes(axes, rows, "rate", "way", prefix=prefix)
            axes.set_title(what, fontsize=9)
            axes.set_xlabel(f"rows/s beside {self.rare} rows/s")
        largest = [number(row, name) or 0.0 for row in rows for name in ("p99_ms", "rare_p99_ms")]
        both[0].set_ylim(0, 1.05 * max(largest))
        both[1].get_legend().remove()
        both[0].set_ylabel("latency of rows (ms)")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = [
            seen(
                f"{self.rare} against {row['rate']} rows/s, {name_of(str(row['way']))}",
                f"rare rows p50 {shown(number(row, 'rare_p50_ms'))}, p99 {shown(number(row, 'rare_p99_ms'))}; the "
                f"others p50 {shown(number(row, 'p50_ms'))}, p99 {shown(number(row, 'p99_ms'))}",
            )
            for row in rows
        ]
        for way in distinct(rows, "way"):
            for prefix, whose in (("rare_", "rare rows"), ("", "the others")):
                few, many = (figure_of(rows, f"{prefix}p50_ms", way=way, rate=rate) for rate in (10, 10_000))
                if not few or many is None:
                    continue
                what = f"{name_of(way)}: latency of {whose} with 10,000 rows/s by that with 10"
                # Pulses grow a little in the paper, the others not at all; both is not much here.
                low = 1.0 if way == PULSE else 1 - LITTLE
                paper = "a little above 1" if way == PULSE else "about 1"
                out.append(ReportClaim(what, paper, ratio(many, few), low <= many / few <= 1 + LITTLE))
        return [*out, *_highest_tail(rows, "rate"), *mistakes(rows)]


def _beside_each_other(rows: Rows) -> list[ReportClaim]:
    """What the paper says of the replicated ways: the lowest median without order, then the leader's, which varies."""
    out = []
    for length in distinct(rows, "length"):
        found = {way: of[0] for way in (UNORDERED, LEADER, PULSE) if (of := chosen(rows, length=length, way=way))}
        if len(found) < 3:
            continue
        medians = {way: number(row, "p50_ms") or 0.0 for way, row in found.items()}
        spreads = {way: (number(row, "p99_ms") or 0.0) - (number(row, "p1_ms") or 0.0) for way, row in found.items()}
        place = segments_of(length)
        out += [
            ReportClaim(
                f"{place}: lowest median of the replicated ways",
                name_of(UNORDERED),
                ", ".join(f"{name_of(way)} {median:,.0f} ms" for way, median in medians.items()),
                medians[UNORDERED] <= min(medians.values()),
            ),
            ReportClaim(
                f"{place}: median of the leader against that of pulses",
                "lower",
                f"{medians[LEADER]:,.0f} ms against {medians[PULSE]:,.0f} ms",
                medians[LEADER] < medians[PULSE],
            ),
            ReportClaim(
                f"{place}: spread of latencies (p1 to p99) with a leader against pulses",
                "wider",
                f"{spreads[LEADER]:,.0f} ms against {spreads[PULSE]:,.0f} ms",
                spreads[LEADER] > spreads[PULSE],
            ),
        ]
    return out


def _highest_tail(rows: Rows, group: str) -> list[ReportClaim]:
    """Whether the leader has the highest tail of all, as the paper says."""
    out = []
    for place in distinct(rows, group):
        tails = {str(row["way"]): number(row, "p99_ms") or 0.0 for row in chosen(rows, **{group: place})}
        if LEADER not in tails or len(tails) < 2:
            continue
        here = ", ".join(f"{name_of(way)} {tail:,.0f} ms" for way, tail in tails.items())
        highest = tails[LEADER] >= max(tails.values())
        out.append(ReportClaim(f"{group} {place}: highest p99", name_of(LEADER), here, highest))
    return out


def mistakes(rows: Rows) -> list[ReportClaim]:
    """What was lost or came twice, of those configurations that do not exclude it, and of all others."""
    unsound = chosen(rows, way=UNORDERED)
    sound = [row for row in rows if row.get("way") != UNORDERED]
    out = []
    for kind, of in (("with an agreed order", sound), ("without any order", unsound)):
        if of:
            due, lost, twice = (
                sum(int(number(row, name) or 0) for row in of) for name in ("due", "lost", "duplicated")
            )
            out.append(seen(f"rows {kind}", f"{lost:,} of {due:,} lost, {twice:,} duplicated"))
    return out


def segments_of(length: str) -> str:
    return f"{length} segment{'' if length == '1' else 's'}"


def by_place(rows: Rows, over: str, figure: str) -> dict[float, float]:
    """A figure by what is varied, from the least of it to the most."""
    points = [(x, y) for row in rows if (x := number(row, over)) is not None and (y := number(row, figure)) is not None]
    return dict(sorted(points))


def _kilo(value: float | None) -> float | None:
    return None if value is None else value / 1_000
