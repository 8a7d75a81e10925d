"""k_safety nodes are lost for good at the same moment, next to each other in the flow or not: results continue."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.protocol.output.outbox import Outbox
from unbroken.protocol.policies.upstream_backup import backup as upstream
from unbroken.protocol.policies.upstream_backup.levels import needed_levels
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Layout, Topology
from unbroken.protocol.values.notices.replicas import RebuildImpossible
from unbroken.protocol.values.rebuilt_state import FROM_THE_FIRST, Rebuilt, merged
from unbroken.protocol.values.strategy import STATELESS, Ha, Strategy
from unbroken_lab.sim.content import DELAY_MS
from unbroken_lab.sim.flows import chain
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.faults import FaultyCluster

PULSES = 40
WINDOW = DELAY_MS + 1_600.0


def shard(number: int) -> ShardId:
    return ShardId(f"s{number}", 0)


def flow(k: int, horizon_ms: float = STATELESS, segments: int = 3, timed: bool = True) -> Topology:
    topology = chain((1,) * segments)
    foldable = timed and horizon_ms > STATELESS
    kept = Strategy(Ha.UPSTREAM, k, horizon_ms=horizon_ms, timed=timed, foldable=foldable)
    strategies = {f"s{i}": kept for i in range(segments)} | {INGRESS.part: Strategy(Ha.ACTIVE, 2)}
    replicas = {part: strategy.running for part, strategy in strategies.items()}
    return replace(topology, strategies=strategies, replicas=replicas)


def cluster(topology: Topology, hosts: list[int] | None = None) -> FaultyCluster:
    """The ingress on three nodes; every segment on a node of its own, or on the one that ``hosts`` has for it."""
    placement: dict[ReplicaId, NodeId] = {ReplicaId(INGRESS, i): f"node-{i + 1}" for i in range(3)}
    chosen = hosts or list(range(len(topology.segments)))
    placement |= {ReplicaId(shard(i), 0): f"node-{4 + host}" for i, host in enumerate(chosen)}
    return FaultyCluster(topology, 3 + max(chosen) + 1, PULSES, SETTINGS, standbys=4, placement=placement)


def lose(run: FaultyCluster, *names: NodeId) -> None:
    for name in names:
        run.wipe(name, False)


def finish(run: FaultyCluster) -> None:
    """All results are there, and are those of a quiet run."""
    run.run_until(lambda: run.delivered() == PULSES, bound=3_000)
    run.settle()


def has_delivered(run: FaultyCluster, units: int) -> bool:
    return run.delivered() >= units


@pytest.mark.parametrize("at", [3, 12, 20, 30])
@pytest.mark.parametrize("horizon_ms", [STATELESS, WINDOW], ids=["stateless", "window"])
@pytest.mark.parametrize(
    ("k", "lost"), [(2, (0, 1)), (2, (1, 2)), (2, (0, 2)), (3, (0, 1)), (3, (0, 1, 2))], ids=lambda value: str(value)
)
def test_segments_in_a_row_are_lost_at_once(k: int, lost: tuple[int, ...], horizon_ms: float, at: int) -> None:
    run = cluster(flow(k, horizon_ms))
    run.run_until(lambda: run.delivered() >= at, bound=20_000)
    lose(run, *(f"node-{4 + number}" for number in lost))
    finish(run)


def test_the_time_of_cuts_bounds_the_state() -> None:
    run = cluster(flow(2, horizon_ms=1_000.0, timed=False))
    run.run_until(lambda: run.delivered() >= 20, bound=20_000)
    lose(run, "node-4", "node-5")
    finish(run)


@pytest.mark.parametrize("hosts", [[0, 0, 1], [0, 1, 1], [0, 0, 0]], ids=str)
@pytest.mark.parametrize("horizon_ms", [STATELESS, WINDOW], ids=["stateless", "window"])
def test_one_node_hosts_several_segments_in_a_row(hosts: list[int], horizon_ms: float) -> None:
    """Nodes are lost, not segments: k_safety is the number of nodes."""
    for doomed in sorted(set(hosts)):
        run = cluster(flow(1, horizon_ms), hosts)
        run.run_until(partial(has_delivered, run, 20), bound=20_000)
        lose(run, f"node-{4 + doomed}")
        finish(run)


def test_a_rebuilt_replica_remembers_after_a_restart_what_its_consumer_needs() -> None:
    run = cluster(flow(2))
    run.run_until(lambda: run.delivered() >= 20, bound=20_000)
    lose(run, "node-4", "node-5")

    def begun() -> list[NodeId]:
        return [name for name, node in run.protocols().items() if any(r.shard == shard(0) for r in node.hosted())]

    run.run_until(lambda: bool(begun()))
    (name,) = begun()
    run.kill(name)
    run.boot(name)
    finish(run)


@pytest.mark.parametrize(("k", "lost"), [(1, (0, 1)), (2, (0, 1, 2))], ids=str)
def test_what_is_lost_beyond_k_safety_waits_and_says_for_what(k: int, lost: tuple[int, ...]) -> None:
    run = cluster(flow(k))
    run.run_until(lambda: run.delivered() >= 20, bound=20_000)
    lose(run, *(f"node-{4 + number}" for number in lost))
    run.run_turns(400)
    told = [one for one in run.reports() if isinstance(one, RebuildImpossible)]
    assert len(told) == 1 and told[0].streams
    assert run.delivered() < PULSES


@pytest.mark.parametrize("lost", [(0, 1), (0, 2), (1, 2)], ids=str)
def test_copies_of_passive_standby_are_lost_with_the_primary(lost: tuple[int, ...]) -> None:
    topology = chain((1, 1))
    strategies = {part: Strategy(Ha.PASSIVE, 2, every=2) for part in topology.segments}
    strategies[INGRESS.part] = Strategy(Ha.ACTIVE, 2)
    replicas = {part: strategy.running for part, strategy in strategies.items()}
    run = FaultyCluster(replace(topology, strategies=strategies, replicas=replicas), 8, PULSES, SETTINGS, standbys=3)
    run.run_until(lambda: run.delivered() >= 12, bound=20_000)
    layout = run.layout
    hosts = [*layout.working_nodes_of(shard(1)), *(layout.placement[r] for r in sorted(layout.holding(shard(1))))]
    lose(run, *(hosts[number] for number in lost))
    finish(run)


def test_nodes_that_lost_their_disks_and_are_back_leave_no_shard_without_a_replica() -> None:
    """The standby with least to do has lost its disk as well, and the layout does not know the new one yet."""
    run = cluster(flow(2))
    run.run_until(lambda: run.delivered() >= 12, bound=20_000)
    for name in ("node-4", *(f"standby-{i}" for i in range(1, 5))):
        run.wipe(name, True)
        run.boot(name)
    finish(run)


def test_levels_above_the_first_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where k_safety is taken for 1, a flow stops; the campaign of ``tests/sim`` finds that by itself."""
    one_level(monkeypatch)
    run = cluster(flow(2))
    run.run_until(lambda: run.delivered() >= 20, bound=20_000)
    lose(run, "node-4", "node-5")
    with pytest.raises(AssertionError, match="not reached"):
        run.run_until(lambda: run.delivered() == PULSES, bound=400)


