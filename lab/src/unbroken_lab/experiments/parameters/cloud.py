"""What customers of a cloud do, the rules that this is checked against, and the notifications that have to follow.

Events are numbered 0, 1, 2, ..., and so are control events, each of which sets a rule anew: rule ``m % RULES`` with
what control event ``m`` says, from a while after it was sent until the next one for this rule takes effect. Everything
follows from the numbers, so what has to come out can be computed without Spark.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.data.randomness import integers

EVENTS = "n long, tenant long, kind long, value long, at timestamp"
CONTROL = "m long, scope string, key long, level long, actions long, enabled boolean, since timestamp"

KINDS, WATCHED = 20, 16
"""Kinds of events, and how many of them are looked at."""

TENANTS, RULED = 200, 48
"""Customers, and how many of them have rules of their own."""

RULES = WATCHED + RULED
"""Rules for kinds of events come first, those for customers follow."""

VALID_S = 5
"""How long a rule is in force until it is set anew."""

AHEAD_S = 2
"""A rule takes effect so long after it was sent."""

CONTROL_RATE = RULES / VALID_S
BEGIN_US = 1_000_000_000_000_000
"""Event time of the first event."""

SECOND_US = 1_000_000
VALUES = 100
LEVELS = (85, 100)
"""Values that rules are violated from: the least, and one more than the largest."""

PASSING = WATCHED / KINDS * (VALUES - LEVELS[0]) / VALUES
"""The share of events that the filter lets pass: of kinds that are watched, with values that violate a rule at all."""

MOST_ACTIONS = 2

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Events:
    """A generator's function: events whose times are as far apart as the rate says."""

    rate: int

    def __call__(self, start: int, stop: int, seed: int) -> pa.Table:
        n = np.arange(start, stop, dtype=np.int64)
        tenant, kind, value = event_parts(n, seed)
        times = pa.array(BEGIN_US + n * SECOND_US // self.rate).cast(pa.timestamp("us", tz="UTC"))
        return pa.table({"n": n, "tenant": tenant, "kind": kind, "value": value, "at": times})


@dataclass(frozen=True)
class Control:
    """A generator's function: control events, of each rule in turn."""

    def __call__(self, start: int, stop: int, seed: int) -> pa.Table:
        m = np.arange(start, stop, dtype=np.int64)
        rule = m % RULES
        level, actions, enabled = rule_parts(m, seed)
        return pa.table(
            {
                "m": m,
                "scope": pa.array(np.where(rule < WATCHED, "kind", "tenant")),
                "key": np.where(rule < WATCHED, rule, rule - WATCHED),
                "level": level,
                "actions": actions,
                "enabled": enabled,
                "since": pa.array(since_us(m)).cast(pa.timestamp("us", tz="UTC")),
            }
        )


def event_parts(n: Numbers, seed: int) -> tuple[Numbers, Numbers, Numbers]:
    """Customer, kind and value of events."""
    return (
        integers(seed, n, "tenant", 0, TENANTS),
        integers(seed, n, "kind", 0, KINDS),
        integers(seed, n, "value", 0, VALUES),
    )


def rule_parts(m: Numbers, seed: int) -> tuple[Numbers, Numbers, npt.NDArray[np.bool_]]:
    """The value from which on a rule is violated, the notifications that follow, and whether it is in use."""
    level = integers(seed, m, "level", *LEVELS)
    return level, integers(seed, m, "actions", 1, MOST_ACTIONS + 1), integers(seed, m, "enabled", 0, 8) > 0


def since_us(m: Numbers) -> Numbers:
    """From when on what a control event says is in force."""
    return BEGIN_US + AHEAD_S * SECOND_US + m * (VALID_S * SECOND_US) // RULES


def expected(count: int, rate: int, seed: int = 0) -> Numbers:
    """The notifications that the first ``count`` events have to lead to, as numbers (see ``coded``), in order."""
    n = np.arange(count, dtype=np.int64)
    tenant, kind, value = event_parts(n, seed)
    at = BEGIN_US + n * SECOND_US // rate
    seen = kind < WATCHED
    found = [
        _violations(n[mine], at[mine], value[mine], rule[mine], seed)
        for mine, rule in ((seen, kind), (seen & (tenant < RULED), tenant + WATCHED))
    ]
    return np.sort(np.concatenate(found))


def _violations(n: Numbers, at: Numbers, value: Numbers, rule: Numbers, seed: int) -> Numbers:
    """The notifications of events that are each checked against one rule."""
    version = (at - since_us(rule)) // (VALID_S * SECOND_US)
    m = version * RULES + rule
    level, actions, enabled = rule_parts(m, seed)
    hit = (version >= 0) & enabled & (value >= level)
    return np.concatenate(
        [coded(n[hit & (actions >= action)], m[hit & (actions >= action)], action) for action in (1, MOST_ACTIONS)]
    )


def coded(n: Numbers, m: Numbers, action: int | Numbers) -> Numbers:
    """A notification as one number: of which event, by which control event, and the how-manieth of this rule."""
    codes: Numbers = (n * (1 << 20) + m) * 4 + action
    return codes


def event_of(codes: Numbers) -> Numbers:
    """The events that notifications are about."""
    numbers: Numbers = codes // 4 // (1 << 20)
    return numbers


@dataclass(frozen=True)
class NotificationVerdict:
    """How the notifications that came differ from those that had to come."""

    expected: int
    lost: int
    duplicated: int
    wrong: int

    @classmethod
    def of(cls, came: Numbers, through: int, rate: int) -> NotificationVerdict:
        """Judge what came of the first ``through`` events."""
        mine = came[event_of(came) < through]
        distinct, wanted = np.unique(mine), expected(through, rate)
        return cls(
            len(wanted),
            len(np.setdiff1d(wanted, distinct, assume_unique=True)),
            len(mine) - len(distinct),
            len(np.setdiff1d(distinct, wanted, assume_unique=True)),
        )
