"""`unbroken bench core` with tiny parameters: every number is there and makes sense; no timing is judged."""

from __future__ import annotations

import pytest

from unbroken_lab.experiments.core import CoreSettings, Sample, latency_figures, run_core, throughput


def test_latency_leaves_out_the_warm_up() -> None:
    samples = [Sample(float(second), 0, 1_000.0 if second < 5 else 100.0 + second) for second in range(20)]
    figures = latency_figures(samples, warm_up_s=5)
    assert figures["max_ms"] == 119.0
    assert figures["p50_ms"] == 112.0
    assert figures["unit_ms"] == 1_000.0


def test_throughput_is_that_of_the_second_half() -> None:
    slow = [Sample(10.0 * i, 100 * i, 0.0) for i in range(5)]
    quick = [Sample(40.0 + i, 400 + 100 * i, 0.0) for i in range(1, 5)]
    assert throughput([*slow, *quick]) == pytest.approx(100.0)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_one_system_beside_plain_spark() -> None:
    # No warm-up: on a busy machine the first micro-batch may take all rows of so short a run.
    tiny = CoreSettings(latency_seconds=2, warm_up_seconds=0, saturation_batch=20_000, saturation_rows=100_000)
    result = run_core(tiny, lambda _: None, systems=("plain", "one_replica"))
    for figures in result["systems"].values():
        assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
        assert figures["rows_per_s"] > 0
    assert set(result["ratios"]) == {"one_replica"}
