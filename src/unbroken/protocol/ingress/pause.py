"""A flow whose sources are not read for a while, because somebody has asked for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unbroken.protocol.values.layout import Layout, Topology

REST_MS = 1_000.0
"""Time between two pulses of a paused flow: often enough for replicas to be built again and code to be replaced as
ever, seldom enough to leave the machine to others."""


@dataclass(frozen=True)
class Pause:
    """That the sources are not to be read, since when (ms since the epoch) and why."""

    since_ms: int
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"since_ms": self.since_ms, "reason": self.reason}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Pause:
        return cls(int(value["since_ms"]), str(value.get("reason", "")))


class Rest(Enum):
    """What the leader of the ingress does with its sources.

    A paused flow whose sources are cut together goes on with pulses without rows: whatever waits for the next unit (a
    replica that joins, code that takes over) has it soon, and input that does not come is missing, as ever. Where units
    are buckets of event time nothing is cut. The clock would close buckets whose rows have yet to be read, and all of
    them would come late.
    """

    READING = "reading"
    EMPTY = "empty"
    STILL = "still"


def rest_of(topology: Topology, layout: Layout) -> Rest:
    """What a layout asks of the sources."""
    if layout.pause is None:
        return Rest.READING
    return Rest.STILL if topology.bucketed else Rest.EMPTY


def told(before: Pause | None, after: Pause | None, now_ms: int) -> str:
    """What is to be said when a pause begins or ends."""
    if after is not None:
        why = f" ({after.reason})" if after.reason else ""
        return f"the flow is paused{why}: its sources are not read until somebody says `unbroken resume`"
    lasted_s = 0.0 if before is None else max(0.0, (now_ms - before.since_ms) / 1000)
    return f"the flow goes on after a pause of {lasted_s:.1f} s: its sources are read again"
