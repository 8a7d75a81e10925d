"""Replicas that nobody orders: that they differ, that the comparison of digests finds it, and what it would cost.

Two sources feed one segment with two replicas. With pulses or a leader both take the same units in every micro-batch.
For this experiment alone they can also take whatever has arrived at each of them (see ``arrival``: each node has an
order log of its own, and everything else is the product as it is). Then the same number stands for different rows on
the two replicas. Once the digests are compared as in every flow, and the product stops a replica that differs; once
that is switched off, and the subscriber, who takes the first copy of every number, shows what would be given out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unbroken.observe.notices import text_of
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.replicas import ReplicaDiverged
from unbroken_lab.experiments.experiment import (
    Experiment,
    PaperValue,
    ReportClaim,
    Row,
    Rows,
    Say,
    Size,
    Value,
    number,
)
from unbroken_lab.experiments.observation.observed import Observed, observed
from unbroken_lab.experiments.paper.rosinosky.boxes import shown
from unbroken_lab.experiments.paper.rosinosky.mib import CLUSTER, SOURCE, UNION
from unbroken_lab.experiments.paper.rosinosky.numbered import NumberedReader
from unbroken_lab.experiments.paper.rosinosky.quiet import MeasuredSpan, stay
from unbroken_lab.experiments.parameters.ways import LEADER, PULSE, UNORDERED, color_of, name_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES: Mapping[str, int] = {"rare": 1_000, "often": 1_000}
PULSE_MS = 750
LONGEST_S = 60.0
LOOK_S = 0.5

COMPARED, IGNORED = "compared", "not compared"


@dataclass(frozen=True)
class Divergences:
    """The reports that replicas differ: when the first came, and how many there were."""

    count: int
    first_ms: float | None
    sentence: str

    @classmethod
    def of(cls, history: Sequence[Reported]) -> Divergences:
        """Both replicas' nodes find the same difference, and each reports it once."""
        found = [(one.time_ms, one.notice) for one in history if isinstance(one.notice, ReplicaDiverged)]
        units = {(notice.kept, notice.stream, notice.unit) for _, notice in found}
        if not found:
            return cls(0, None, "")
        first_ms, first = min(found, key=lambda one: one[0])
        return cls(len(units), float(first_ms), text_of(first))


class Unordered(Experiment):
    """The same flow with an agreed order and without, with digests compared and not."""

    name = "unordered"
    title = "Replicas without an order differ, and it is found"
    source = f"{SOURCE}, the configuration 'no ordering'"
    paper = (PaperValue("no ordering", "called incorrect, and measured only to tell what ordering costs"),)

    def scale(self, size: Size) -> str:
        rates = " and ".join(f"{rate:,}" for rate in RATES.values())
        return f"2 nodes, two sources with {rates} rows/s, 1 shard, pulses of {PULSE_MS} ms ({CLUSTER})"

    def cases(self, size: Size) -> Sequence[Row]:
        alone = [{"way": UNORDERED, "digests": COMPARED}, {"way": UNORDERED, "digests": IGNORED}]
        if size.quick:
            return alone[:1]
        return [*alone, {"way": LEADER, "digests": COMPARED}, {"way": PULSE, "digests": COMPARED}]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        span = MeasuredSpan(0.0, size.of(40.0, 8.0))
        load = {"WAY": case["way"], "COMPARE": int(case["digests"] == COMPARED), "SECONDS": span.stream_s}
        load |= {"RARE_RATE": RATES["rare"], "RATE": RATES["often"], "PULSE_MS": PULSE_MS}
        with observed(UNION, load, NumberedReader) as run:
            reader, began_ms = run.reader, time.time() * 1_000
            assert isinstance(reader, NumberedReader)
            stay(run, span.seconds)
            if case["way"] == UNORDERED and case["digests"] == COMPARED:
                _await_divergence(run)
            until_ms, history = time.time() * 1_000, run.history()
        found = Divergences.of(history)
        if found.sentence:
            say(f"  {found.sentence}")
        return [self._figures(reader, found, (until_ms - began_ms) / 1_000)]

    def _figures(self, reader: NumberedReader, found: Divergences, seconds: float) -> Row:
        """Differences, and rows lost and doubled. The first result is when there is something to differ."""
        first_ms = min((one.arrived_ms for one in reader.samples), default=None)
        after_s: Value = None
        if found.first_ms is not None and first_ms is not None:
            after_s = round(max(0.0, found.first_ms - first_ms) / 1_000, 3)
        rows = {source: reader.rows(source) for source in RATES}
        due = {source: reader.due(source) for source in RATES}
        return {
            "seconds": round(seconds, 1),
            "units": len(reader.samples),
            "divergences": found.count,
            "first_after_s": after_s,
            "due": sum(due.values()),
            "lost": sum(rows[source].missing(due[source]) for source in RATES),
            "duplicated": sum(of.repeated for of in rows.values()),
            "told": found.sentence,
        }

    def draw(self, rows: Rows, figure: Figure) -> None:
        found, wrong = figure.subplots(1, 2)
        ways = [name_of(str(row["way"])).replace(" (", "\n(") for row in rows]
        names = [f"{way},\n{row['digests']}" for way, row in zip(ways, rows, strict=True)]
        places = range(len(rows))
        colors = [color_of(str(row["way"])) for row in rows]
        found.bar(places, [number(row, "divergences") or 0 for row in rows], color=colors)
        found.set_ylabel("differences found")
        for shift, column, hatch in ((-0.2, "lost", ""), (0.2, "duplicated", "//")):
            heights = [number(row, column) or 0 for row in rows]
            wrong.bar([at + shift for at in places], heights, 0.38, color=colors, hatch=hatch, label=column)
        wrong.set_ylabel("rows of results that are wrong")
        wrong.legend(fontsize=8, loc="upper right")
        for axes in (found, wrong):
            axes.set_xticks(list(places), names, fontsize=7)
            axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
            axes.grid(axis="y", alpha=0.3)

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out = []
        for row in rows:
            count = int(number(row, "divergences") or 0)
            first = number(row, "first_after_s")
            when = "" if first is None else f", the first {shown(first, 's', 1)} after the first result"
            found = f"{count} differences found" if row["digests"] == COMPARED else "differences are not looked for"
            lost, due, twice = (number(row, name) or 0 for name in ("lost", "due", "duplicated"))
            here = (
                f"{found} in {shown(number(row, 'seconds'), 's')}{when}; {lost:,.0f} of {due:,.0f} rows lost, "
                f"{twice:,.0f} duplicated"
            )
            differs = any(number(row, name) for name in ("divergences", "lost", "duplicated"))
            expected = "replicas differ" if row["way"] == UNORDERED else "replicas agree"
            what = f"{name_of(str(row['way']))}, digests {row['digests']}"
            out.append(ReportClaim(what, expected, here, differs == (row["way"] == UNORDERED)))
        return out


def _await_divergence(run: Observed) -> None:
    """It is a matter of chance when replicas differ for the first time; usually it is within seconds."""
    until = time.monotonic() + LONGEST_S
    while not Divergences.of(run.history()).count and time.monotonic() < until:
        time.sleep(LOOK_S)
