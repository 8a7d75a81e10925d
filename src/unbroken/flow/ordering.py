"""Who may order the input of segments: which orderings go together with what, and why others do not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from unbroken.connectors.kafka.client import client_problems
from unbroken.errors import Problem
from unbroken.flow.dataflow import ORDERINGS, Dataflow, Segment, Source
from unbroken.protocol.combinations import why_not
from unbroken.protocol.registry import Backups, registered
from unbroken.quantities import milliseconds

LEADER = "leader"
BUCKET = "bucket"

LONGEST_DISORDER_MS = 3_600_000
"""Rows wait in memory for their bucket to close: an hour of them is more than most nodes can hold."""

_TIMES = ("timestamp", "timestamp_ntz")


def led_segments(flow: Dataflow) -> frozenset[str]:
    return frozenset(name for name, segment in flow.segments.items() if segment.ordering == LEADER)


def bucketed(flow: Dataflow) -> bool:
    """Whether units are buckets of event time."""
    return flow.ordering == BUCKET


def ordering_problems(flow: Dataflow) -> list[Problem]:
    """Everything about the orderings of a dataflow that cannot work."""
    if flow.ordering not in ORDERINGS:
        # What segments and sources say of it would be measured by something that nobody meant.
        return [Problem(flow.where, *_unknown(flow.ordering))]
    led = led_segments(flow)
    out = [
        Problem(segment.where, what, remedy)
        for segment in flow.segments.values()
        for what, remedy in _segment_problems(segment, led, flow)
    ]
    if bucketed(flow) or not any(segment.ordering == BUCKET for segment in flow.segments.values()):
        for source in flow.sources.values():
            problems = _bucket_problems(source) if bucketed(flow) else _needless(source)
            out += [Problem(source.where, what, remedy) for what, remedy in problems]
        out += [Problem(flow.where, what, remedy) for what, remedy in _needless_settings(flow)]
    if not led and not bucketed(flow):
        return out
    tuned = flow.settings
    if tuned.order_log.startswith("kafka://"):
        servers = tuned.order_log.removeprefix("kafka://").partition("/")[0]
        for flaw in client_problems(servers, tuned.order_log_options, {}):
            out.append(Problem(flow.where, f"order_log: {flaw.what}", flaw.remedy))
    ordering = BUCKET if bucketed(flow) else LEADER
    whole = {
        f"pairs={tuned.pairs!r}": why_not(ordering, tuned.pairs) is not None,
        "snapshots": tuned.snapshots is not None,
        f"guarantee={tuned.guarantee!r}": why_not(ordering, tuned.guarantee) is not None,
    }
    for setting, given in whole.items():
        if given:
            asked = "ordering='bucket'" if bucketed(flow) else f"ordering='leader' ({', '.join(sorted(led))})"
            what = f"{setting} cannot be combined with {asked}"
            remedy = f"leave {setting.split('=')[0]} out, or order all segments by 'pulse'"
            out.append(Problem(flow.where, what, remedy))
    return out


def _unknown(ordering: Any) -> tuple[str, str]:
    return f"there is no ordering={ordering!r}", f"use one of: {', '.join(ORDERINGS)}"


def _segment_problems(segment: Segment, led: frozenset[str], flow: Dataflow) -> Iterator[tuple[str, str]]:
    if segment.ordering not in ORDERINGS:
        yield _unknown(segment.ordering)
        return
    if (segment.ordering == BUCKET) != bucketed(flow):
        what = f"it has ordering={segment.ordering!r} in a dataflow with ordering={flow.ordering!r}"
        yield what, "buckets are made by the sources: say ordering='bucket' for the whole dataflow, or not at all"
        return
    ha = segment.redundancy.ha
    replicated = registered(ha).backups is Backups.PROCESS
    if segment.ordering == LEADER and not replicated:
        what = f"ordering='leader' is for replicas that process the same input, with ha={ha!r} there are none"
        yield what, "leave ha and routing out, or order by 'pulse'"
    ordered = [name for name in segment.inputs if name in led]
    if ordered and not replicated and segment.ordering != LEADER:
        what = f"its input {ordered[0]} is ordered by a leader, and ha={ha!r} counts on units numbered by pulses"
        yield what, f"choose ha='active' here, or order {ordered[0]} by 'pulse'"


def _bucket_problems(source: Source) -> Iterator[tuple[str, str]]:
    """What keeps the rows of a source from being put into buckets."""
    kinds = {field.name: field.dataType.typeName() for field in source.connector.schema.fields}
    fitting = [name for name, kind in kinds.items() if kind in _TIMES]
    known = f"timestamp columns: {', '.join(fitting)}" if fitting else "give its schema a column of type timestamp"
    if source.event_time is None:
        what = "ordering='bucket' puts rows into buckets by their event time, and this source does not name it"
        yield what, f"say event_time='column' ({known})"
    elif not isinstance(source.event_time, str):
        yield f"event_time={source.event_time!r} is not the name of a column", f"name one; {known}"
    elif source.event_time not in kinds:
        yield f"there is no column {source.event_time!r} to take the event time from", f"name another; {known}"
    elif source.event_time not in fitting:
        what = f"event_time is the column {source.event_time!r}, which is of type {kinds[source.event_time]}"
        yield what, f"name another; {known}"
    if not 0 <= _length_ms(source.disorder) <= LONGEST_DISORDER_MS:
        what = f"disorder={source.disorder!r} is not a length of time from 0 to 1 h"
        yield what, "write for example '2s': how much later a row may come than one with a later time"


def _needless(source: Source) -> Iterator[tuple[str, str]]:
    given = [name for name, there in {"event_time": source.event_time, "disorder": source.disorder}.items() if there]
    if given:
        yield _only_with_buckets(given)


def _needless_settings(flow: Dataflow) -> Iterator[tuple[str, str]]:
    given = [name for name in ("bucket", "bucket_origin") if name in flow.settings.model_fields_set]
    if given and not bucketed(flow):
        yield _only_with_buckets(given)


def _only_with_buckets(given: Sequence[str]) -> tuple[str, str]:
    named, plural = " and ".join(given), len(given) > 1
    what = f"{named} {'have' if plural else 'has'} no meaning unless units are buckets of event time"
    return what, f"leave {'them' if plural else 'it'} out, or give the dataflow ordering='bucket'"


def _length_ms(value: Any) -> float:
    """A length of time that a user wrote; not a number if it is none."""
    try:
        return float(milliseconds(value)) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        return math.nan
