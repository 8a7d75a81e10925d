"""What the nodes of a flow use: bytes by purpose, as they count them themselves, and processor time."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from unbroken.errors import UnbrokenError
from unbroken.observe.status.node import NodeStatus
from unbroken_lab.experiments.observation.observed import Observed, wait_until

PURPOSES = ("data", "redundancy", "acknowledgements", "coordination", "state")
ANSWER_S = 10.0
"""How long all nodes may take to answer at the same time."""


@dataclass(frozen=True)
class Reading:
    """Source rows cut so far, and bytes by purpose so far, summed over the nodes."""

    rows: int
    traffic: Mapping[str, int]

    @classmethod
    def of(cls, states: Sequence[NodeStatus]) -> Reading:
        rows = max((state.ingress.rows for state in states if state.ingress is not None), default=0)
        traffic: Counter[str] = Counter()
        for state in states:
            traffic.update(state.traffic)
        return cls(rows, traffic)


def reading(run: Observed) -> Reading:
    """The counters of all nodes; one that does not answer in time would be missing in the sums."""
    found: list[Reading] = []

    def complete() -> bool:
        states = run.cluster.status()
        if all(state.running for state in states):
            found.append(Reading.of(states))
        return bool(found)

    wait_until(complete, ANSWER_S, "all nodes to answer")
    return found[0]


def spent(first: Reading, last: Reading) -> dict[str, int]:
    """Bytes by purpose between two readings of the nodes' counters, and all of them together."""
    used = {purpose: last.traffic.get(purpose, 0) - first.traffic.get(purpose, 0) for purpose in PURPOSES}
    if min(used.values()) < 0:
        raise UnbrokenError("the counters went back: a node or a link was begun anew in the quiet time; try again")
    return {**used, "total": sum(used.values())}


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of processes and their descendants, those that have ended included."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for each in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    used = each.cpu_times()
                    total += used.user + used.system + used.children_user + used.children_system
    return total
