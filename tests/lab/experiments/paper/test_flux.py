"""Figure 8 of Flux: the course of a run, what was moved, what pairs cost; and the experiment itself."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lab.experiments.trying import drawn, try_out
from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.placement import NodeReady
from unbroken.protocol.values.notices.replicas import StateTaken
from unbroken_lab.demo.measure import ArrivalSample
from unbroken_lab.experiments.experiment import Row, Size, number
from unbroken_lab.experiments.flows import monitoring
from unbroken_lab.experiments.paper import flux
from unbroken_lab.experiments.paper.flux import Moved, Pairs, SessionReader, course
from unbroken_lab.experiments.paper.saturation import AT_MOST, WAYS, taken_per_s

KILLED = 100_000.0
SUMMARY: Row = {
    "part": "recovery", "way": "partition pairs", "restored_s": 14.2, "state_bytes": 9_000_000, "state_mb": 8.9,
    "copied_s": 1.9, "caught_up_s": 6.1, "replicas_moved": 3, "pulse_ms": 600.0, "p50_before_ms": 400.0,
    "max_before_ms": 610.0, "p50_during_ms": 480.0, "max_during_ms": 900.0, "gap_before_ms": 700.0,
    "gap_during_ms": 1_250.0, "lost": 0, "duplicated": 0,
}  # fmt: skip


def unit(second: float, rows: int = 100, latency_ms: float = 300.0) -> ArrivalSample:
    at_ms = KILLED + second * 1000
    return ArrivalSample(int(second * 10) + 1_000, rows, int(at_ms - latency_ms), at_ms)


def rows() -> list[Row]:
    samples = [unit(second / 2, latency_ms=900.0 if 0 <= second < 6 else 300.0) for second in range(-60, 60)]
    recovery: list[Row] = [{"part": "recovery", "way": "partition pairs", **row} for row in course(samples, KILLED)]
    rates = {"no replicas": 20_000.0, "cluster pairs": 10_200.0, "partition pairs": 9_100.0}
    overhead: list[Row] = [{"part": "overhead", "way": way, "rows_per_s": rate} for way, rate in rates.items()]
    most: Row = {"part": "throughput", "way": "partition pairs", "rows_per_s": 210_000.0, "java_cores": 1.7}
    plain: Row = {"part": "throughput", "way": "plain Spark", "rows_per_s": 300_000.0}
    return [*recovery, SUMMARY, *overhead, plain, {**most, "python_cores": 0.2, "sessions_ms": 2_100, "stats_ms": 400}]


def test_the_course_has_rate_and_latency_of_every_second() -> None:
    found = {row["second"]: row for row in course([unit(second / 2) for second in range(-60, 20)], KILLED)}
    assert min(second for second in found if isinstance(second, int)) == -flux.SHOWN_S
    assert found[0]["results_per_s"] == pytest.approx(200)
    assert found[-3]["latency_ms"] == pytest.approx(300, abs=1)


def test_a_pause_shows_as_a_second_without_latency() -> None:
    found = {row["second"]: row for row in course([unit(-1.5), unit(-0.5), unit(3.5), unit(4.5), unit(5.5)], KILLED)}
    assert found[1]["latency_ms"] is None
    assert (number(found[1], "results_per_s") or 0) < 50


def test_what_was_moved_is_read_from_the_history_once_for_each_replica() -> None:
    sessions, stats, restored = (ReplicaId.parse(name) for name in ("sessions.0#2", "stats.0#2", "stats.1#2"))
    told = Reported(5, "node-1", StateTaken(sessions, "node-3", 3_400_000, 41, 0.8, 2.5))
    history = [
        Reported(1, "node-1", NodeReady("node-2")),
        told,
        told,
        Reported(6, "node-3", StateTaken(stats, "node-1", 1_100_000, 40, 0.4, 1.0)),
        Reported(7, "node-3", StateTaken(restored, None, 9_000_000, 40, 0.4, 1.0)),
    ]
    assert Moved.of(history) == Moved(4.5, 1.2, 3.5, 2)
    assert Moved.of([]) == Moved(0, 0, 0, 0)


def test_rows_taken_in_are_those_of_whole_pulses() -> None:
    units = [ArrivalSample(5, 10, 0, 2_000.0), ArrivalSample(9, 10, 0, 4_000.0), ArrivalSample(7, 10, 0, 3_100.0)]
    assert taken_per_s(units, 1_000) == pytest.approx(2_000)
    with pytest.raises(UnbrokenError, match="fewer than two"):
        taken_per_s(units[:1], 1_000)


def test_what_was_found_stands_beside_the_paper(tmp_path: Path) -> None:
    found = drawn(Pairs(), rows(), tmp_path)
    assert "3 replicas, 8.9 MB" in found["redundancy after the kill"].here
    assert found["the failure is masked: both grow by at most a pulse"].agrees
    cluster = found["throughput of cluster pairs by that without replicas"]
    partition = found["throughput of partition pairs by that of cluster pairs"]
    assert cluster.agrees and cluster.here == "0.51"
    assert partition.agrees and partition.here == "0.89"
    plain, pairs = list(found.values())[-2:]
    assert plain.here == "300,000 packets/s" and plain.agrees is None
    assert pairs.agrees and pairs.paper == "aim: 200,000 packets/s"
    assert pairs.here.startswith("210,000 packets/s; 1.70 of") and "first segment 2.1 s" in pairs.here


def test_a_run_with_the_kill_alone_can_be_shown(tmp_path: Path) -> None:
    some = [row for row in rows() if row["part"] == "recovery"]
    assert len(drawn(Pairs(), some, tmp_path)) == 6
    late: Row = {**SUMMARY, "gap_during_ms": 3_000.0, "restored_s": None, "max_before_ms": None}
    found = drawn(Pairs(), [*some[:-1], late], tmp_path)
    assert found["the failure is masked: both grow by at most a pulse"].agrees is False


def test_results_that_become_fewer_and_are_made_up_for_are_seen(tmp_path: Path) -> None:
    some = [row for row in rows() if row["part"] == "recovery"]
    name = "results per second fall and are made up for"
    steady = drawn(Pairs(), some, tmp_path)[name]
    assert steady.agrees is False and steady.here.startswith("200 before the kill, least 200")
    rates = {0.0: 40.0, 1.0: 60.0, 2.0: 300.0}
    dip = [{**row, "results_per_s": rates.get(number(row, "second") or 0.0, 200.0)} for row in some[:-1]]
    dips = drawn(Pairs(), [*dip, SUMMARY], tmp_path)[name]
    assert dips.agrees and dips.here == "200 before the kill, least 40 and most 300 after it"


@pytest.mark.parametrize("way", WAYS)
def test_the_flow_has_the_pairs_that_are_compared(way: str) -> None:
    load = {"RATE": 0, "NODES": 2, "WORK": 2, **WAYS[way]}
    with variables({f"UNBROKEN_BENCH_{name}": str(value) for name, value in load.items()}):
        topology = build_topology(load_flow(Path(monitoring.__file__)))
    assert topology.replicas["sessions"] == (1 if way == "no replicas" else 2)
    assert topology.whole == (way == "cluster pairs")


def test_sessions_are_counted_by_application_and_source() -> None:
    table = pa.table({"app": ["dns", "ftp"], "src": ["a", "a"], "sessions": [3, 1], "longest_ms": [1, 1]})
    assert dict(SessionReader.counted(None, table)) == {("dns", "a"): 3, ("ftp", "a"): 1}  # type: ignore[arg-type]
    assert len(Pairs().cases(Size())) == 1 + len(WAYS) + 1 + len(AT_MOST), "the kill, with work, plain, large pulses"


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_machine_dies_under_the_monitoring_flow(tmp_path: Path) -> None:
    *seconds, summary = try_out("flux-fig8", tmp_path)
    assert number(summary, "lost") == number(summary, "duplicated") == 0
    assert any((number(row, "results_per_s") or 0) > 0 for row in seconds)
