"""The ring: who asks whom, who is suspected and when that ends; by example and in a flow."""

from __future__ import annotations

from dataclasses import replace

from kit.layouts import layout
from kit.topologies import chain
from unbroken.protocol.events import Received
from unbroken.protocol.instructions import Instruction, Send, Suspect, Trust
from unbroken.protocol.messages import Ping, Pong
from unbroken.protocol.placement.ring import Ring, followers
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.faults import FaultyCluster

TOTALS = ShardId("totals", 0)
PERIOD_MS, MISSES = 500.0, 3


def follow(me: NodeId, places: dict[str, str]) -> list[NodeId]:
    return sorted(followers(layout(places), me))


PAIR = {"totals.0#0": "node-1", "totals.0#1": "node-2"}
SURVIVOR = {"totals.0#0": "node-1"}


def ring(places: dict[str, str], misses: int = MISSES) -> Ring:
    out = Ring("node-1", PERIOD_MS, misses)
    assert out.placed(layout(places)) == []
    return out


def pings(steps: list[Instruction]) -> list[tuple[NodeId, int]]:
    return [(step.to, step.message.number) for step in steps if isinstance(step, Send) and type(step.message) is Ping]


# --- who asks whom ------------------------------------------------------------------------------------------


def test_each_replica_asks_the_next_one_and_the_last_the_first() -> None:
    places = {"totals.0#1": "a", "totals.0#4": "b", "totals.0#7": "c"}
    assert [follow(node, places) for node in "abc"] == [["b"], ["c"], ["a"]]


def test_two_ask_each_other_and_a_survivor_asks_nobody() -> None:
    assert follow("node-1", PAIR) == ["node-2"] and follow("node-2", PAIR) == ["node-1"]
    assert follow("node-1", SURVIVOR) == []


def test_replicas_that_join_or_hold_a_copy_are_part_of_the_ring() -> None:
    three = layout({**PAIR, "totals.0#2": "node-3"})
    joining, held = ReplicaId(TOTALS, 1), ReplicaId(TOTALS, 2)
    found = replace(three, joining=frozenset({joining}), held=frozenset({held}))
    assert {node: sorted(followers(found, node)) for node in found.nodes} == {
        "node-1": ["node-2"],
        "node-2": ["node-3"],
        "node-3": ["node-1"],
    }


def test_a_node_that_follows_in_several_rings_is_asked_once() -> None:
    places = {**PAIR, "counts.0#0": "node-1", "counts.0#1": "node-2", "counts.1#0": "node-2", "counts.1#1": "node-1"}
    assert pings(ring(places).tick(0, ["node-2"])) == [("node-2", 1)]


def test_shards_with_a_single_replica_form_a_ring_in_their_part() -> None:
    places = {"counts.0#0": "a", "counts.1#3": "b", "counts.2#0": "c", "totals.0#0": "d"}
    alone = "totals has no colleague: all that are alone watch it, and it watches them"
    assert [follow(node, places) for node in "abcd"] == [["b"], ["c"], ["a", "d"], ["a"]], alone
    together = {"counts.0#0": "a", "counts.1#0": "a", "counts.2#0": "b"}
    assert [follow(node, together) for node in "ab"] == [["b"], ["a"]]
    assert follow("a", {"counts.0#0": "a", "counts.1#0": "a"}) == []


def test_a_shard_that_lost_its_sibling_is_watched_among_those_that_are_alone_too() -> None:
    places = {"counts.0#0": "a", "counts.0#1": "b", "counts.1#0": "c", "counts.2#1": "d"}
    assert [follow(node, places) for node in "abcd"] == [["b"], ["a"], ["d"], ["c"]]


# --- suspicion ----------------------------------------------------------------------------------------------


def test_silence_is_suspected_after_so_many_pings_and_told_once() -> None:
    found = ring(PAIR)
    for period in range(MISSES):
        assert pings(found.tick(period * PERIOD_MS, ["node-2"])) == [("node-2", period + 1)]
        assert found.wake_times_ms() == [(period + 1) * PERIOD_MS]
        assert found.tick(period * PERIOD_MS + 1, ["node-2"]) == [], "not before it is due"
        found.check()
    told, ping = found.tick(MISSES * PERIOD_MS, ["node-2"])
    reason = "totals.0#0 on node-1 has had no answer from totals.0#1 on node-2 for 3 pings (1.5 s)"
    assert told == Suspect("node-2", reason) and found.suspected == {"node-2"}
    assert pings([ping]) == [("node-2", MISSES + 1)], "it is asked on"
    for period in range(MISSES + 1, 10):
        assert len(found.tick(period * PERIOD_MS, ["node-2"])) == 1, "it is told once"


