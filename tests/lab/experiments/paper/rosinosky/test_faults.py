"""A node is killed under a chain: what is made of the seconds around it, and one short run."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.experiments.trying import drawn, try_out
from unbroken_lab.demo.measure import ArrivalSample
from unbroken_lab.experiments.experiment import Row, Size, Value, number
from unbroken_lab.experiments.observation.course import Counter
from unbroken_lab.experiments.paper.rosinosky.faulted import FOLLOWER, Plan, before_and_after, gaps_around
from unbroken_lab.experiments.paper.rosinosky.faults import ANY, AT_KILL_S, Faults, case_name, kinds
from unbroken_lab.experiments.parameters.ways import LEADER, NONE, PASSIVE, PULSE


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
    follower = found["leader, follower killed"].here
    assert follower.startswith("p99 of a second 800 ms before the kill, 900 ms at most from it on")
    assert "0.50 cores and 2.00 MB/s (1.00 and 1.00 times those without replication)" in follower
    at_kill = {
        name.partition(":")[0]: claim for name, claim in found.items() if name.endswith("growth of p99 at the kill")
    }
    assert {name: (claim.here, claim.agrees) for name, claim in at_kill.items()} == {
        "leader, follower killed": ("+100 ms", True),
        "leader, leader killed": ("+700 ms", True),
        "pulse": ("+1,200 ms", False),
    }
    sent = found["bytes with active replicas by those without"]
    assert sent.agrees is False and (sent.paper, sent.here) == ("4", "1.0 to 1.0")
    cores = found["cores with a leader against pulses"]
    assert cores.agrees is False and cores.here == "0.50 against 0.50"
    assert case_name(PULSE, ANY) == "pulse"


def test_what_comes_later_is_told_apart_from_the_kill(tmp_path: Path) -> None:
    rows: list[Row] = [
        *course(PULSE, ANY, 850.0),
        {**course(PULSE, ANY, 0.0)[0], "second": AT_KILL_S + 2, "p99_ms": 2_000.0},
        *course(PASSIVE, ANY, 3_000.0),
    ]
    found = drawn(Faults(), rows, tmp_path)
    at_kill = found["pulse: growth of p99 at the kill"]
    assert at_kill.agrees and at_kill.here == "+50 ms"
    later = found["pulse: growth of p99 later, while redundancy is restored"]
    assert later.agrees is False and later.here == "+1,200 ms"
    passive = found["passive: latest row after the kill"]
    assert passive.agrees is False and passive.here == "3,000 ms"


def test_a_run_without_any_result_can_be_drawn(tmp_path: Path) -> None:
    silent: list[Row] = [{**row, "p99_ms": None, "max_ms": None} for row in course(PULSE, ANY, 9_000.0)]
    found = drawn(Faults(), silent, tmp_path)
    assert list(found) == ["pulse", "pulse: rows"]
    assert "p99 of a second unknown before the kill" in found["pulse"].here


def test_seconds_without_results_are_passed_over() -> None:
    rows: list[Row] = [{"second": "-1", "p99_ms": "5"}, {"second": 0, "p99_ms": None}, {"second": 1, "p99_ms": 7.0}]
    assert before_and_after(rows, "p99_ms") == ([5.0], [7.0])


def test_silence_lasts_from_the_last_result_before_the_kill_or_to_the_end() -> None:
    def at(*times: float) -> list[ArrivalSample]:
        return [ArrivalSample(1, 1, 0, time) for time in times]

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
