"""What `unbroken bench ordering` makes of results, arrivals and sentences, and the flow that it runs."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from unbroken.client import Result
from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken.flow.plan import build_topology, load_flow
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.layout import chained_placement
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken_lab.demo.measure import Sample
from unbroken_lab.experiments import ordered, ordering
from unbroken_lab.experiments.ordering import (
    INPUTS,
    KAFKA,
    ORDERINGS,
    Case,
    InputReader,
    OrderingSettings,
    ordering_table,
    run_ordering,
)
from unbroken_lab.experiments.ordering_figures import (
    KEYS,
    Term,
    elections,
    gaps,
    latencies,
    leader_at,
    newest_cuts,
    ratios,
    terms,
    units_per_pulse,
    victim,
)
from unbroken_lab.experiments.strategy_figures import told_since

PULSE = 750
QUIET = 10 * PULSE
KILL = 20 * PULSE + 100.0
SHARD = ShardId("counted", 0)
NO_SUBSCRIPTION: Any = None


def sample(number: int, latency_ms: float = 300.0) -> Sample:
    return Sample(pulse=number, rows=1, cut_ms=PULSE * number, arrived_ms=PULSE * number + latency_ms)


def steady(first: int, last: int, latency_ms: float = 300.0) -> list[Sample]:
    return [sample(number, latency_ms) for number in range(first, last + 1)]


def told(time_ms: float, sentence: str) -> dict[str, Any]:
    return {"time_ms": int(time_ms), "node": "node-1", "sentence": sentence}


def leads(time_ms: float, node: str, term: int, shard: str = "counted.0") -> dict[str, Any]:
    return told(time_ms, f"{node} orders the input of {shard} (term {term})")


# --- results by input ---------------------------------------------------------------------------------


def results(rows: dict[int, int]) -> pa.Table:
    """A unit with a result for each key, and when its newest row was cut."""
    return pa.table({"k": list(rows), "n": [1] * len(rows), "top": [7] * len(rows), "cut_ms": list(rows.values())})


def test_keys_tell_which_inputs_a_unit_is_made_of() -> None:
    assert newest_cuts(results({3: 100, KEYS - 1: 250, KEYS: 200})) == {"direct": 250, "stamped": 200}
    assert newest_cuts(results({KEYS + 2: 90})) == {"stamped": 90}
    empty = pa.table({"k": pa.array([], pa.int64()), "n": pa.array([], pa.int64()), "cut_ms": pa.array([], pa.int64())})
    assert newest_cuts(empty) == {}


def test_rows_that_waited_are_later_than_the_unit_that_brings_them() -> None:
    """A leader may take what is new of one input together with what is old of the other."""
    stream = StreamId(SHARD, ShardId("live", 0))
    header = UnitHeader(stream, 1, pulse=4, cut_ms=5_000, digest=Digest(2, 0))
    reader = InputReader(NO_SUBSCRIPTION)
    reader.take(Result(header, results({1: 5_000, KEYS: 4_250}), arrived_ms=5_400))
    assert [one.latency_ms for one in reader.samples] == [400]
    assert {way: [one.latency_ms for one in found] for way, found in reader.by_input.items()} == {
        "direct": [400],
        "stamped": [1_150],
    }
    assert reader.lost(2) == 0


# --- latency and gaps ---------------------------------------------------------------------------------


def test_latency_is_told_for_the_quiet_time_the_moment_of_the_kill_and_all_that_follows() -> None:
    warm_up, calm, at_kill, later = steady(1, 9, 500), steady(10, 19), steady(20, 22, 900), steady(40, 45, 950)
    found = latencies([*warm_up, *calm, *at_kill, *later], QUIET, KILL)
    assert found["before"] == {"p50": 300.0, "p99": 300.0, "max": 300.0}
    assert found["at_kill"] == {"p50": 900.0, "p99": 900.0, "max": 900.0}
    assert found["after"]["max"] == 950.0


def test_without_results_there_is_no_latency() -> None:
    assert latencies(steady(10, 19), QUIET, KILL)["at_kill"] == {"p50": None, "p99": None, "max": None}


def test_a_gap_at_the_kill_begins_before_it_or_soon_after() -> None:
    found = gaps([*steady(1, 3), *steady(10, 19), *steady(22, 26), *steady(40, 41)], QUIET, KILL)
    assert found == {"before": PULSE, "at_kill": 14 * PULSE, "after": 14 * PULSE}
    later = gaps([*steady(10, 30), *steady(50, 51)], QUIET, KILL)
    assert later == {"before": PULSE, "at_kill": PULSE, "after": 20 * PULSE}
    assert gaps(steady(10, 19), QUIET, KILL)["after"] == 0.0


def test_a_leader_that_takes_the_inputs_apart_makes_two_units_of_a_pulse() -> None:
    apart = [one for number in range(10, 20) for one in (sample(number, 200), sample(number, 450))]
    assert units_per_pulse(apart, QUIET, KILL) == 2.0
    assert units_per_pulse(steady(10, 19), QUIET, KILL) == 1.0
    assert units_per_pulse([], QUIET, KILL) is None


# --- leaders ------------------------------------------------------------------------------------------


HISTORY = [
    leads(1_000, "node-3", 1),
    leads(4_000, "node-4", 2),
    leads(2_000, "node-1", 9, "other.0"),
    told(KILL + 30, "node-1 suspects node-4: the connection to node-4 broke"),
    leads(KILL + 90, "node-3", 3),
]


def test_terms_are_read_from_the_history() -> None:
    assert terms(HISTORY, SHARD) == [
        Term(1, "node-3", 1_000),
        Term(2, "node-4", 4_000),
        Term(3, "node-3", int(KILL + 90)),
    ]
    assert leader_at(terms(HISTORY, SHARD), 3_999) == Term(1, "node-3", 1_000)
    assert leader_at(terms(HISTORY, SHARD), KILL) == Term(2, "node-4", 4_000)
    assert leader_at([], KILL) is None


def test_the_time_until_another_one_leads() -> None:
    assert elections(terms(HISTORY, SHARD), KILL, "node-4") == {
        "leader": {"node": "node-4", "term": 2},
        "election_s": 0.09,
        "terms_since": [{"after_s": 0.09, "node": "node-3", "term": 3}],
    }


def test_a_killed_follower_costs_no_election() -> None:
    calm = elections(terms(HISTORY[:4], SHARD), KILL, "node-3")
    assert calm["election_s"] is None and calm["terms_since"] == []
    uneasy = elections(terms(HISTORY, SHARD), KILL, "node-3")
    assert uneasy["election_s"] is None and len(uneasy["terms_since"]) == 1


def test_nobody_leads_where_pulses_order() -> None:
    assert elections([], KILL, "node-3") == {"leader": None, "election_s": None, "terms_since": []}


@pytest.mark.parametrize(
    ("leader", "kill", "node"),
    [
        (None, "leader", "node-3"),
        (None, "follower", "node-4"),
        ("node-4", "leader", "node-4"),
        ("node-4", "follower", "node-3"),
    ],
)
def test_who_is_killed(leader: str | None, kill: str, node: str) -> None:
    assert victim(["node-3", "node-4"], leader, kill) == node


@pytest.mark.parametrize(("hosts", "leader"), [(["node-3"], None), (["node-3", "node-4"], "node-1")])
def test_without_two_replicas_and_a_leader_among_them_nobody_is_killed(hosts: list[str], leader: str | None) -> None:
    with pytest.raises(UnbrokenError):
        victim(hosts, leader, "leader")


def test_the_story_begins_with_the_kill() -> None:
    assert told_since(HISTORY, KILL) == [
        "0.03 s, node-1: node-1 suspects node-4: the connection to node-4 broke",
        "0.09 s, node-1: node-3 orders the input of counted.0 (term 3)",
    ]


# --- comparison ---------------------------------------------------------------------------------------


def run(case: Case, p50: float, election_s: float | None = None) -> dict[str, Any]:
    spread = {"p50": p50, "p99": 2 * p50, "max": 3 * p50}
    latency = {"before": spread, "at_kill": spread, "after": spread}
    return {
        **case.to_json(),
        "latency_ms": latency,
        "latency_by_input_ms": {"direct": latency, "stamped": {**latency, "before": {**spread, "p50": None}}},
        "gap_ms": {"before": 800.0, "at_kill": 900.0, "after": 1_200.0},
        "bytes_per_row": 640.0,
        "cpu_cores": {"nodes": 1.2, "zookeeper": 0.01, "kafka": None},
        "election_s": election_s,
    }


PULSES = run(Case("pulse", "balanced", "leader"), 400)
LED = run(Case("leader-zookeeper", "balanced", "leader"), 300, 0.1)
FAILED = {**Case("leader-zookeeper", "unbalanced", "leader").to_json(), "error": "too busy"}


def test_leaders_are_compared_with_pulses_in_the_same_case() -> None:
    alone = run(Case("leader-zookeeper", "balanced", "follower"), 100)
    found = ratios([PULSES, LED, FAILED, alone])
    assert list(found) == ["leader-zookeeper"] and list(found["leader-zookeeper"]) == ["balanced"]
    assert list(found["leader-zookeeper"]["balanced"]) == ["leader"]
    compared = found["leader-zookeeper"]["balanced"]["leader"]
    assert compared["p50"] == 0.75 and compared["bytes"] == 1.0 and compared["gap_at_kill"] == 1.0
    assert compared["p50_direct"] == 0.75 and compared["p50_stamped"] is None


def test_the_table_has_a_line_for_each_run_also_for_one_that_failed() -> None:
    assert ordering_table({"runs": [PULSES, LED, FAILED]}).row_count == 3


# --- the flow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["pulse", "leader"])
def test_the_nodes_that_are_killed_host_nothing_but_the_ordered_segment(who: str) -> None:
    log = "kafka://127.0.0.1:9092"
    with variables({"UNBROKEN_BENCH_ORDERING": who, "UNBROKEN_BENCH_ORDER_LOG": log}):
        flow = load_flow(Path(ordered.__file__))
    topology = build_topology(flow)
    layout = chained_placement(topology, {f"node-{number}": "disk" for number in (1, 2, 3, 4)})
    hosts = list(layout.working_nodes_of(ordering.MEASURED))
    assert len(hosts) == 2
    for node in hosts:
        assert [replica.shard for replica in layout.hosted(node)] == [ordering.MEASURED]
    assert topology.led == ({"counted"} if who == "leader" else frozenset())
    assert flow.settings.order_log == log
    producers = {stream.producer.part for stream in topology.inputs(ordering.MEASURED)}
    assert producers == {"direct", "stamped"}


# --- the settings -------------------------------------------------------------------------------------


def test_settings_are_read_from_the_command_line() -> None:
    settings = OrderingSettings.parse("pulse, leader-kafka", "unbalanced", "follower,leader", 30, "localhost:9092")
    assert settings == OrderingSettings(("pulse", KAFKA), ("unbalanced",), ("follower", "leader"), 30, "localhost:9092")
    assert settings.left_out() == []
    assert [str(case) for case in settings.cases()] == [
        "pulse, unbalanced inputs, follower killed",
        "leader-kafka, unbalanced inputs, follower killed",
        "pulse, unbalanced inputs, leader killed",
        "leader-kafka, unbalanced inputs, leader killed",
    ]
    assert [settings.order_log(case) for case in settings.cases()[:2]] == ["zookeeper", "kafka://localhost:9092"]


def test_kafka_is_left_out_with_a_note_if_no_server_is_given() -> None:
    settings = OrderingSettings.parse(",".join(ORDERINGS), ",".join(INPUTS), "leader", 60, None)
    assert {case.ordering for case in settings.cases()} == {"pulse", "leader-zookeeper"}
    assert len(settings.left_out()) == 1 and "--kafka HOST:PORT" in settings.left_out()[0]


@pytest.mark.parametrize(
    ("orderings", "inputs", "kills", "seconds", "kafka", "why"),
    [
        ("pulse,bucket", "balanced", "leader", 60, None, "no ordering bucket"),
        ("pulse", "steady", "leader", 60, None, "no kind of inputs steady"),
        ("pulse", "balanced", "leader,", 60, None, "no kill "),
        ("pulse", "balanced", "leader", 5, None, "too short"),
        ("pulse", "balanced", "leader", 60, "localhost", "no Kafka server"),
        ("pulse", "balanced", "leader", 60, "kafka://localhost:9092", "no Kafka server"),
        ("leader-kafka", "balanced", "leader", 60, None, "nothing to measure"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    orderings: str, inputs: str, kills: str, seconds: int, kafka: str | None, why: str
) -> None:
    with pytest.raises(UnbrokenError, match=why):
        OrderingSettings.parse(orderings, inputs, kills, seconds, kafka)


def test_a_kafka_that_is_not_there_is_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "client", lambda: None)
    with socket.socket() as probe:
        # Bound and not listening: nobody answers, and nobody else gets the port.
        probe.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(UnbrokenError, match="no Kafka answers"):
            run_ordering(OrderingSettings((KAFKA,), kafka=servers), lambda _: None)


def test_a_run_that_fails_does_not_keep_the_others_from_going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(case: Case, settings: OrderingSettings, say: Any) -> dict[str, Any]:
        if case.led:
            raise UnbrokenError("the machine may be too busy")
        return run(case, 400)

    monkeypatch.setattr(ordering, "_measure", measure)
    said: list[str] = []
    result = run_ordering(OrderingSettings(kills=("leader",)), said.append)
    errors = {(one["ordering"], one["inputs"]): one.get("error") for one in result["runs"]}
    assert errors == {
        ("pulse", "balanced"): None,
        ("leader-zookeeper", "balanced"): "the machine may be too busy",
        ("pulse", "unbalanced"): None,
        ("leader-zookeeper", "unbalanced"): "the machine may be too busy",
    }
    assert result["notes"] and result["notes"][0] in said
    assert ordering_table(result).row_count == 4
