"""A flow whose sources are not read for a while, because somebody has asked for it."""

from __future__ import annotations

from enum import Enum

from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.notices.placement import FlowPaused, FlowResumed
from unbroken.protocol.values.pause import Pause

REST_MS = 1_000.0
"""Time between two pulses of a paused flow: often enough for replicas to be built again and code to be replaced as
ever, seldom enough to leave the machine to others."""


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


def rest_of(layout: Layout, separate: bool) -> Rest:
    """What a layout asks of the sources; ``separate``: each of them is cut by itself."""
    if layout.pause is None:
        return Rest.READING
    return Rest.STILL if separate else Rest.EMPTY


def changed_pause(before: Pause | None, after: Pause | None, now_ms: int) -> FlowPaused | FlowResumed:
    """The notice when a pause begins or ends."""
    if after is not None:
        return FlowPaused(after.reason)
    return FlowResumed(0.0 if before is None else max(0.0, (now_ms - before.since_ms) / 1000))
