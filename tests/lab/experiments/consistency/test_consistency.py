"""`unbroken bench consistency` with one short failure: every number is there and makes sense; no timing is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.experiments.trying import try_out
from unbroken_lab.experiments.experiment import number


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_input_is_missing_for_four_seconds(tmp_path: Path) -> None:
    (row,) = try_out("consistency", tmp_path)

    def figure(name: str) -> float:
        found = number(row, name)
        assert found is not None, name
        return found

    assert figure("lost") == figure("wrong") == figure("duplicated") == figure("missing_units") == 0
    assert figure("units") > 20
    assert figure("tentative_units") > 0 and figure("tentative_rows") > 0, row["story"]
    assert figure("corrections") > 0 and figure("undos") == figure("reconciled") > 0
    assert figure("delay_new_ms") > 0.9 * 3_000
    assert 0 < figure("replaced_s") <= figure("reconciliation_s")
    assert 0 < figure("latency_ms.before.p50") <= figure("latency_ms.before.p99")
    assert figure("cpu_s.quiet") > 0 and figure("cpu_s.failure") > 0
    assert figure("micro_batch_ms.quiet.p50") > 0
