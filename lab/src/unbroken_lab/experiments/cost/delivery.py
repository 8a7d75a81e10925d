"""`unbroken bench delivery`: taking units from all producers against taking them from one; bytes, and a lost node."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from unbroken.errors import UnbrokenError
from unbroken.observe.status.node import NodeStatus
from unbroken_lab.demo.measure import FAULT_WINDOW_MS, ArrivalSample, DemoSchedule, measure
from unbroken_lab.experiments.bars import draw_bars
from unbroken_lab.experiments.experiment import (
    Experiment,
    ReportClaim,
    ReportColumn,
    Row,
    Rows,
    Size,
    compared,
    flat,
    none_of,
    number,
    parameter,
)
from unbroken_lab.experiments.observation.figures import spread
from unbroken_lab.experiments.observation.observed import END_SLACK_S, START_S, Observed, Say, observed
from unbroken_lab.experiments.observation.usage import PURPOSES, Reading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAYS = ("duplicate", "single")
READ_S = 0.5
"""Nodes are asked this often for their counters; bytes in between are interpolated."""

SHORTEST_S = 10
QUICK_SECONDS = 12
SETTLE_S = 20.0
"""How much longer than planned the warm-up may take until results come within a few pulses."""

SETTLED_PULSES = 4


@dataclass(frozen=True)
class KilledProducer:
    """What was killed when, how many replicas on other nodes read from it, and whether it led the ingress.

    ``feeds_between_nodes`` is the number of pairs of a replica and another node that it read from: so many copies of
    every row went over the wire, both hops of the chain together.
    """

    node: str
    at_ms: float
    readers: int
    led_ingress: bool
    feeds_between_nodes: int


@dataclass(frozen=True)
class DeliveryWays(Experiment):
    """One case for each way, with a cluster of its own and the same load."""

    name = "delivery"
    title = "Input from all producers, or from one"
    source = "unbroken bench delivery"
    columns: ClassVar = (
        ReportColumn("delivery", "delivery"),
        ReportColumn("bytes_per_row", "bytes per row", digits=0),
        ReportColumn("latency_ms.before.p50", "p50", " ms", 0),
        ReportColumn("latency_ms.before.p99", "p99", " ms", 0),
        ReportColumn("latency_ms.at_kill.max", "largest at the kill", " ms", 0),
        ReportColumn("gap_ms.before", "gap before", " ms", 0),
        ReportColumn("gap_ms.at_kill", "gap at the kill", " ms", 0),
        ReportColumn("lost", "lost", digits=0),
        ReportColumn("duplicated", "duplicated", digits=0),
    )

    seconds: int = parameter(70, "Length of the stream of rows, for each way.")
    rate: int = parameter(2_000, "Rows per second.")
    pulse_ms: int = parameter(750, "Length of every pulse in milliseconds.")

    def __post_init__(self) -> None:
        if self.seconds < SHORTEST_S:
            raise UnbrokenError(f"a stream of {self.seconds} s is too short to be measured; give {SHORTEST_S} or more")

    def scale(self, size: Size) -> str:
        return (
            f"Three nodes on one machine, two segments in a chain, {self.rate:,} rows/s, pulses of {self.pulse_ms} ms; "
            "the node from which most replicas take input is killed"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        return [{"delivery": way} for way in WAYS]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        seconds = int(size.of(self.seconds, QUICK_SECONDS))
        return [flat(_measure(str(case["delivery"]), self.rate, self.pulse_ms, seconds, say))]

    def draw(self, rows: Rows, figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        draw_bars(left, rows, "delivery", {f"bytes.{purpose}": purpose for purpose in PURPOSES}, "MB", 1e6)
        draw_bars(right, rows, "delivery", {"gap_ms.before": "before", "gap_ms.at_kill": "at the kill"}, "gap in ms")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        found = {str(row["delivery"]): row for row in rows}
        out = [none_of(rows, "lost", "duplicated")]
        if set(found) == set(WAYS):
            for what, ratio in ratios(*(_bytes(found[way]) for way in ("single", "duplicate"))).items():
                out.append(compared(f"bytes of single delivery for each of duplicate delivery: {what}", ratio))
        return out


def _bytes(row: Row) -> dict[str, float]:
    return {purpose: number(row, f"bytes.{purpose}") or 0.0 for purpose in (*PURPOSES, "total")}


def bytes_between(readings: Sequence[Reading], first_row: int, last_row: int) -> dict[str, int]:
    """Bytes by purpose while source rows ``first_row`` to ``last_row`` were cut, and all of them together."""
    rows = [reading.rows for reading in readings]
    if not rows or rows[0] > first_row or rows[-1] < last_row:
        raise UnbrokenError(f"the counters were not read from row {first_row} to row {last_row}")
    out: dict[str, int] = {}
    for purpose in PURPOSES:
        counted = [reading.traffic.get(purpose, 0) for reading in readings]
        begin, end = np.interp([first_row, last_row], rows, counted)
        out[purpose] = round(float(end - begin))
    return {**out, "total": sum(out.values())}


def ratios(single: Mapping[str, float], duplicate: Mapping[str, float]) -> dict[str, float | None]:
    """Bytes of single delivery for each byte of duplicate delivery, of units and of everything."""

    def ratio(*purposes: str) -> float | None:
        one, all_copies = (sum(way[purpose] for purpose in purposes) for way in (single, duplicate))
        return round(one / all_copies, 3) if all_copies else None

    return {
        "units": ratio("data", "redundancy"),
        "acknowledgements": ratio("acknowledgements"),
        "total": ratio("total"),
    }


def remote_readers(states: Sequence[NodeStatus]) -> Counter[str]:
    """How many replicas on other nodes take input from each node."""
    readers: Counter[str] = Counter()
    for state in states:
        for replica in state.replicas:
            sources = {node for nodes in replica.feeds.values() for node in nodes}
            readers.update(sources - {state.node})
    return readers


def most_read(states: Sequence[NodeStatus]) -> str:
    """The node from which most replicas on other nodes take input.

    Among equals one that does not lead the ingress: its loss would stop the cuts, too, whatever the way of delivery.
    """
    readers = remote_readers(states)
    running = [state for state in states if state.running]
    if not running:
        raise UnbrokenError("no node answers")
    return min(running, key=lambda state: (-readers[state.node], state.leading, state.node)).node


def _measure(way: str, rate: int, pulse_ms: int, measured_s: int, say: Say) -> dict[str, Any]:
    say(f"{way}: starting three nodes")
    plan, seconds = DemoSchedule.of(measured_s), int(measured_s + START_S)
    rows = int(rate * (plan.kill_s - plan.warm_s))
    load = {"RATE": rate, "SECONDS": seconds, "PULSE_MS": pulse_ms, "DELIVERY": way}
    with observed("chain.py", load) as run:
        run.settle(plan.warm_s, SETTLED_PULSES * pulse_ms, plan.warm_s + SETTLE_S)
        warm_ms = time.time() * 1000
        readings, states = _read_rows(run, rows, seconds + END_SLACK_S)
        kill = _kill(run, states)
        say(f"{way}: {kill.node} killed, from which {kill.readers} replicas on other nodes took input")
        run.await_end(seconds + END_SLACK_S)
        moved, story = run.state_moved(), run.story()
    used = bytes_between(readings, readings[0].rows, readings[0].rows + rows)
    return {
        "rows": rows,
        "bytes": used,
        "bytes_per_row": round(used["total"] / rows, 1),
        **_results(run.reader.samples, warm_ms, kill.at_ms),
        "lost": run.reader.lost(rate * seconds),
        "duplicated": run.reader.duplicated,
        "killed": kill.node,
        "readers": kill.readers,
        "led_ingress": kill.led_ingress,
        "feeds_between_nodes": kill.feeds_between_nodes,
        "state_after_kill": moved,
        "story": story,
    }


def _results(samples: Sequence[ArrivalSample], warm_ms: float, kill_ms: float) -> dict[str, Any]:
    """The figures of the demonstration, and the latency in the few seconds after the kill alone."""
    figures = measure(samples, warm_ms, kill_ms)
    at_kill = [sample for sample in samples if kill_ms <= sample.arrived_ms < kill_ms + FAULT_WINDOW_MS]
    return {
        "pulse_ms": figures.pulse_ms,
        "latency_ms": {
            "before": asdict(figures.before),
            "at_kill": spread(at_kill),
            "after": asdict(figures.after),
        },
        "gap_ms": {"before": figures.gap_before_ms, "at_kill": figures.gap_fault_ms},
    }


def _read_rows(run: Observed, rows: int, deadline_s: float) -> tuple[list[Reading], Sequence[NodeStatus]]:
    """Read the counters until ``rows`` more rows are cut; all readings, and what the nodes said last."""
    readings: list[Reading] = []
    deadline = time.monotonic() + deadline_s
    while True:
        states = run.cluster.status()
        # A node that does not answer in time would be missing in the sums.
        if all(state.running for state in states):
            readings.append(Reading.of(states))
        if readings and readings[-1].rows >= readings[0].rows + rows:
            return readings, states
        if run.reader.ended() or time.monotonic() > deadline:
            raise UnbrokenError("the flow did not come to the kill; run it alone on the machine")
        time.sleep(READ_S)


def _kill(run: Observed, states: Sequence[NodeStatus]) -> KilledProducer:
    node, readers = most_read(states), remote_readers(states)
    leads = any(state.leading for state in states if state.node == node)
    return KilledProducer(node, run.kill(node), readers[node], leads, readers.total())
