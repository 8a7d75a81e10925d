"""Wrong numbers in connectors are sentences when the flow is checked, whatever their type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from unbroken import Console, Delta, Files, Generator, Kafka, KafkaSink, PostgreSQL, Push

WRONG = ["x", None, -1, math.inf, -math.inf, math.nan, 10**400, 10**5000, [1], True]
MADE: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "Push": (
        lambda **given: Push("n long", **given),
        ("max_body_bytes", "max_line_bytes", "max_decoded_bytes", "heartbeat"),
    ),
    "Files": (
        lambda **given: Files("in", format="json", schema="n long", **given),
        ("max_line_bytes", "max_files_per_pulse", "max_bytes_per_pulse", "max_decoded_bytes", "settle_ms"),
    ),
    "Kafka": (lambda **given: Kafka("h:9092", "t", **given), ("max_records_per_pulse", "max_bytes_per_pulse")),
    "Generator": (
        lambda **given: Generator(**{"rate": 1.0, **given}),
        ("rate", "limit", "batch_rows", "max_rows_per_pulse"),
    ),
    "PostgreSQL": (lambda **given: PostgreSQL("postgresql://u@h/d", "t", **given), ("timeout",)),
    "Delta": (lambda **given: Delta("out", **given), ("checkpoint_every",)),
    "Console": (Console, ("limit",)),
    "KafkaSink": (
        lambda **given: KafkaSink("h:9092", "t", options={"transaction.timeout.ms": given.get("timeout", 30_000)}),
        ("timeout",),
    ),
}
MEANT = {("Push", "heartbeat"), ("Generator", "rate"), ("Generator", "limit")}
"""Where None has a meaning."""

CASES = [(made, name) for made, (_, names) in MADE.items() for name in names]


@pytest.mark.parametrize(("made", "name"), CASES)
def test_a_wrong_number_is_one_sentence(made: str, name: str) -> None:
    make, _ = MADE[made]
    assert make().problems() == []
    for wrong in WRONG:
        if wrong is None and (made, name) in MEANT:
            continue
        (problem,) = make(**{name: wrong}).problems()
        assert len(str(problem)) < 300 and problem.remedy, problem
        assert name in problem.what, problem
