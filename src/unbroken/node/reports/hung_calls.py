"""Calls of a node's threads that never come back, after which only a restart helps."""

from __future__ import annotations

from collections.abc import Mapping

from unbroken.node.ingress.service import IngressService
from unbroken.protocol.values.ids import StreamId

HUNG_S = 900.0
"""How long a call to a source or a sink may take before a restart of the node is worth its price. Systems that are
unavailable make calls fail within seconds or minutes; one that never comes back holds a thread for good."""


def hung_call(ingress: IngressService | None, sink_busy_s: Mapping[StreamId, float]) -> str | None:
    """Which thread has not come back from a call for so long that only a restart helps; it answers at once."""
    ages: dict[str, float] = {f"sink {stream}": age for stream, age in sink_busy_s.items()}
    if ingress is not None:
        health = None if ingress.feeder is None else ingress.feeder.health
        if health is not None:
            ages |= {f"source {name}": age_s for name, age_s in health.asking_s().items()}
            ages |= {f"source {name}": one.seconds for name, one in health.stuck().items() if one.hangs}
        ages["ingress"] = ingress.busy_s
        ages["ingress log"] = ingress.log_busy_s
    what, age_s = max(ages.items(), key=lambda item: item[1], default=("", 0.0))
    return None if age_s < HUNG_S else f"its thread for {what} has not come back from a call for {age_s:.0f} s"
