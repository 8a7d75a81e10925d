"""Which segments can be ordered by a leader, and what does not go together with that."""

from __future__ import annotations

from collections.abc import Iterator

from unbroken.errors import Problem
from unbroken.flow import ORDERINGS, Dataflow, Segment
from unbroken.protocol.strategy import Ha

LEADER = "leader"

_REPLICATED = (Ha.ACTIVE.value, Ha.ACTIVE_STANDBY.value)


def led_segments(flow: Dataflow) -> frozenset[str]:
    return frozenset(name for name, segment in flow.segments.items() if segment.ordering == LEADER)


def ordering_problems(flow: Dataflow) -> list[Problem]:
    """Everything about the orderings of a dataflow that cannot work."""
    led = led_segments(flow)
    out = [
        Problem(segment.where, what, remedy)
        for segment in flow.segments.values()
        for what, remedy in _segment_problems(segment, led)
    ]
    if not led:
        return out
    tuned = flow.settings
    whole = {
        "pairs='cluster'": tuned.pairs == "cluster",
        "snapshots": tuned.snapshots is not None,
        "guarantee='at-most-once'": tuned.guarantee == "at-most-once",
    }
    for setting, given in whole.items():
        if given:
            what = f"{setting} cannot be combined with ordering='leader' ({', '.join(sorted(led))})"
            remedy = f"leave {setting.split('=')[0]} out, or order all segments by 'pulse'"
            out.append(Problem(flow.where, what, remedy))
    return out


def _segment_problems(segment: Segment, led: frozenset[str]) -> Iterator[tuple[str, str]]:
    if segment.ordering not in ORDERINGS:
        yield f"there is no ordering={segment.ordering!r}", f"use one of: {', '.join(ORDERINGS)}"
        return
    ha = segment.redundancy.ha
    if segment.ordering == LEADER and ha not in _REPLICATED:
        what = f"ordering='leader' is for replicas that process the same input, with ha={ha!r} there are none"
        yield what, "leave ha and routing out, or order by 'pulse'"
    ordered = [name for name in segment.inputs if name in led]
    if ordered and ha not in _REPLICATED and segment.ordering != LEADER:
        what = f"its input {ordered[0]} is ordered by a leader, and ha={ha!r} counts on units numbered by pulses"
        yield what, f"choose ha='active' here, or order {ordered[0]} by 'pulse'"
