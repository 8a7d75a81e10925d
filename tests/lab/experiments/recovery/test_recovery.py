"""`unbroken bench recovery`: what it claims, and sizes that make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.experiments.trying import disagreeing, drawn, try_out
from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.experiment import Row, Size, flat, number
from unbroken_lab.experiments.recovery.recovery import RedundancyRecovery


def row(megabytes: float, restored_s: float, duplicated: int = 0) -> Row:
    latency = {phase: {"p50": 300.0, "p99": 500.0, "max": 900.0} for phase in ("before", "during", "after")}
    figures = {
        "state_mb": megabytes,
        "restored_s": restored_s,
        "bytes_moved": 1_000_000,
        "latency_ms": latency,
        "gap_ms": {"before": 600.0, "during": 1_200.0},
        "lost": 0,
        "duplicated": duplicated,
        "story": ["a node was killed", "it was replaced"],
    }
    return flat(figures)


def test_the_aim_holds_up_to_a_size_of_state(tmp_path: Path) -> None:
    found = drawn(RedundancyRecovery(), [row(10, 9.5), row(100, 13.0), row(500, 60.0)], tmp_path)
    assert disagreeing(found) == ["redundancy restored with 100 MB of state"]
    assert found["redundancy restored with 500 MB of state"].agrees is None
    assert RedundancyRecovery().claims([row(10, 9.5, duplicated=1)])[0].agrees is False


def test_sizes_are_read_from_the_command_line() -> None:
    assert RedundancyRecovery(sizes="1, 2.5").cases(Size()) == [{"state_mb": 1.0}, {"state_mb": 2.5}]
    for sizes in ("", "x", "1,-2"):
        with pytest.raises(UnbrokenError, match="no sizes"):
            RedundancyRecovery(sizes=sizes)
    with pytest.raises(UnbrokenError, match="a rate of 0"):
        RedundancyRecovery(rate=0)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_redundancy_comes_back(tmp_path: Path) -> None:
    (row,) = try_out("recovery", tmp_path)
    assert number(row, "lost") == number(row, "duplicated") == 0
    assert (number(row, "restored_s") or 0) > 0 and (number(row, "bytes_moved") or 0) > 0
