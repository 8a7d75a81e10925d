"""`unbroken bench core` with tiny parameters: every number is there and makes sense; no timing is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.experiments.trying import drawn, try_out
from unbroken_lab.experiments.cost.core import Core, CoreSample, latency_figures, throughput
from unbroken_lab.experiments.experiment import Row, number


def test_latency_leaves_out_the_warm_up() -> None:
    samples = [CoreSample(float(second), 0, 1_000.0 if second < 5 else 100.0 + second) for second in range(20)]
    figures = latency_figures(samples, warm_up_s=5)
    assert figures["max_ms"] == 119.0
    assert figures["p50_ms"] == 112.0
    assert figures["unit_ms"] == 1_000.0


def test_throughput_is_that_of_the_second_half() -> None:
    slow = [CoreSample(10.0 * i, 100 * i, 0.0) for i in range(5)]
    quick = [CoreSample(40.0 + i, 400 + 100 * i, 0.0) for i in range(1, 5)]
    assert throughput([*slow, *quick]) == pytest.approx(100.0)


def row(system: str, p50_ms: float, rows_per_s: int) -> Row:
    return {
        "system": system,
        **{"p50_ms": p50_ms, "p99_ms": 2 * p50_ms, "max_ms": 3 * p50_ms},
        "unit_ms": 250.0,
        "rows_per_s": rows_per_s,
    }


def test_unbroken_is_compared_with_plain_spark(tmp_path: Path) -> None:
    rows = [row("plain", 200.0, 400_000), row("one_replica", 300.0, 300_000), row("two_replicas", 400.0, 100_000)]
    claims = drawn(Core(), rows, tmp_path)
    assert claims["throughput of two_replicas for each of plain Spark"].here == "0.250"
    assert claims["p50 latency of one_replica for each of plain Spark"].here == "1.500"
    assert Core().claims(rows[1:]) == [], "there is nothing to compare with"


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_one_system_beside_plain_spark(tmp_path: Path) -> None:
    rows = try_out("core", tmp_path)
    assert [row["system"] for row in rows] == ["plain", "one_replica"]
    for row in rows:
        figures = {name: number(row, name) or 0 for name in ("p50_ms", "p99_ms", "max_ms", "rows_per_s")}
        assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
        assert figures["rows_per_s"] > 0