def one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignored(topology: Topology, layout: Layout, part: str) -> int:
        return min(1, needed_levels(topology, layout, part))

    monkeypatch.setattr(upstream, "needed_levels", ignored)


# --- how many levels ----------------------------------------------------------------------------------------


def levels(topology: Topology, hosts: list[int]) -> list[int]:
    layout = cluster(topology, hosts).layout
    return [needed_levels(topology, layout, part) for part in topology.segments]


def test_as_many_levels_as_segments_can_be_lost_with_so_many_nodes() -> None:
    assert levels(flow(1), [0, 1, 2]) == [1, 1, 1]
    assert levels(flow(2), [0, 1, 2]) == [2, 2, 1], "a row is not longer than it is"
    assert levels(flow(1), [0, 0, 1]) == [2, 1, 1]
    assert levels(flow(1), [0, 0, 0]) == [3, 2, 1]
    assert levels(flow(2, segments=5), [0, 0, 1, 1, 2]) == [4, 3, 3, 2, 1]


def test_one_that_keeps_its_state_safe_ends_a_row() -> None:
    topology = flow(3)
    topology = replace(topology, strategies={**topology.strategies, "s1": Strategy(Ha.NONE, 0)})
    assert levels(topology, [0, 0, 0]) == [1, 0, 1]


def test_an_outbox_whose_consumer_needs_another_level() -> None:
    stream, consumer = StreamId(shard(0), shard(1)), ReplicaId(shard(1), 0)
    box = Outbox(stream, frozenset({consumer}), levels=1)
    box.ack(str(consumer), 7, level=1, rebuilt=Rebuilt(8))
    box.ack(str(consumer), 5, level=2, rebuilt=Rebuilt(6, ((shard(2), Rebuilt(7)),)))
    assert box.acked == {consumer: 7} and box.rebuilt == Rebuilt(8)
    assert not box.relevel(2), "what was let go at level 1 is not needed at level 2 alone"
    assert box.relevel(2) is False and box.acked == {consumer: 7}
    box.ack(str(consumer), 8, level=2, rebuilt=Rebuilt(9, ((shard(2), Rebuilt(10)),)))
    assert (box.owed, box.rebuilt.of(shard(2))) == (8, Rebuilt(10))
    box.ack(str(consumer), 9, level=1, rebuilt=Rebuilt(11))
    assert box.acked == {consumer: 8}
    assert box.relevel(1) and box.acked == {consumer: 9}


# --- what is rebuilt ----------------------------------------------------------------------------------------

leaves = st.builds(Rebuilt, st.integers(0, 9))


def parents(children: st.SearchStrategy[Rebuilt]) -> st.SearchStrategy[Rebuilt]:
    below = st.dictionaries(st.sampled_from([shard(1), shard(2)]), children, max_size=2)
    return st.builds(lambda valid, found: Rebuilt(valid, tuple(sorted(found.items()))), st.integers(0, 9), below)


trees = st.recursive(leaves, parents, max_leaves=8)


@given(st.lists(trees, min_size=1, max_size=4))
def test_nothing_is_claimed_that_does_not_follow(facts: list[Rebuilt]) -> None:
    found = merged(facts)
    assert found.valid == max(fact.valid for fact in facts)
    consumers = {consumer for fact in facts if fact.valid == found.valid for consumer, _ in fact.consumers}
    assert {consumer for consumer, _ in found.consumers} == consumers
    for consumer, below in found.consumers:
        known = [(fact.valid, one.valid) for fact in facts if (one := fact.of(consumer)) is not None]
        least = max(valid for begins, valid in known if begins == found.valid)
        assert least <= below.valid <= max(valid for _, valid in known)


@given(trees, trees)
def test_the_order_of_facts_does_not_matter(one: Rebuilt, other: Rebuilt) -> None:
    assert one.merged(other) == other.merged(one)
    assert one.merged(one) == one and one.merged(FROM_THE_FIRST).valid == one.valid
