"""What `unbroken bench strategies` makes of counters, arrivals and sentences, and the flow that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from kit.statuses import status
from lab.experiments.trying import drawn
from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken.local.terminal import status_view
from unbroken.observe.status.traffic import flow_overhead, overhead
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.ingress import IngressLed
from unbroken.protocol.values.notices.placement import NodeReady, NodeSuspected, TakenOver
from unbroken_lab.demo.measure import ArrivalSample
from unbroken_lab.experiments.experiment import Row, Size, flat
from unbroken_lab.experiments.flows import windowed
from unbroken_lab.experiments.observation.usage import Reading, spent
from unbroken_lab.experiments.recovery import strategies
from unbroken_lab.experiments.recovery.restart import restart_figures
from unbroken_lab.experiments.recovery.strategies import STRATEGIES, Strategies
from unbroken_lab.experiments.recovery.strategy_figures import PLAIN, Recovery, first_notice, gaps, missing_units

PULSE = 750
KILL = 20 * PULSE + 100.0


def sample(number: int, latency_ms: float = 300.0) -> ArrivalSample:
    return ArrivalSample(pulse=number, rows=1, cut_ms=PULSE * number, arrived_ms=PULSE * number + latency_ms)


def steady(first: int, last: int, latency_ms: float = 300.0) -> list[ArrivalSample]:
    return [sample(number, latency_ms) for number in range(first, last + 1)]


# --- overhead -----------------------------------------------------------------------------------------


def test_overhead_is_everything_that_is_not_data_per_byte_of_data() -> None:
    traffic = {"data": 1_000, "redundancy": 900, "acknowledgements": 50, "state": 30, "coordination": 20}
    assert overhead(traffic) == 1.0
    assert overhead({"data": 1_000, "total": 5_000}) == 0.0
    assert overhead({"redundancy": 10}) is None


def test_the_overhead_of_a_flow_is_that_of_all_its_nodes_together() -> None:
    states = [
        status(traffic={"data": 100}),
        status(traffic={"redundancy": 100, "acknowledgements": 10}),
        status(state="silent"),
    ]
    assert flow_overhead(states) == 1.1
    assert flow_overhead([status(state="dead")]) is None


def test_the_status_of_a_flow_shows_what_availability_costs() -> None:
    working = status("a", traffic={"data": 100, "redundancy": 3}, overhead=0.03)
    backup = status("b", traffic={"redundancy": 100}, overhead=None)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(status_view("orders", [working, backup]))
    assert "bytes for availability per byte of data: 1.03 (a 0.03)" in captured.get()


def test_what_was_sent_between_two_readings() -> None:
    first = Reading(0, {"data": 100, "state": 7})
    used = spent(first, Reading(10, {"data": 300, "state": 7, "acknowledgements": 4}))
    assert used["data"] == 200 and used["acknowledgements"] == 4 and used["state"] == 0 and used["total"] == 204


def test_counters_that_went_back_are_not_taken_for_a_measurement() -> None:
    with pytest.raises(UnbrokenError, match="went back"):
        spent(Reading(0, {"acknowledgements": 10}), Reading(5, {"acknowledgements": 4}))


# --- detection and recovery ---------------------------------------------------------------------------


def test_the_first_notice_about_the_node_or_the_shard_after_the_kill() -> None:
    first, second = ReplicaId.parse("counted.0#0"), ReplicaId.parse("counted.0#1")
    history = [
        Reported(int(KILL - 500), "node-1", NodeReady("node-3")),
        Reported(int(KILL + 20), "node-1", IngressLed("node-1", 2)),
        Reported(int(KILL + 900), "node-1", TakenOver((first,), ("node-3",), second, "node-1")),
        Reported(int(KILL + 30), "node-2", NodeSuspected("node-2", "node-3", "the connection to node-3 broke")),
    ]
    assert first_notice(history, KILL, ("node-3", "counted.0")) == KILL + 30
    assert first_notice(history, KILL + 50, ("counted.0",)) == KILL + 900
    assert first_notice(history, KILL + 1_000, ("node-3",)) is None


def test_a_notice_of_the_same_millisecond_comes_after_the_kill() -> None:
    assert first_notice([Reported(100, "node-1", NodeReady("node-3"))], 100.7, ("node-3",)) == 100.7


def test_recovery_is_counted_from_the_kill_and_from_the_detection() -> None:
    late = [sample(20, 4_000), sample(21, 3_300), sample(22, 2_600)]
    caught_up = steady(30, 35)
    figures = Recovery.of([*steady(1, 19), *late, *caught_up], KILL, KILL + 1_000).to_json()
    assert figures["detection_s"] == 1.0
    first_s = (20 * PULSE + 4_000 - KILL) / 1000
    assert figures["partial_s"] == {"from_kill": first_s, "from_detection": pytest.approx(first_s - 1)}
    full_s = (30 * PULSE + 300 - KILL) / 1000
    assert figures["full_s"] == {"from_kill": full_s, "from_detection": pytest.approx(full_s - 1)}


def test_a_unit_that_was_on_its_way_when_the_node_died_is_no_recovery() -> None:
    """It comes before the loss is noticed; the gap follows."""
    figures = Recovery.of([*steady(1, 20), *steady(21, 30, 5_000)], KILL, KILL + 1_000)
    assert sample(20).arrived_ms > KILL
    assert figures.resumed_ms == sample(21, 5_000).arrived_ms
    assert figures.recovered_ms is None


def test_two_units_in_time_are_not_enough() -> None:
    after = [sample(20), sample(21), sample(22, 400), sample(23), sample(24)]
    assert Recovery.of([*steady(1, 19), *after], KILL, None).recovered_ms is None
    recovered = Recovery.of([*steady(1, 19), *after, sample(25)], KILL, None)
    assert recovered.recovered_ms == sample(23).arrived_ms


def test_without_a_detection_only_the_time_from_the_kill_is_known() -> None:
    figures = Recovery.of(steady(1, 30), KILL, None).to_json()
    assert figures["detection_s"] is None
    assert figures["partial_s"] == {"from_kill": 0.2, "from_detection": None}
    assert figures["full_s"] == {"from_kill": 0.2, "from_detection": None}


def test_results_that_do_not_come_again() -> None:
    figures = Recovery.of(steady(1, 19), KILL, KILL + 5).to_json()
    assert figures["partial_s"]["from_kill"] is None and figures["full_s"]["from_detection"] is None


def test_the_gap_at_the_kill_begins_with_the_last_result_before_it() -> None:
    found = gaps([*steady(1, 19), *steady(30, 35)], KILL)
    assert found == {"before": PULSE, "after": 11 * PULSE}


def test_units_that_did_not_come() -> None:
    assert missing_units([3, 4, 7, 8]) == 2
    assert missing_units([1]) == 0 and missing_units([]) == 0


def test_a_restart_is_measured_across_the_kill() -> None:
    arrivals = [0.0, 1_000.0, 1_300.0, 1_600.0, 9_000.0, 9_200.0]
    figures = restart_figures(arrivals, killed_ms=1_700, steady_s=1)
    assert figures == {"gap_ms": {"before": 300, "after": 7_400}, "partial_s": {"from_kill": 7.3}}
    with pytest.raises(UnbrokenError, match="no results"):
        restart_figures(arrivals, killed_ms=10_000, steady_s=20)


# --- claims -------------------------------------------------------------------------------------------


def run(strategy: str, interval: int, of_data: float | None, gap_ms: float) -> Row:
    figures = {
        "strategy": strategy,
        "interval": interval,
        "overhead": of_data,
        "pulse_ms": 750.0,
        "gap_ms": {"before": 800.0, "after": gap_ms},
    }
    return flat(figures)


RESTART: Row = {"strategy": PLAIN, "interval": "", "gap_ms.before": 300.0, "gap_ms.after": 12_000.0}


def test_strategies_are_compared_at_the_same_interval(tmp_path: Path) -> None:
    runs = [
        RESTART,
        run("active", 1, 1.0, 1_500),
        run("active", 2, 1.25, 900),
        run("upstream", 1, 0.05, 6_000),
        run("upstream", 4, 0.02, 6_000),
        run("passive", 1, 0.5, 3_000),
    ]
    found = drawn(Strategies(), runs, tmp_path)
    assert {name: (claim.here, claim.agrees) for name, claim in found.items()} == {
        "gap of active in pulses, every 1 units": ("2.00", None),
        "gap of active in pulses, every 2 units": ("1.20", None),
        "overhead of upstream for each of active, every 1 units": ("0.05", True),
        "gap of upstream for each of a restart of plain Spark, every 1 units": ("0.5", False),
        "gap of upstream for each of a restart of plain Spark, every 4 units": ("0.5", False),
        "gap of passive for each of a restart of plain Spark, every 1 units": ("0.25", True),
    }


def test_what_was_not_measured_agrees_with_nothing() -> None:
    found = Strategies().claims([run("active", 1, 1.0, 900), run("upstream", 1, None, 900)])
    assert [(claim.here, claim.agrees) for claim in found] == [("1.20", None), ("unknown", None), ("unknown", None)]


# --- the flow and the settings ------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_node_that_is_killed_hosts_nothing_but_the_measured_replica(strategy: str) -> None:
    with variables({"UNBROKEN_BENCH_STRATEGY": strategy, "UNBROKEN_BENCH_INTERVAL": "4"}):
        flow = load_flow(Path(windowed.__file__))
    topology = build_topology(flow)
    layout = chained_placement(topology, {f"node-{number}": "disk" for number in (1, 2, 3)})
    victim = next(iter(layout.working_nodes_of(strategies.MEASURED)))
    assert [replica.shard for replica in layout.hosted(victim)] == [strategies.MEASURED]
    assert len(layout.counted(INGRESS)) == 2, "the sources cost the same with every strategy"
    assert flow.settings.ack_every == 4
    assert topology.strategy("counted").every == (4 if strategy == "passive" else 1)


def test_rows_are_the_same_however_they_are_cut_and_in_the_order_of_their_times() -> None:
    whole = windowed.make_rows(0, 3_000, 0)
    assert whole.slice(1_000).equals(windowed.make_rows(1_000, 3_000, 0))
    times = whole["at"].to_pylist()
    assert times == sorted(times)
    assert times[windowed.RATE].timestamp() == windowed.BEGIN_S + 1


def test_settings_are_read_from_the_command_line() -> None:
    cases = Strategies("passive, upstream", "2,8,2", 500).cases(Size())
    assert [(case["strategy"], case["interval"]) for case in cases] == [
        (PLAIN, ""),
        ("passive", 2),
        ("passive", 8),
        ("upstream", 2),
        ("upstream", 8),
    ]


@pytest.mark.parametrize(
    ("strategies_asked", "intervals", "rate", "why"),
    [
        ("passive,hot", "1", 100, "no strategy hot"),
        ("passive", "1,x", 100, "no intervals"),
        ("passive", "0", 100, "no intervals"),
        ("passive", "1", 0, "rate"),
    ],
)
def test_what_cannot_be_measured_is_refused(strategies_asked: str, intervals: str, rate: int, why: str) -> None:
    with pytest.raises(UnbrokenError, match=why):
        Strategies(strategies_asked, intervals, rate)
