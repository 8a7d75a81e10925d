"""A node is killed under a chain: what is made of the seconds around it, and one short run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.paper.trying import drawn, try_out
from unbroken_lab.demo.measure import Sample
from unbroken_lab.experiments.paper.course import Counter
from unbroken_lab.experiments.paper.experiment import Row, Size, Value, number
from unbroken_lab.experiments.paper.faulted import FOLLOWER, Plan, before_and_after, gaps_around
from unbroken_lab.experiments.paper.faults import ANY, AT_KILL_S, Faults, case_name, kinds
from unbroken_lab.experiments.paper.ways import LEADER, NONE, PASSIVE, PULSE


def course(way: str, killed: str, later_ms: float) -> list[Row]:
    whole: dict[str, Value] = {
        "gap_before_ms": 1_050.0,
        "gap_ms": later_ms,
        "due": 1_000,
        "lost": 0,
        "duplicated": 0,
        "node": "node-3",
    }
    return [
        {
            **{"way": way, "killed": killed, "second": second, "rows": 5_000},
            **{"p99_ms": 800.0 if second < 0 else later_ms, "max_ms": 900.0, "cpu_cores": 0.5, "bytes_per_s": 2e6},
            **whole,
        }
        for second in range(-3, 3)
    ]


def test_what_a_kill_costs_each_configuration(tmp_path: Path) -> None:
    rows = [*course(NONE, ANY, 30_000.0), *course(LEADER, FOLLOWER, 900.0), *course(LEADER, LEADER, 1_500.0)]
    rows += course(PULSE, ANY, 2_000.0)
    found = drawn(Faults(), rows, tmp_path)
    assert kinds(rows) == [(NONE, ANY), (LEADER, FOLLOWER), (LEADER, LEADER), (PULSE, ANY)]
    assert found[1].startswith(
        "leader, follower killed: p99 of a second 800 ms before the kill, 900 ms at most from it"
    )
    assert "0.50 cores and 2.00 MB/s (1.00 and 1.00 times those without replication)" in found[1]
    assert found[4] == "As in the paper: leader, follower killed: the kill is not to be seen in the tail (+100 ms)."
    assert found[5].startswith("As in the paper: leader, leader killed: the tail grows by +700 ms at the kill")
    assert found[7].startswith("Unlike the paper: pulse: the kill is to be seen in the tail (+1,200 ms). Nodes share")
    assert found[-2].startswith(
        "Unlike the paper: active replicas send 1.0 to 1.0 times what is sent without (4 there)."
    )
    assert found[-1].startswith("Unlike the paper: 0.50 cores with a leader, 0.50 with pulses")
    assert case_name(PULSE, ANY) == "pulse"


def test_what_comes_later_is_told_apart_from_the_kill(tmp_path: Path) -> None:
    rows: list[Row] = [
        *course(PULSE, ANY, 850.0),
        {**course(PULSE, ANY, 0.0)[0], "second": AT_KILL_S + 2, "p99_ms": 2_000.0},
        *course(PASSIVE, ANY, 3_000.0),
    ]
    found = drawn(Faults(), rows, tmp_path)
    assert "As in the paper: pulse: the kill is not to be seen in the tail (+50 ms)." in found
    built = "Unlike the paper: pulse: later, while what was lost is built again, the tail grows by +1,200 ms."
    assert any(text.startswith(built) for text in found)
    assert any(text.startswith("Unlike the paper: passive: rows are up to 3,000 ms late") for text in found)


def test_a_run_without_any_result_can_be_drawn(tmp_path: Path) -> None:
    silent: list[Row] = [{**row, "p99_ms": None, "max_ms": None} for row in course(PULSE, ANY, 9_000.0)]
    (found,) = drawn(Faults(), silent, tmp_path)
    assert "p99 of a second unknown before the kill" in found


def test_seconds_without_results_are_passed_over() -> None:
    rows: list[Row] = [{"second": "-1", "p99_ms": "5"}, {"second": 0, "p99_ms": None}, {"second": 1, "p99_ms": 7.0}]
    assert before_and_after(rows, "p99_ms") == ([5.0], [7.0])


def test_silence_lasts_from_the_last_result_before_the_kill_or_to_the_end() -> None:
    def at(*times: float) -> list[Sample]:
        return [Sample(1, 1, 0, time) for time in times]

    assert gaps_around(at(0, 900, 2_500, 3_000), 1_000, 3_500) == {"gap_before_ms": 900.0, "gap_ms": 1_600.0}
    assert gaps_around(at(0, 900), 1_000, 9_000) == {"gap_before_ms": 900.0, "gap_ms": 8_100.0}
    assert gaps_around([], 1_000, 9_000) == {"gap_before_ms": 0.0, "gap_ms": 8_000.0}


def test_what_is_counted_by_several_is_added_up_second_by_second() -> None:
    counter = Counter()
    for at_ms, value in ((0, 10.0), (2_000, 14.0), (4_000, 14.0)):
        counter.note(("node-1", 11), at_ms, value)
    # Another was killed at about 2 s, and begun anew under a name that has been there before.
    for at_ms, value in ((0, 0.0), (2_000, 2.0)):
        counter.note(("node-2", 12), at_ms, value)
    for at_ms, value in ((3_000, 0.0), (4_000, 5.0)):
        counter.note(("node-2", 13), at_ms, value)
    assert counter.per_second(1_000, range(-1, 3)) == [3.0, 3.0, 0.0, 5.0]


def test_a_node_that_has_to_be_started_again_is_given_longer() -> None:
    assert Plan.of(Size(), NONE).after_s > Plan.of(Size(), PULSE).after_s
    assert Plan.of(Size(quick=True), PULSE).stream_s < Plan.of(Size(), PULSE).stream_s
    assert [case["way"] for case in Faults().cases(Size(quick=True))] == [PULSE]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_run(tmp_path: Path) -> None:
    rows = try_out("faults", tmp_path)
    assert (number(rows[0], "second") or 0) <= -4 and len(rows) >= 10
    assert number(rows[0], "lost") == number(rows[0], "duplicated") == 0
    assert any((number(row, "rows") or 0) > 0 for row in rows if (number(row, "second") or 0) > 0)
    assert sum(number(row, "cpu_cores") or 0 for row in rows) > 0