def test_whoever_answers_is_not_suspected() -> None:
    found = ring(PAIR)
    for period in range(10):
        steps = found.tick(period * PERIOD_MS, ["node-2"])
        assert len(steps) == 1
        assert found.answered("node-2", period + 1) == []


def test_late_answers_count_while_they_are_not_too_late() -> None:
    """Two periods late for ever, with three misses."""
    found = ring(PAIR)
    for period in range(10):
        assert pings(found.tick(period * PERIOD_MS, ["node-2"])) == [("node-2", period + 1)]
        assert found.answered("node-2", period - 1) == []


def test_a_suspect_is_trusted_when_it_has_answered_what_it_was_asked_lately() -> None:
    found = ring(PAIR)
    for period in range(8):
        found.tick(period * PERIOD_MS, ["node-2"])
    assert found.suspected == {"node-2"}
    assert found.answered("node-2", 5) == [], "three behind"
    assert found.answered("node-2", 6) == [Trust("node-2")]
    assert found.answered("node-2", 7) == [] == found.answered("node-2", 6), "told once"
    assert not found.suspected


def test_the_time_of_silence_begins_with_the_first_unanswered_ping() -> None:
    found = ring(PAIR)
    for period in range(6):
        steps = found.tick(period * PERIOD_MS, ["node-2"])
        if period == 2:
            assert found.answered("node-2", 2) == []
    (told,) = [step for step in steps if isinstance(step, Suspect)]
    assert told.reason.endswith("for 3 pings (1.5 s)")


def test_one_miss_can_be_enough() -> None:
    found = ring(PAIR, misses=1)
    found.tick(0, ["node-2"])
    (told,) = [step for step in found.tick(PERIOD_MS, ["node-2"]) if isinstance(step, Suspect)]
    assert told.reason.endswith("for 1 ping (0.5 s)")
    assert found.answered("node-2", 2) == [Trust("node-2")]


def test_a_broken_connection_is_suspected_at_once() -> None:
    found = ring(PAIR)
    found.tick(0, ["node-2"])
    assert found.link_lost("node-2") == [Suspect("node-2", "the connection to node-2 broke")]
    assert found.link_lost("node-2") == []
    assert found.link_lost("node-3") == [], "not in the ring"
    assert found.answered("node-2", 1) == [], "it was on its way before"
    for period in range(1, 10):
        assert found.tick(period * PERIOD_MS, []) == [], "nothing is sent without a link, nothing told twice"


def test_a_node_that_returned_is_asked_at_once_and_trusted_when_it_answers() -> None:
    found = ring(PAIR)
    found.tick(0, ["node-2"])
    found.link_lost("node-2")
    found.tick(PERIOD_MS, [])
    found.link_up("node-2")
    ((_, number),) = pings(found.tick(PERIOD_MS + 1, ["node-2"]))
    assert found.suspected == {"node-2"}, "a link alone is no answer"
    assert found.answered("node-2", number) == [Trust("node-2")]


def test_a_node_that_was_gone_before_it_came_next_is_suspected_too() -> None:
    found = ring(SURVIVOR)
    assert found.tick(0, []) == [] and found.wake_times_ms() == []
    found.placed(layout(PAIR))
    steps = [step for period in range(MISSES + 1) for step in found.tick(period * PERIOD_MS, [])]
    assert steps == [Suspect("node-2", "totals.0#0 on node-1 has had no connection to totals.0#1 on node-2 for 1.5 s")]


def test_the_time_before_there_was_a_link_is_forgotten() -> None:
    found = ring(PAIR, misses=1)
    found.tick(0, [])
    found.link_up("node-2")
    assert pings(found.tick(10, ["node-2"])) == [("node-2", 2)] and not found.suspected


