"""The price of availability: bytes that would not have to be sent if nothing ever failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from unbroken.observe.status.node import NodeStatus

AVAILABILITY = ("redundancy", "acknowledgements", "state", "coordination")
"""The purposes of such bytes."""


def overhead(traffic: Mapping[str, int]) -> float | None:
    """Bytes for availability per byte for processing; None where nothing is processed."""
    data = traffic.get("data", 0)
    return round(sum(traffic.get(purpose, 0) for purpose in AVAILABILITY) / data, 5) if data else None


def flow_overhead(states: Iterable[NodeStatus]) -> float | None:
    """The same for all nodes together, which report it for themselves: what one sends, another may process."""
    total: Counter[str] = Counter()
    for state in states:
        total.update(state.traffic)
    return overhead(total)
