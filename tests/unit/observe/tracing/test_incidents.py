"""The spans of failures in simulated flows: who misses whom, who takes over, how replicas are built again."""

from __future__ import annotations

from dataclasses import replace

from kit.tracing.watched import Watched, watched
from unbroken.observe.tracing.ids import Ids
from unbroken.observe.tracing.incidents import IncidentSpans
from unbroken.observe.tracing.spans import Seen, Span
from unbroken.protocol.events import (
    FetchFailed,
    GateAsked,
    InSyncChanged,
    LayoutChanged,
    LinkLost,
    LinkUp,
    QueryFailed,
    StateArrived,
    Tick,
)
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.instructions import FetchState, StopReplica, Suspect, Trust
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken.protocol.values.recovery import StoredReplica
from unbroken_lab.sim.flows import chain
from unbroken_lab.sim.world import Setup, World

SETUP = Setup(chain((1, 1)), 3, standbys=1, skewed=False, check_every=0)
REPLICA = ReplicaId(ShardId("s0", 0), 0)
MS = 1_000_000


def node() -> IncidentSpans:
    layout = chained_placement(SETUP.topology, {name: f"{name}-disk" for name in ("a", "b", "c")})
    return IncidentSpans("a", Ids("run"), layout, InSync(1, "b", frozenset({"a", "b"}), 0), 0)


def run_until_whole(world: World, deadline_ms: float) -> None:
    while (missing := world.shortage()) is not None:
        assert world.kernel.now_ms < deadline_ms, missing
        world.kernel.run(world.kernel.now_ms + 100.0)


def killed_leader() -> tuple[str, Watched]:
    """A run in which the leader of the ingress is killed, and redundancy comes back."""
    with watched(SETUP, seed=3) as (world, seen):
        world.kernel.run(3_000.0)
        assert not [span for _, span in seen.spans if span.name.startswith("miss")]
        leader = world.zookeeper.sync.leader
        world.kill(leader)
        world.kernel.run(6_000.0)
        run_until_whole(world, 60_000.0)
        world.kernel.run(world.kernel.now_ms + 1_000.0)
    return leader, seen


def test_a_lost_node_is_one_trace_of_all_who_miss_it() -> None:
    leader, seen = killed_leader()
    losses = seen.of("miss")
    assert len({span.place.trace for span in losses}) == 1
    survivors = {"node-1", "node-2", "node-3", "standby-1"} - {leader}
    assert {node for node, span in seen.spans if span in losses} == survivors
    for span in losses:
        assert span.attributes["unbroken.lost_node"] == leader
        assert span.attributes["unbroken.outcome"] == "gone on without"
        assert span.attributes["unbroken.replicas"]
        assert span.moments[0].name == "the link is lost"
        assert span.start_ns >= 3_000 * MS < span.end_ns


def test_the_lead_of_the_ingress_is_taken_over_within_that_trace() -> None:
    leader, seen = killed_leader()
    (lead,) = [span for span in seen.of("lead") if span.attributes["unbroken.leader_before"] == leader]
    spans = seen.by_place()
    assert lead.parent is not None and spans[lead.parent].name == "miss a node"
    assert int(str(lead.attributes["unbroken.term"])) > 1


def test_replicas_that_are_built_again_are_linked_to_the_loss() -> None:
    _, seen = killed_leader()
    spans = seen.by_place()
    joins = [span for span in seen.of("join") if not span.failure]
    assert len(joins) == len(seen.of("miss")[0].attributes["unbroken.replicas"])  # type: ignore[arg-type]
    for whole in joins:
        assert [spans[place].name for place in whole.links] == ["miss a node"]
        assert whole.attributes["unbroken.replaces"]
        parts = [(node, span) for node, span in seen.spans if span.parent == whole.place]
        assert {span.name for _, span in parts} >= {"copy state", "pin state", "catch up"}
        assert len({node for node, _ in parts}) == 2, "the newcomer and its donor"
        assert all(whole.start_ns <= span.start_ns <= span.end_ns <= whole.end_ns for _, span in parts)
        assert [moment.name for moment in whole.moments] == ["caught up"]


