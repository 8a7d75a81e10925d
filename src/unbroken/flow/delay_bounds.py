"""Which bounds on delay can be kept, by what in a dataflow, and why others cannot."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from unbroken.errors import Problem
from unbroken.flow.availability import POLICIES, RECONCILES, WAIT, Availability
from unbroken.flow.dataflow import Dataflow, Segment
from unbroken.flow.ordering import bucketed, led_segments
from unbroken.protocol.combinations import why_not
from unbroken.protocol.output.outbox import FAILURE_WINDOW
from unbroken.protocol.registry import Backups, registered
from unbroken.protocol.values.consistency import InputHandling
from unbroken.protocol.values.strategy import Ha
from unbroken.quantities import milliseconds

LEAST_DELAY_MS = 500.0
"""A stateful micro-batch takes 150 to 300 ms: a shorter bound would be broken without any failure."""

MOST_DELAY_MS = 86_400_000.0
"""A day, as input that is not final yet has to be kept."""

LEAST_LEFT_MS = 100.0
"""What must be left of the bound when the waiting is over: results are ready by then, but not yet passed on."""


def available_segments(flow: Dataflow) -> dict[str, Availability]:
    """The segments that go on without missing input, and how."""
    asked = {name: segment.availability for name, segment in flow.segments.items()}
    return {name: how for name, how in asked.items() if isinstance(how, Availability)}


def availability_problems(flow: Dataflow) -> list[Problem]:
    """Everything about the bounds on delay in a dataflow that cannot work.

    What is wrong with the dataflow's own is told once, not for every segment that leaves its out.
    """
    out: list[Problem] = []
    bucket_ms = float(flow.settings.bucket) if bucketed(flow) else None
    if flow.availability is not None and flow.availability != WAIT:
        found = [*_value_problems(flow.availability, bucket_ms)]
        out += [Problem(flow.where, what, remedy) for what, remedy in found]
    led = led_segments(flow)
    for segment in flow.segments.values():
        if segment.availability is None:
            continue
        own = segment.availability is not flow.availability
        found = [*_value_problems(segment.availability, bucket_ms)] if own else []
        out += [Problem(segment.where, what, remedy) for what, remedy in (*found, *_segment_problems(segment, led))]
    return out + _flow_problems(flow)


def _flow_problems(flow: Dataflow) -> list[Problem]:
    names = sorted(available_segments(flow))
    out: list[Problem] = []
    for setting in ("pairs", "guarantee"):
        policy = getattr(flow.settings, setting)
        reasons = [why_not(way, policy) for way in RECONCILES]
        if names and None not in reasons:
            what = f"{setting}={policy!r} cannot be combined with availability ({', '.join(names)}): {reasons[0]}"
            out.append(Problem(flow.where, what, f"leave {setting} out, or leave availability out"))
    return out


def _segment_problems(segment: Segment, led: frozenset[str]) -> Iterator[tuple[str, str]]:
    """What a segment has that does not go together with any bound on its delay."""
    ha = segment.redundancy.ha
    replicated = registered(ha).backups is Backups.PROCESS or ha not in [known.value for known in Ha]
    if segment.routing is not None or not replicated:
        has = f"ha={ha!r}" if segment.routing is None else f"routing={segment.routing!r}"
        what = f"availability is for segments with ha='active' or 'active-standby', and this one has {has}"
        yield what, f"leave {has.split('=')[0]} out, or say availability=WAIT for this segment"
    counts = "availability counts on units that are numbered by pulses"
    if segment.name in led:
        yield f"it is ordered by a leader, and {counts}", "order it by 'pulse', or say availability=WAIT for it"
        return
    for name in dict.fromkeys(segment.inputs):
        if name in led:
            what = f"its input {name} is ordered by a leader, and {counts}"
            yield what, f"order {name} by 'pulse', or say availability=WAIT for this segment"


def _value_problems(asked: Any, bucket_ms: float | None) -> Iterator[tuple[str, str]]:
    """What makes no sense whatever segment it is for, if units are buckets of this length."""
    if not isinstance(asked, Availability):
        remedy = "write availability=Availability(max_delay='3s'), or availability=WAIT to wait for missing input "
        remedy += "however long (from unbroken import Availability, WAIT)"
        yield f"availability={asked!r} is no bound on the delay", remedy
        return
    delay, alpha = _duration_ms(asked.max_delay), _share(asked.alpha)
    if delay is None:
        yield f"max_delay={asked.max_delay!r} is not a length of time", "write for example '3s' or '1500ms'"
    elif delay < LEAST_DELAY_MS:
        what = f"max_delay={asked.max_delay!r} is too short: a micro-batch and passing on its result take longer"
        plain = "" if isinstance(asked.max_delay, str) else ", and a number without a unit is one of milliseconds"
        yield what, f"allow {LEAST_DELAY_MS:g}ms or more; '3s' is a good start{plain}"
    elif delay > MOST_DELAY_MS:
        yield f"max_delay={asked.max_delay!r} is too long", "use at most 24h, or WAIT to wait however long"
    elif bucket_ms is not None and delay > FAILURE_WINDOW * bucket_ms:
        yield _more_than_is_kept(asked, delay, bucket_ms)
    if alpha is None:
        what = f"alpha={asked.alpha!r} is not a share of max_delay"
        yield what, "use a number between 0 and 1, such as 0.9: the share that is spent waiting"
    elif delay is not None and LEAST_DELAY_MS <= delay <= MOST_DELAY_MS:
        yield from _nothing_left(asked, delay, alpha)
    yield from _word_problems(asked)


def _more_than_is_kept(asked: Availability, delay: float, bucket_ms: float) -> tuple[str, str]:
    """Producers would stop sending before the waiting is over, and no result would come within the bound."""
    kept = f"{FAILURE_WINDOW} buckets of {bucket_ms:g} ms"
    what = f"max_delay={asked.max_delay!r} is longer than the {kept} that are kept while other input is missing"
    most, least = math.floor(FAILURE_WINDOW * bucket_ms / 60_000), math.ceil(delay / FAILURE_WINDOW)
    return what, f"use at most {most}min, buckets of {least}ms or more (bucket=), or WAIT to wait however long"


def _nothing_left(asked: Availability, delay: float, alpha: float) -> Iterator[tuple[str, str]]:
    left = round(delay * (1 - alpha), 6)  # 1 - 0.9 is a little less than 0.1
    if left < LEAST_LEFT_MS:
        most = math.floor(round((1 - LEAST_LEFT_MS / delay) * 100, 6)) / 100
        what = f"alpha={asked.alpha!r} of max_delay={asked.max_delay!r} leaves {left:g} ms to pass results on"
        yield what, f"leave {LEAST_LEFT_MS:g} ms: use alpha={most:g} or less, or a longer max_delay"


def _word_problems(asked: Availability) -> Iterator[tuple[str, str]]:
    words = {"during_failure": POLICIES, "during_stabilization": POLICIES, "reconcile": RECONCILES}
    for name, known in words.items():
        if getattr(asked, name) not in known:
            waits = f"; {InputHandling.SUSPEND.value!r} waits for missing input" if known is POLICIES else ""
            yield f"there is no {name}={getattr(asked, name)!r}", f"use one of: {', '.join(known)}{waits}"
    if asked.state_horizon is None:
        return
    horizon = _duration_ms(asked.state_horizon)
    if horizon is None or horizon <= 0:
        what = f"state_horizon={asked.state_horizon!r} is not a length of time"
        yield what, "write for example '10s' or '5min': how far back a row can still matter"
    elif asked.reconcile in RECONCILES and not registered(asked.reconcile).rebuilds:
        what = f"state_horizon={asked.state_horizon!r} has no meaning with reconcile={asked.reconcile!r}"
        yield what, "only reconcile='undo' builds state again from recent input: leave it out"


def _duration_ms(value: Any) -> float | None:
    """A length of time that a user wrote; users write what they like."""
    if isinstance(value, bool):
        return None
    try:
        ms = float(milliseconds(value))
    except (TypeError, ValueError):
        return None
    return ms if math.isfinite(ms) else None


def _share(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1
    return float(value) if fits else None