def test_a_layout_without_the_node_ends_a_suspicion() -> None:
    found = ring(PAIR)
    found.tick(0, ["node-2"])
    found.link_lost("node-2")
    assert found.placed(layout(SURVIVOR)) == [Trust("node-2", heard=False)]
    assert found.placed(layout(SURVIVOR)) == [] == found.tick(9e9, ["node-2"])
    assert found.answered("node-2", 1) == []
    found.placed(layout(PAIR))
    assert found.suspected == frozenset() and found.placed(layout(SURVIVOR)) == []


def test_a_layout_that_keeps_the_node_keeps_the_suspicion() -> None:
    found = ring(PAIR)
    found.tick(0, ["node-2"])
    found.link_lost("node-2")
    assert found.placed(layout({"totals.0#0": "node-1", "totals.0#2": "node-2"})) == []
    assert found.suspected == {"node-2"}


def test_answers_to_questions_that_were_not_asked_are_nothing() -> None:
    found = ring(PAIR)
    found.tick(0, ["node-2"])
    assert found.answered("node-2", 7) == found.answered("node-3", 1) == []
    found.check()
    for period in range(1, MISSES + 1):
        found.tick(period * PERIOD_MS, ["node-2"])
    assert found.suspected == {"node-2"}


def test_a_period_of_nothing_turns_it_off() -> None:
    off = Ring("node-1", 0, MISSES)
    off.placed(layout(PAIR))
    off.link_up("node-2")
    assert off.tick(0, ["node-2"]) == off.link_lost("node-2") == [] and off.wake_times_ms() == []
    off.check()


# --- in a flow ----------------------------------------------------------------------------------------------


def flow(nodes: int = 2) -> FaultyCluster:
    return FaultyCluster(
        chain((1,)), nodes, pulses=400, settings=replace(SETTINGS, ring_period_ms=2_500, ring_misses=2)
    )


def suspicions(cluster: FaultyCluster) -> dict[NodeId, set[NodeId]]:
    return {process.name: set(process.client.suspected) for process in cluster.world.processes()}


def test_a_flow_without_faults_suspects_nobody() -> None:
    cluster = flow()
    seen: list[set[NodeId]] = []
    while cluster.now_ms < 50_000:
        cluster.run_turns(1)
        seen += suspicions(cluster).values()
    assert seen and not any(seen)
    assert all(watch.answered for node in cluster.protocols().values() for watch in node.ring.watched.values())


def test_a_frozen_node_is_suspected_until_it_answers_again() -> None:
    cluster = flow()
    cluster.run_until(lambda: cluster.delivered() > 2)
    cluster.freeze("node-2")
    began = cluster.now_ms
    cluster.run_until(lambda: suspicions(cluster)["node-1"] == {"node-2"})
    assert cluster.now_ms - began <= 7_500
    cluster.thaw("node-2")
    cluster.run_until(lambda: not any(suspicions(cluster).values()))


def test_a_killed_node_is_suspected_at_once_and_forgotten_when_the_layout_does_without_it() -> None:
    cluster = flow()
    cluster.run_until(lambda: cluster.delivered() > 2)
    cluster.kill("node-2")
    began = cluster.now_ms
    cluster.run_until(lambda: suspicions(cluster)["node-1"] == {"node-2"}, without=("control", "forget"))
    assert cluster.now_ms == began
    cluster.run_until(lambda: not cluster.layout.hosted("node-2"))
    cluster.run_until(lambda: not suspicions(cluster)["node-1"])
    assert not cluster.protocol("node-1").ring.watched, "the survivor asks nobody, itself neither"


def test_a_node_that_starts_again_is_trusted_when_it_answers() -> None:
    cluster = flow()
    cluster.run_until(lambda: cluster.delivered() > 2)
    cluster.kill("node-2")
    cluster.run_until(lambda: suspicions(cluster)["node-1"] == {"node-2"}, without=("control", "forget"))
    cluster.boot("node-2")
    cluster.run_until(lambda: not any(suspicions(cluster).values()), without=("control", "forget"))
    assert set(cluster.protocol("node-1").ring.watched) == {"node-2"}


def test_a_ping_is_answered_at_once_even_without_a_ring() -> None:
    cluster = FaultyCluster(chain((1,)), 2, pulses=1)
    assert cluster.protocol("node-1").handle(Received("node-2", Ping(7)), 0)[0] == Send("node-2", Pong(7))