def test_pulses_that_are_cut_meanwhile_are_linked_to_it() -> None:
    _, seen = killed_leader()
    incidents = [*seen.of("miss"), *seen.of("join")]
    begin, end = min(span.start_ns for span in incidents), max(span.end_ns for span in incidents)
    before = [span for span in seen.of("cut") if span.end_ns < begin]
    during = [span for span in seen.of("cut") if begin < span.start_ns < end]
    assert before and not any(span.links for span in before)
    assert during and any(span.links for span in during)
    after = [span for span in seen.of("cut") if span.start_ns > end]
    assert after and not any(span.links for span in after)


def test_a_replica_that_is_built_again_on_request_is_dropped_and_joins() -> None:
    with watched(SETUP, seed=2) as (world, seen):
        world.kernel.run(3_000.0)
        world.zookeeper.renewed[REPLICA] = None
        world.kernel.run(4_000.0)
        run_until_whole(world, 60_000.0)
        world.kernel.run(world.kernel.now_ms + 1_000.0)
    (drop,) = [span for span in seen.of("drop") if span.attributes["unbroken.replica"] == str(REPLICA)]
    (whole,) = seen.of("join")
    assert whole.links == (drop.place,) and whole.attributes["unbroken.replaces"] == (str(REPLICA),)
    assert not seen.of("miss")


def spans_of(machine: IncidentSpans, *seen: Seen) -> list[Span]:
    return [span for one in seen for span in machine.see(one)]


def test_a_suspicion_that_is_taken_back_is_a_loss_that_ended() -> None:
    machine = node()
    assert not spans_of(machine, Seen(1, 2, LinkLost("x"), (Suspect("b", "no answer"),), incarnation="1"))[1:]
    assert len(machine.under_way()) == 1
    (span,) = spans_of(machine, Seen(5, 6, QueryFailed(REPLICA, ""), (Trust("b"),)))
    assert (span.start_ns, span.end_ns, span.attributes["unbroken.outcome"]) == (1, 5, "heard again")
    assert span.moments[0].attributes == {"unbroken.reason": "no answer"}
    assert not machine.under_way()


def test_a_suspect_that_is_not_asked_any_more_is_not_missed_for_ever() -> None:
    machine = node()
    spans_of(machine, Seen(1, 2, QueryFailed(REPLICA, ""), (Suspect("b", "no answer"),)))
    (span,) = spans_of(machine, Seen(5, 6, QueryFailed(REPLICA, ""), (Trust("b", heard=False),)))
    assert span.attributes["unbroken.outcome"] == "not asked any more"
    spans_of(machine, Seen(7, 7, LinkLost("b"), (Suspect("b", "the link is lost"),), incarnation="1"))
    assert spans_of(machine, Seen(8, 8, QueryFailed(REPLICA, ""), (Trust("b", heard=False),))) == []
    assert machine.under_way(), "its link is lost all the same"


def test_a_node_that_had_nothing_to_do_is_not_missed_for_long() -> None:
    machine = node()
    (span,) = spans_of(machine, Seen(1, 2, LinkLost("standby"), incarnation="1"))
    assert span.attributes["unbroken.replicas"] == () and not machine.under_way()


def test_a_query_that_fails_and_runs_again_is_a_restart() -> None:
    machine = node()
    asked = GateAsked(REPLICA, "i", 4, 1, 0.0)
    assert spans_of(machine, Seen(1, 1, asked)) == []
    (span,) = spans_of(machine, Seen(2, 2, QueryFailed(REPLICA, "no memory")), Seen(9, 9, asked))
    assert (span.name, span.start_ns, span.end_ns, span.failure) == ("restart a query", 2, 9, "")
    assert span.attributes["unbroken.reason"] == "no memory"


