"""What `unbroken bench ordering` makes of results, arrivals and sentences, and the flow that it runs."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lab.experiments.trying import drawn
from unbroken.client import Result
from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.notices import Notice, Reported
from unbroken.protocol.values.notices.placement import NodeSuspected
from unbroken.protocol.values.notices.replicas import LeaderElected
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken_lab.demo.measure import ArrivalSample
from unbroken_lab.experiments.experiment import Row, Size, flat
from unbroken_lab.experiments.flows import ordered
from unbroken_lab.experiments.ordering import ordering
from unbroken_lab.experiments.ordering.figures import (
    Term,
    elections,
    gaps,
    latencies,
    leader_at,
    newest_cuts,
    terms,
    units_per_pulse,
    victim,
)
from unbroken_lab.experiments.ordering.ordering import KAFKA, InputReader, OrderingCase, Orderings
from unbroken_lab.experiments.parameters.ordered import KEYS
from unbroken_lab.experiments.recovery.strategy_figures import told_since

PULSE = 750
QUIET = 10 * PULSE
KILL = 20 * PULSE + 100.0
SHARD = ShardId("counted", 0)
NO_SUBSCRIPTION: Any = None


def sample(number: int, latency_ms: float = 300.0) -> ArrivalSample:
    return ArrivalSample(pulse=number, rows=1, cut_ms=PULSE * number, arrived_ms=PULSE * number + latency_ms)


def steady(first: int, last: int, latency_ms: float = 300.0) -> list[ArrivalSample]:
    return [sample(number, latency_ms) for number in range(first, last + 1)]


def told(time_ms: float, notice: Notice) -> Reported:
    return Reported(int(time_ms), "node-1", notice)


def leads(time_ms: float, node: str, term: int, shard: str = "counted.0") -> Reported:
    return told(time_ms, LeaderElected(node, ShardId.parse(shard), term))


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
    told(KILL + 30, NodeSuspected("node-1", "node-4", "the connection to node-4 broke")),
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


def run(case: OrderingCase, p50: float, lost: int = 0) -> Row:
    spread = {"p50": p50, "p99": 2 * p50, "max": 3 * p50}
    latency = {"before": spread, "at_kill": spread, "after": spread}
    figures = {
        **{"ordering": case.ordering, "inputs": case.inputs, "kill": case.kill},
        "latency_ms": latency,
        "latency_by_input_ms": {"direct": latency, "stamped": {**latency, "before": {**spread, "p50": None}}},
        "gap_ms": {"before": 800.0, "at_kill": 900.0, "after": 1_200.0},
        "bytes_per_row": 640.0,
        "cpu_cores": {"nodes": 1.2, "zookeeper": 0.01, "kafka": None},
        **{"lost": lost, "duplicated": 0, "missing_units": 0},
    }
    return flat(figures)


PULSES = run(OrderingCase("pulse", "balanced", "leader"), 400)
LED = run(OrderingCase("leader-zookeeper", "balanced", "leader"), 300)


def test_leaders_are_compared_with_pulses_in_the_same_case(tmp_path: Path) -> None:
    alone = run(OrderingCase("leader-zookeeper", "balanced", "follower"), 100)
    found = drawn(Orderings(), [PULSES, LED, alone], tmp_path)
    right, compared = found.values()
    assert compared.claim == "leader-zookeeper for each of pulses, balanced inputs, leader killed"
    assert compared.here.startswith("p50 0.750, p99 0.750, p50 direct 0.750, p50 stamped unknown, bytes 1.000")
    assert right.agrees is True
    assert Orderings().claims([run(OrderingCase("pulse", "balanced", "leader"), 400, lost=3)])[0].agrees is False


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
    asked = Orderings("pulse, leader-kafka", "unbalanced", "follower,leader", 30, "localhost:9092")
    assert asked.left_out() == ""
    assert [str(case) for case in asked.runs()] == [
        "pulse, unbalanced inputs, follower killed",
        "leader-kafka, unbalanced inputs, follower killed",
        "pulse, unbalanced inputs, leader killed",
        "leader-kafka, unbalanced inputs, leader killed",
    ]
    assert [asked.order_log(case) for case in asked.runs()[:2]] == ["zookeeper", "kafka://localhost:9092"]


def test_kafka_is_left_out_with_a_note_if_no_server_is_given() -> None:
    asked = Orderings(kills="leader")
    assert {case["ordering"] for case in asked.cases(Size())} == {"pulse", "leader-zookeeper"}
    assert "--kafka HOST:PORT" in asked.left_out() and asked.left_out() in asked.scale(Size())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"orderings": "pulse,bucket"}, "no ordering bucket"),
        ({"inputs": "steady"}, "no kind of inputs steady"),
        ({"kills": " , "}, "no kill was named"),
        ({"seconds": 5}, "too short"),
        ({"kafka": "localhost"}, "no Kafka server"),
        ({"kafka": "kafka://localhost:9092"}, "no Kafka server"),
        ({"orderings": "leader-kafka"}, "nothing to measure"),
    ],
)
def test_what_cannot_be_measured_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UnbrokenError, match=why):
        Orderings(**settings)


def test_a_kafka_that_is_not_there_is_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "client", lambda: None)
    with socket.socket() as probe:
        # Bound and not listening: no server answers, and no other program gets the port.
        probe.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(UnbrokenError, match="no Kafka answers"):
            Orderings(KAFKA, kafka=servers).cases(Size())
