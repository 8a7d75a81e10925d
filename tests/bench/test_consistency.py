"""`unbroken bench consistency` with one short failure: every number is there and makes sense; no timing is judged."""

from __future__ import annotations

import json

import pytest

from unbroken_lab.experiments.consistency import run_consistency
from unbroken_lab.experiments.consistency_settings import ConsistencySettings


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_input_is_missing_for_four_seconds() -> None:
    said: list[str] = []
    settings = ConsistencySettings((4.0,), ("process/process",), ("fork",), rate=900)
    result = run_consistency(settings, said.append)
    (run,) = result["runs"]
    assert "error" not in run, said
    assert run["lost"] == run["wrong"] == run["duplicated"] == run["missing_units"] == 0
    assert run["units"] > 20
    assert run["tentative_units"] > 0 and run["tentative_rows"] > 0, run["story"]
    assert run["corrections"] > 0 and run["undos"] == run["reconciled"] > 0
    assert run["delay_new_ms"] > settings.alpha * settings.max_delay_ms
    assert 0 < run["replaced_s"] <= run["reconciliation_s"]
    assert 0 < run["latency_ms"]["before"]["p50"] <= run["latency_ms"]["before"]["p99"]
    assert run["cpu_s"]["quiet"] > 0 and run["cpu_s"]["failure"] > 0
    assert run["micro_batch_ms"]["quiet"]["p50"] > 0
    assert result["ratios"]["met"]["reconciliation_fork_to_redo"] is None
    json.dumps(result)
