"""MiB 1 to 3: what is made of rows that were measured, the flows, and a short run of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.experiments.trying import drawn, try_out
from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken_lab.experiments.experiment import Row, Size, chosen, number
from unbroken_lab.experiments.flows import identity, union
from unbroken_lab.experiments.paper.rosinosky.boxes import box_of, distinct, figure_of, ratio, shown
from unbroken_lab.experiments.paper.rosinosky.mib import Chain, PulseSweep, Shards, Unbalanced, by_place, mistakes
from unbroken_lab.experiments.paper.rosinosky.quiet import MeasuredSpan
from unbroken_lab.experiments.parameters.ways import LEADER, NONE, PASSIVE, PULSE, UNORDERED, WAYS, arguments


def measured(p50: float, **columns: str | float) -> Row:
    box = {"p1_ms": p50 - 200, "p25_ms": p50 - 100, "p50_ms": p50, "p75_ms": p50 + 100, "p99_ms": p50 + 200}
    costs = {"newest_p50_ms": p50 - 90, "pulse_ms": 1_500.0, "cpu_cores": 0.8, "bytes_per_s": 4e5, "rows": 9_000}
    return {**columns, **box, "max_ms": p50 + 300, **costs, "due": 10_000, "lost": 0, "duplicated": 0}


def test_latency_by_length_beside_none(tmp_path: Path) -> None:
    ways = {NONE: 300.0, UNORDERED: 330.0, LEADER: 600.0, PULSE: 450.0}
    rows = [measured(base * length, length=length, way=way) for length in (1, 2) for way, base in ways.items()]
    rows[1] = {**rows[1], "lost": 70, "duplicated": 5}
    found = drawn(Chain(), rows, tmp_path)
    assert found["1 segment, pulse"].here == "p50 450 ms, p99 650 ms; p50 1.50 of that without replicas"
    further = found["leader: latency that a further segment adds to the newest row of a unit"]
    assert further.agrees and further.here == "600 to 600 ms"
    lowest = found["2 segments: lowest median of the replicated ways"]
    assert lowest.agrees and lowest.paper == "no ordering (incorrect)" and "660 ms" in lowest.here
    leader = found["2 segments: median of the leader against that of pulses"]
    assert leader.agrees is False and leader.here == "1,200 ms against 900 ms"
    spread = found["2 segments: spread of latencies (p1 to p99) with a leader against pulses"]
    assert spread.agrees is False and spread.here == "400 ms against 400 ms"
    assert found["rows with an agreed order"].here == "0 of 60,000 lost, 0 duplicated"
    assert found["rows without any order"].here == "70 of 20,000 lost, 5 duplicated"


def test_latency_by_pulse_says_when_pulses_were_held_back(tmp_path: Path) -> None:
    rows = [
        {**measured(p50, length=1, period_ms=period), "pulse_ms": was}
        for p50, period, was in ((900.0, 300, 700.0), (600.0, 600, 600.0), (1_500.0, 2_000, 2_000.0))
    ]
    found = drawn(PulseSweep(), rows, tmp_path)
    assert found["1 segment, pulses of 300 ms (they came every 700 ms)"].here.startswith("p50 900 ms")
    grows = found["1 segment: the median grows with every longer pulse"]
    assert grows.agrees is False and grows.here == "lowest with pulses of 600 ms"


def test_longer_pulses_are_compared_along_the_chain(tmp_path: Path) -> None:
    rows: list[Row] = [
        {**measured(p50 * length, length=length, period_ms=period), "bytes_per_s": 1e6 / period}
        for p50, period in ((900.0, 300), (1_000.0, 600))
        for length in (1, 3)
    ]
    found = drawn(PulseSweep(), rows, tmp_path)
    assert found["3 segments: the median grows with every longer pulse"].agrees
    sent = found["1 segment: bytes with the shortest pulses by those with the longest"]
    assert sent.agrees and sent.here == "2.00"
    added = found["latency that the longest pulses add with 1 segment, and with 3"]
    assert added.agrees and added.here == "100 ms, 300 ms"


def test_latency_by_shards(tmp_path: Path) -> None:
    rows = [measured(p50, shards=shards, way=PULSE) for shards, p50 in ((1, 400.0), (4, 600.0))]
    found = drawn(Shards(), rows, tmp_path)
    shards = found["pulse: median with 4 shards by that with one"]
    assert shards.agrees is False and shards.here == "1.50"
    beside = [measured(500.0, shards=1, way=UNORDERED), measured(900.0, shards=1, way=LEADER)]
    found = drawn(Shards(), [*rows, *beside], tmp_path)
    ordered = found["one shard: median with pulses by that without any order"]
    assert ordered.agrees and ordered.here == "0.80"
    tail = found["shards 1: highest p99"]
    assert tail.agrees and tail.paper == "leader" and "pulse 600 ms" in tail.here


def test_rare_and_frequent_rows_are_drawn_apart(tmp_path: Path) -> None:
    rows: list[Row] = []
    for rate, p50 in ((10, 400.0), (10_000, 440.0)):
        row = measured(p50, rate=rate, way=PULSE)
        rare = {f"rare_{name}": row[name] for name in ("p1_ms", "p25_ms", "p50_ms", "p75_ms", "p99_ms")}
        rows.append({**row, **rare})
    found = drawn(Unbalanced(), rows, tmp_path)
    assert found["5 against 10 rows/s, pulse"].here.startswith("rare rows p50 400 ms")
    rare_rows = found["pulse: latency of rare rows with 10,000 rows/s by that with 10"]
    assert rare_rows.agrees and rare_rows.here == "1.10"


def test_figures_are_found_in_rows_of_a_file() -> None:
    rows: list[Row] = [{"way": "a", "length": "1", "p50_ms": "3.5"}, {"way": "b", "length": "2", "p50_ms": ""}]
    assert distinct(rows, "way") == ["a", "b"] and chosen(rows, length=2) == [rows[1]]
    assert figure_of(rows, "p50_ms", length=1) == 3.5 and figure_of(rows, "p50_ms", length=9) is None
    assert box_of(rows[0])["med"] == 3.5 and box_of(rows[0])["q1"] is None
    assert by_place(rows, "length", "p50_ms") == {1.0: 3.5}
    assert ratio(None, 1.0) == ratio(1.0, 0.0) == shown(None) == "unknown"
    assert mistakes([]) == []


def test_a_full_run_covers_what_the_paper_has_and_a_quick_one_is_short() -> None:
    assert {row["length"] for row in Chain().cases(Size())} == {1, 2, 3, 4}
    assert {row["shards"] for row in Shards().cases(Size())} == {1, 2, 4}
    assert {row["rate"] for row in Unbalanced().cases(Size())} == {10, 1_000, 10_000}
    for experiment in (Chain(), PulseSweep(), Shards(), Unbalanced()):
        assert len(experiment.cases(Size(quick=True))) == 1 and experiment.scale(Size())
    assert MeasuredSpan.of(Size()).stream_s > 60 > MeasuredSpan.of(Size(quick=True)).seconds


@pytest.mark.parametrize("way", WAYS)
def test_the_flows_can_be_planned_in_every_configuration(way: str) -> None:
    replicas = 1 if way in (NONE, PASSIVE) else 2
    with variables({"UNBROKEN_BENCH_WAY": way, "UNBROKEN_BENCH_LENGTH": "3", "UNBROKEN_BENCH_SHARDS": "2"}):
        chain, joined = (build_topology(load_flow(Path(str(flow.__file__)))) for flow in (identity, union))
    assert dict(chain.segments) == {"step1": 2, "step2": 2, "step3": 2}
    assert {chain.replicas[name] for name in chain.segments} == {replicas} == {joined.replicas["both"]}
    assert ("step1" in chain.led) == (way in (LEADER, UNORDERED))


def test_a_configuration_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnbrokenError, match="no configuration 'magic'"):
        arguments("magic")


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["mib1", "mib1-pulse", "mib2", "mib3"])
def test_a_short_run(name: str, tmp_path: Path) -> None:
    (row,) = try_out(name, tmp_path)
    assert number(row, "lost") == number(row, "duplicated") == 0
    p50, p99, newest = (number(row, column) for column in ("p50_ms", "p99_ms", "newest_p50_ms"))
    assert p50 is not None and p99 is not None and newest is not None
    assert 0 < p50 <= p99 and newest > 0
    assert (number(row, "bytes_per_s") or 0) > 0 and (number(row, "cpu_cores") or 0) > 0
