"""`unbroken bench delivery`: taking units from all producers against taking them from one; bytes, and a lost node."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from unbroken.errors import UnbrokenError
from unbroken_lab.demo.measure import FAULT_WINDOW_MS, Sample, Schedule, measure
from unbroken_lab.experiments.figures import spread
from unbroken_lab.experiments.observed import END_SLACK_S, START_S, Observed, Say, observed, wait_until

WAYS = ("duplicate", "single")
PURPOSES = ("data", "redundancy", "acknowledgements", "coordination", "state")
READ_S = 0.5
"""Nodes are asked this often for their counters; bytes in between are interpolated."""

SHORTEST_S = 10
SETTLE_S = 20.0
ANSWER_S = 10.0
"""How much longer than planned the warm-up may take until results come within a few pulses."""

SETTLED_PULSES = 4

State = Mapping[str, Any]


@dataclass(frozen=True)
class DeliverySettings:
    """The load, the same for both ways; each is measured for ``seconds`` from its first result on, warm-up included."""

    rate: int = 2_000
    pulse_ms: int = 750
    seconds: int = 70


@dataclass(frozen=True)
class Reading:
    """Source rows cut so far, and bytes by purpose so far, summed over the nodes."""

    rows: int
    traffic: Mapping[str, int]

    @classmethod
    def of(cls, states: Sequence[State]) -> Reading:
        rows = max((int(state["ingress"]["rows"]) for state in states if "ingress" in state), default=0)
        traffic: Counter[str] = Counter()
        for state in states:
            traffic.update(state.get("traffic", {}))
        return cls(rows, traffic)


@dataclass(frozen=True)
class Kill:
    """What was killed when, how many replicas on other nodes read from it, and whether it led the ingress.

    ``feeds_between_nodes`` is the number of pairs of a replica and another node that it read from: so many copies of
    every row went over the wire, both hops of the chain together.
    """

    node: str
    at_ms: float
    readers: int
    led_ingress: bool
    feeds_between_nodes: int


def run_delivery(settings: DeliverySettings, say: Say) -> dict[str, Any]:
    """Both ways, one after the other, each with a cluster of its own."""
    if settings.seconds < SHORTEST_S:
        raise UnbrokenError(f"a stream of {settings.seconds} s is too short to be measured; give {SHORTEST_S} or more")
    plan = Schedule.of(settings.seconds)
    ways = {way: _measure(way, settings, plan, say) for way in WAYS}
    return {
        "rate_per_s": settings.rate,
        "pulse_ms": settings.pulse_ms,
        "seconds": settings.seconds,
        "cores": os.cpu_count(),
        "rows": _rows(settings, plan),
        "ways": ways,
        "ratios": ratios(ways["single"]["bytes"], ways["duplicate"]["bytes"]),
    }


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


def ratios(single: Mapping[str, int], duplicate: Mapping[str, int]) -> dict[str, float | None]:
    """Bytes of single delivery for each byte of duplicate delivery, of units and of everything."""

    def ratio(*purposes: str) -> float | None:
        one, all_copies = (sum(way[purpose] for purpose in purposes) for way in (single, duplicate))
        return round(one / all_copies, 3) if all_copies else None

    return {
        "units": ratio("data", "redundancy"),
        "acknowledgements": ratio("acknowledgements"),
        "total": ratio("total"),
    }


def remote_readers(states: Sequence[State]) -> Counter[str]:
    """How many replicas on other nodes take input from each node."""
    readers: Counter[str] = Counter()
    for state in states:
        for replica in state.get("replicas", []):
            sources = {node for nodes in replica.get("feeds", {}).values() for node in nodes}
            readers.update(sources - {state["node"]})
    return readers


def most_read(states: Sequence[State]) -> str:
    """The node from which most replicas on other nodes take input.

    Among equals one that does not lead the ingress: its loss would stop the cuts, too, whatever the way of delivery.
    """
    readers = remote_readers(states)
    running = [state for state in states if state.get("state") == "running"]
    if not running:
        raise UnbrokenError("no node answers")
    return str(min(running, key=lambda state: (-readers[state["node"]], _leads(state), str(state["node"])))["node"])


def _measure(way: str, settings: DeliverySettings, plan: Schedule, say: Say) -> dict[str, Any]:
    say(f"{way}: starting three nodes")
    seconds, rows = int(settings.seconds + START_S), _rows(settings, plan)
    load = {"RATE": settings.rate, "SECONDS": seconds, "PULSE_MS": settings.pulse_ms, "DELIVERY": way}
    with observed("chain.py", load) as run:
        run.settle(plan.warm_s, SETTLED_PULSES * settings.pulse_ms, plan.warm_s + SETTLE_S)
        warm_ms = time.time() * 1000
        readings, states = _read_rows(run, rows, seconds + END_SLACK_S)
        kill = _kill(run, states)
        say(f"{way}: {kill.node} killed, from which {kill.readers} replicas on other nodes took input")
        run.await_end(seconds + END_SLACK_S)
        moved, story = run.state_moved(), run.story()
    used = bytes_between(readings, readings[0].rows, readings[0].rows + rows)
    return {
        "bytes": used,
        "bytes_per_row": round(used["total"] / rows, 1),
        **_results(run.reader.samples, warm_ms, kill.at_ms),
        "lost": run.reader.lost(settings.rate * seconds),
        "duplicated": run.reader.duplicated,
        "killed": kill.node,
        "readers": kill.readers,
        "led_ingress": kill.led_ingress,
        "feeds_between_nodes": kill.feeds_between_nodes,
        "state_after_kill": moved,
        "story": story,
    }


def _results(samples: Sequence[Sample], warm_ms: float, kill_ms: float) -> dict[str, Any]:
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


def _read_rows(run: Observed, rows: int, deadline_s: float) -> tuple[list[Reading], Sequence[State]]:
    """Read the counters until ``rows`` more rows are cut; all readings, and what the nodes said last."""
    readings: list[Reading] = []
    deadline = time.monotonic() + deadline_s
    while True:
        states = run.cluster.status()
        # A node that does not answer in time would be missing in the sums.
        if all(state.get("state") == "running" for state in states):
            readings.append(Reading.of(states))
        if readings and readings[-1].rows >= readings[0].rows + rows:
            return readings, states
        if run.reader.ended() or time.monotonic() > deadline:
            raise UnbrokenError("the flow did not come to the kill; the machine may be too busy: try again alone")
        time.sleep(READ_S)


def _kill(run: Observed, states: Sequence[State]) -> Kill:
    node, readers = most_read(states), remote_readers(states)
    leads = any(_leads(state) for state in states if state["node"] == node)
    return Kill(node, run.kill(node), readers[node], leads, readers.total())


def _leads(state: State) -> bool:
    return bool(state.get("ingress", {}).get("leading"))


def _rows(settings: DeliverySettings, plan: Schedule) -> int:
    """Source rows between the warm-up and the kill."""
    return int(settings.rate * (plan.kill_s - plan.warm_s))


def reading(run: Observed) -> Reading:
    """The counters of all nodes; one that does not answer in time would be missing in the sums."""
    found: list[Reading] = []

    def complete() -> bool:
        states = run.cluster.status()
        if all(state.get("state") == "running" for state in states):
            found.append(Reading.of(states))
        return bool(found)

    wait_until(complete, ANSWER_S, "all nodes to answer")
    return found[0]
