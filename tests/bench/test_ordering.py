"""`unbroken bench ordering` with a short run: every number is there and makes sense; no timing is judged."""

from __future__ import annotations

import json

import pytest

from unbroken_lab.experiments.ordering import OrderingSettings, run_ordering


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_leader_is_killed() -> None:
    said: list[str] = []
    result = run_ordering(OrderingSettings(("leader-zookeeper",), ("unbalanced",), ("leader",), 20), said.append)
    (run,) = result["runs"]
    assert "error" not in run, said
    assert run["lost"] == run["duplicated"] == run["missing_units"] == 0
    for latency in (run["latency_ms"], *run["latency_by_input_ms"].values()):
        assert 0 < latency["before"]["p50"] <= latency["before"]["p99"] <= latency["before"]["max"]
        assert latency["after"]["max"] > 0
    assert 0 < run["gap_ms"]["at_kill"] <= run["gap_ms"]["after"]
    assert run["bytes"]["total"] > 0 and run["rows"] > 0
    assert run["cpu_cores"]["nodes"] > 0 and run["cpu_cores"]["zookeeper"] > 0 and run["cpu_cores"]["kafka"] is None
    assert run["leader"]["node"] == run["killed"], run["story"]
    assert run["election_s"] > 0 and run["detection_s"] > 0
    assert {term["node"] for term in run["terms_since"]} != {run["killed"]}
    json.dumps(result)