def test_a_query_that_cannot_go_on_is_a_failure() -> None:
    stop = Seen(9, 9, QueryFailed(REPLICA, "again"), (StopReplica(REPLICA, "4 times in a row"),))
    restart, stopped = spans_of(node(), Seen(2, 2, QueryFailed(REPLICA, "no memory")), stop)
    assert restart.failure == stopped.failure == "4 times in a row"
    assert restart.place.trace == stopped.place.trace == Ids("run").end(REPLICA).trace


def test_what_is_under_way_when_a_node_ends_is_told_as_it_stands() -> None:
    machine = node()
    spans_of(machine, Seen(1, 2, LinkLost("b"), incarnation="1"))
    (span,) = machine.close(7)
    assert (span.end_ns, span.attributes["unbroken.outcome"]) == (7, "still missed")
    assert machine.close(8) == []


def moved(machine: IncidentSpans, layout: Layout, now_ns: int) -> list[Span]:
    return spans_of(machine, Seen(now_ns, now_ns, LayoutChanged(layout)))


def test_a_replica_is_linked_to_its_own_predecessor_and_not_to_a_loss_of_long_ago() -> None:
    machine, layout = node(), chained_placement(SETUP.topology, dict.fromkeys("abc", ""))
    assert layout.placement[REPLICA] == "b"
    spans_of(machine, Seen(1, 1, LinkLost("b"), incarnation="1"), Seen(2, 2, LinkUp("b"), incarnation="2"))
    without = layout.without([REPLICA])
    joining, replica = without.with_joining(REPLICA.shard, "a")
    assert moved(machine, without, 3) == []
    assert moved(machine, joining, 4) == []
    fetch = FetchState(replica, "b", REPLICA.shard)
    copies = spans_of(
        machine,
        Seen(5, 5, Tick(), (fetch,)),
        Seen(6, 6, FetchFailed(replica, "b", "it is gone")),
        Seen(7, 7, Tick(), (fetch,)),
        Seen(8, 8, StateArrived(replica, StoredReplica(committed=9), "b", 100)),
    )
    assert [span.failure for span in copies] == ["it is gone", ""]
    assert copies[0].place != copies[1].place and copies[1].attributes["unbroken.bytes"] == 100
    assert moved(machine, replace(joining, version=joining.version + 1), 9) == []
    (join,) = moved(machine, replace(joining, version=joining.version + 2, joining=frozenset()), 10)
    assert (join.start_ns, join.end_ns, join.links) == (4, 10, (Ids("run").end(REPLICA),))
    assert join.attributes["unbroken.copies"] == 2 and not join.failure


def test_a_replica_that_never_came_to_count_is_a_failure() -> None:
    machine, layout = node(), chained_placement(SETUP.topology, dict.fromkeys("abc", ""))
    joining, replica = layout.without([REPLICA]).with_joining(REPLICA.shard, "a")
    moved(machine, joining, 4)
    (join,) = moved(machine, joining.without([replica]), 5)
    assert join.failure == "it was given up before it had caught up"


def test_old_news_of_the_lead_are_no_news() -> None:
    machine = node()
    lead = InSync(2, "a", frozenset("a"), 5)
    (span,) = spans_of(machine, Seen(1, 2, InSyncChanged(lead)))
    assert span.parent is None and span.attributes["unbroken.leader_before"] == "b"
    assert spans_of(machine, Seen(3, 4, InSyncChanged(InSync(1, "b", frozenset("ab"), 0)))) == []
    assert spans_of(machine, Seen(5, 6, InSyncChanged(lead))) == []


def test_the_ingress_has_a_place() -> None:
    """The tests above rely on it that every node of theirs hosts something."""
    layout = chained_placement(SETUP.topology, dict.fromkeys("abc", ""))
    assert all(layout.hosted(name) for name in ("a", "b", "c")) and layout.nodes_of(INGRESS)
