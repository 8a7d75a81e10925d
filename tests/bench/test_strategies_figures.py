"""What `unbroken bench strategies` makes of counters, arrivals and sentences, and the flow that it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken.flow.plan import build_topology, load_flow
from unbroken.local.terminal import status_view
from unbroken.node.status import flow_overhead, overhead
from unbroken.protocol.values.layout import INGRESS, chained_placement
from unbroken_lab.demo.measure import Sample
from unbroken_lab.experiments import strategies, windowed
from unbroken_lab.experiments.delivery import Reading
from unbroken_lab.experiments.restart import restart_figures
from unbroken_lab.experiments.strategies import STRATEGIES, StrategiesSettings, strategies_table
from unbroken_lab.experiments.strategy_figures import Recovery, first_notice, gaps, missing_units, ratios, spent

PULSE = 750
KILL = 20 * PULSE + 100.0


def sample(number: int, latency_ms: float = 300.0) -> Sample:
    return Sample(pulse=number, rows=1, cut_ms=PULSE * number, arrived_ms=PULSE * number + latency_ms)


def steady(first: int, last: int, latency_ms: float = 300.0) -> list[Sample]:
    return [sample(number, latency_ms) for number in range(first, last + 1)]


# --- overhead -----------------------------------------------------------------------------------------


def test_overhead_is_everything_that_is_not_data_per_byte_of_data() -> None:
    traffic = {"data": 1_000, "redundancy": 900, "acknowledgements": 50, "state": 30, "coordination": 20}
    assert overhead(traffic) == 1.0
    assert overhead({"data": 1_000, "total": 5_000}) == 0.0
    assert overhead({"redundancy": 10}) is None


def test_the_overhead_of_a_flow_is_that_of_all_its_nodes_together() -> None:
    states: list[dict[str, Any]] = [
        {"traffic": {"data": 100}},
        {"traffic": {"redundancy": 100, "acknowledgements": 10}},
        {"state": "silent"},
    ]
    assert flow_overhead(states) == 1.1
    assert flow_overhead([{"state": "dead"}]) is None


def test_the_status_of_a_flow_shows_what_availability_costs() -> None:
    working = {"node": "a", "state": "running", "traffic": {"data": 100, "redundancy": 3}, "overhead": 0.03}
    backup = {"node": "b", "state": "running", "traffic": {"redundancy": 100}, "overhead": None}
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


def test_the_first_sentence_about_the_node_or_the_shard_after_the_kill() -> None:
    history = [
        {"time_ms": KILL - 500, "sentence": "node-3 is ready to take replicas"},
        {"time_ms": KILL + 20, "sentence": "node-1 leads the ingress"},
        {"time_ms": KILL + 900, "sentence": "counted.0#0 on node-3 lost; counted.0#1 takes over on node-1"},
        {"time_ms": KILL + 30, "sentence": "node-2 suspects node-3: the connection to node-3 broke"},
    ]
    assert first_notice(history, KILL, ("node-3", "counted.0")) == KILL + 30
    assert first_notice(history, KILL + 50, ("counted.0",)) == KILL + 900
    assert first_notice(history, KILL + 1_000, ("node-3",)) is None


def test_a_sentence_of_the_same_millisecond_comes_after_the_kill() -> None:
    assert first_notice([{"time_ms": 100, "sentence": "node-3"}], 100.7, ("node-3",)) == 100.7


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


# --- ratios -------------------------------------------------------------------------------------------


def run(strategy: str, interval: int, of_data: float | None, gap_ms: float) -> dict[str, Any]:
    return {
        "strategy": strategy,
        "interval": interval,
        "overhead": of_data,
        "pulse_ms": 750.0,
        "gap_ms": {"before": 800.0, "after": gap_ms},
    }


def test_ratios_are_those_of_runs_with_the_same_interval() -> None:
    runs = [
        run("active", 1, 1.0, 1_500),
        run("active", 2, 1.25, 900),
        run("upstream", 1, 0.05, 6_000),
        run("upstream", 4, 0.02, 6_000),
        run("passive", 1, 0.5, 3_000),
    ]
    found = ratios(runs, 12_000.0)
    assert found["overhead_upstream_to_active"] == {"1": 0.05}
    assert found["gap_to_plain_restart"] == {"passive": {"1": 0.25}, "upstream": {"1": 0.5, "4": 0.5}}
    assert found["gap_active_to_pulse"] == {"1": 2.0, "2": 1.2}
    assert found["met"] == {"overhead_upstream_to_active": True, "gap_to_plain_restart": False}


def test_what_was_not_measured_has_no_ratio() -> None:
    failed = {"strategy": "upstream", "interval": 1, "error": "too busy"}
    found = ratios([run("active", 1, None, 900), failed], None)
    assert found["overhead_upstream_to_active"] == {}
    assert found["gap_to_plain_restart"] == {"passive": {}, "upstream": {}}
    assert found["met"] == {"overhead_upstream_to_active": None, "gap_to_plain_restart": None}
    unknown = ratios([run("active", 1, 1.0, 900), run("upstream", 1, None, 900)], None)
    assert unknown["overhead_upstream_to_active"] == {"1": None}
    assert unknown["gap_to_plain_restart"]["upstream"] == {"1": None}


def test_the_table_has_a_line_for_each_run_also_for_one_that_failed() -> None:
    times = {"detection_s": None, "partial_s": {"from_kill": 0.4}, "full_s": {"from_kill": None}}
    done = {**run("active", 1, 1.0, 900), **times, "cpu_cores": 1.2, "lost": 0}
    plain = {"gap_ms": {"before": 300.0, "after": 12_000.0}, "partial_s": {"from_kill": 11.8}}
    table = strategies_table({"runs": [done, {"strategy": "none", "interval": 1, "error": "no"}], "plain": plain})
    assert table.row_count == 3


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
    settings = StrategiesSettings.parse("passive, upstream", "2,8,2", 500)
    assert settings == StrategiesSettings(("passive", "upstream"), (2, 8), 500)


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
        StrategiesSettings.parse(strategies_asked, intervals, rate)
