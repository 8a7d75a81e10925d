"""`unbroken bench ordering` with a short run: every number is there and makes sense; no timing is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.experiments.trying import try_out
from unbroken_lab.experiments.experiment import number


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_leader_is_killed(tmp_path: Path) -> None:
    (row,) = try_out("ordering", tmp_path)

    def figure(name: str) -> float:
        found = number(row, name)
        assert found is not None, name
        return found

    assert figure("lost") == figure("duplicated") == figure("missing_units") == 0
    for latency in ("latency_ms", "latency_by_input_ms.direct", "latency_by_input_ms.stamped"):
        p50, p99, largest = (figure(f"{latency}.before.{name}") for name in ("p50", "p99", "max"))
        assert 0 < p50 <= p99 <= largest
        assert figure(f"{latency}.after.max") > 0
    assert 0 < figure("gap_ms.at_kill") <= figure("gap_ms.after")
    assert figure("bytes.total") > 0 and figure("rows") > 0
    assert figure("cpu_cores.nodes") > 0 and figure("cpu_cores.zookeeper") > 0 and not row["cpu_cores.kafka"]
    assert row["leader.node"] == row["killed"], row["story"]
    assert figure("election_s") > 0 and figure("detection_s") > 0
    assert any(row[column] != row["killed"] for column in row if column.startswith("terms_since.") and "node" in column)
