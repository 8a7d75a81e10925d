"""What is made of a run of `unbroken bench ordering`: pure functions of results, arrivals and notices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.replicas import LeaderElected
from unbroken_lab.demo.measure import FAULT_WINDOW_MS
from unbroken_lab.experiments.experiment import ReportClaim, Rows, none_of, number, ratio_of, seen
from unbroken_lab.experiments.observation.figures import Samples, gap, spread
from unbroken_lab.experiments.parameters.ordered import KEYS, WAYS

COMPARED = {
    "p50": "latency_ms.before.p50",
    "p99": "latency_ms.before.p99",
    **{f"p50 {way}": f"latency_by_input_ms.{way}.before.p50" for way in WAYS},
    "bytes": "bytes_per_row",
    "cores": "cpu_cores.nodes",
    "largest at the kill": "latency_ms.at_kill.max",
    "gap at the kill": "gap_ms.at_kill",
}
"""The figures in which leaders are compared with pulses, and their columns."""


@dataclass(frozen=True)
class Term:
    """Since when a node orders the input of a shard."""

    number: int
    node: NodeId
    at_ms: float

    def to_json(self, killed_ms: float) -> dict[str, Any]:
        return {"after_s": _seconds(killed_ms, self.at_ms), "node": self.node, "term": self.number}


# --- results ------------------------------------------------------------------------------------------


def newest_cuts(results: pa.Table) -> dict[str, int]:
    """When the newest row of each input was cut, of the inputs that a unit of results is made of.

    In update mode a result is there because of a row of its key, so its newest row is one that has just come.
    """
    straight = pc.less(results["k"], KEYS)
    parts = dict(zip(WAYS, (results.filter(straight), results.filter(pc.invert(straight))), strict=True))
    return {way: int(pc.max(part["cut_ms"]).as_py()) for way, part in parts.items() if part.num_rows}


# --- latency and gaps ---------------------------------------------------------------------------------


def latencies(samples: Samples, quiet_ms: float, killed_ms: float) -> dict[str, Any]:
    """Latency in the quiet time, in the few seconds after the kill, and from the kill to the end."""
    quiet = [sample for sample in samples if quiet_ms <= sample.arrived_ms < killed_ms]
    after = [sample for sample in samples if sample.arrived_ms >= killed_ms]
    at_kill = [sample for sample in after if sample.arrived_ms < killed_ms + FAULT_WINDOW_MS]
    return {"before": spread(quiet), "at_kill": spread(at_kill), "after": spread(after)}


def gaps(samples: Samples, quiet_ms: float, killed_ms: float) -> dict[str, float]:
    """The longest time between two results: in the quiet time; of those that end after the kill and begin not much
    later than it; and of all that end after it."""
    times = sorted(sample.arrived_ms for sample in samples)
    later = [(begin, end - begin) for begin, end in pairwise(times) if end >= killed_ms]
    return {
        "before": gap([sample for sample in samples if quiet_ms <= sample.arrived_ms < killed_ms]),
        "at_kill": _longest(length for begin, length in later if begin < killed_ms + FAULT_WINDOW_MS),
        "after": _longest(length for _, length in later),
    }


def units_per_pulse(samples: Samples, quiet_ms: float, killed_ms: float) -> float | None:
    """Units of results for each pulse of the sources in the quiet time: 1 if every micro-batch takes one pulse."""
    quiet = [sample for sample in samples if quiet_ms <= sample.arrived_ms < killed_ms]
    pulses = {sample.cut_ms for sample in quiet}
    return round(len(quiet) / len(pulses), 2) if pulses else None


# --- leaders ------------------------------------------------------------------------------------------


def terms(history: Iterable[Reported], shard: ShardId) -> list[Term]:
    """Who has had the lead of a shard, in the order of the terms."""
    found = [
        Term(reported.notice.term, reported.notice.node, float(reported.time_ms))
        for reported in history
        if isinstance(reported.notice, LeaderElected) and reported.notice.shard == shard
    ]
    return sorted(found, key=lambda term: term.number)


def leader_at(known: Sequence[Term], time_ms: float) -> Term | None:
    """Who had the lead at a time."""
    # Entries have whole milliseconds.
    return max((term for term in known if term.at_ms < int(time_ms)), key=lambda term: term.number, default=None)


def victim(hosts: Sequence[NodeId], leader: NodeId | None, kill: str) -> NodeId:
    """The node to kill, of those with a replica, the oldest first: the one that leads, or the one that follows.

    Without a leader (all replicas are equal) the oldest replica stands for it.
    """
    if len(hosts) != 2:
        raise UnbrokenError(f"two nodes should have a replica of the ordered segment, but there are {len(hosts)}")
    first = hosts[0] if leader is None else leader
    if first not in hosts:
        raise UnbrokenError(f"{first} had the lead last and has no replica; run it alone on the machine")
    return first if kill == "leader" else next(node for node in hosts if node != first)


def elections(known: Sequence[Term], killed_ms: float, killed: NodeId) -> dict[str, Any]:
    """Who led when the node was killed, and who has taken the lead since.

    ``election_s`` is the time until another node had the lead; None if the one that had it was left alone.
    """
    before = leader_at(known, killed_ms)
    since = [term for term in known if before is not None and term.number > before.number]
    lost = before is not None and before.node == killed
    successor = next((term for term in since if term.node != killed), None) if lost else None
    return {
        "leader": None if before is None else {"node": before.node, "term": before.number},
        "election_s": None if successor is None else _seconds(killed_ms, successor.at_ms),
        "terms_since": [term.to_json(killed_ms) for term in since],
    }


# --- comparison ---------------------------------------------------------------------------------------


def ordering_claims(rows: Rows) -> list[ReportClaim]:
    """What was lost, and the figures of leaders for each of those of pulses with the same inputs and kill."""
    claim = "rows lost or duplicated, and units missing"
    out = [none_of(rows, "lost", "duplicated", "missing_units", claim=claim)]
    done = {(str(row["ordering"]), str(row["inputs"]), str(row["kill"])): row for row in rows}
    for (ordering, inputs, kill), row in done.items():
        pulse = done.get(("pulse", inputs, kill))
        if ordering == "pulse" or pulse is None:
            continue
        compared = {name: ratio_of(number(row, column), number(pulse, column)) for name, column in COMPARED.items()}
        here = ", ".join(f"{name} {'unknown' if ratio is None else f'{ratio:.3f}'}" for name, ratio in compared.items())
        out.append(seen(f"{ordering} for each of pulses, {inputs} inputs, {kill} killed", here))
    return out


def _longest(lengths: Iterable[float]) -> float:
    return round(max(lengths, default=0.0), 1)


def _seconds(begin_ms: float, end_ms: float) -> float:
    return round(max(0.0, end_ms - begin_ms) / 1000, 3)
