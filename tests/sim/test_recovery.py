"""Redundancy comes back, whoever is lost at whichever step of a catch-up; and it is worth what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from unbroken.protocol.repair.catchup import CatchUp, Phase
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.notices.placement import ReplicasDropped
from unbroken.protocol.values.notices.replicas import ReplicaReplaced
from unbroken_lab.sim.flows import chain, join
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.faults import FaultyCluster

PULSES = 12


@dataclass
class Rebuilding:
    """A cluster that has lost a node and builds a replica of ``shard`` again on its standby."""

    cluster: FaultyCluster
    shard: ShardId
    replica: ReplicaId
    producers: tuple[NodeId, ...]

    @property
    def newcomer(self) -> NodeId:
        return "standby-1"

    def join(self) -> CatchUp | None:
        return self.cluster.protocol("standby-1").newcomers.joins.get(self.replica)

    def phase(self) -> Phase | None:
        join = self.join()
        return None if join is None else join.phase

    def pinned(self) -> bool:
        """Whether the donor holds what it gives, and it is under way."""
        transfers = self.cluster.world.copying.under_way
        return any(transfer.replica == self.replica and transfer.pinned is not None for transfer in transfers)

    def full(self) -> bool:
        return self.replica in self.cluster.layout.full(self.shard)

    def victim(self, role: str) -> NodeId:
        layout = self.cluster.layout
        leader = self.cluster.world.zookeeper.sync.leader
        donor = leader if self.shard == INGRESS else min(layout.full_nodes_of(self.shard))
        return {
            "newcomer": self.newcomer,
            "donor": donor,
            "producer": next(node for node in self.producers if node != donor),
            "leader": leader,
        }[role]


def rebuilding(shard: ShardId, single: bool = False) -> Rebuilding:
    """The ingress is on node-1 and node-2, s0 on node-2 and node-3, s1 on node-3 and node-4."""
    settings = replace(SETTINGS, single_delivery=single)
    cluster = FaultyCluster(chain((1, 1)), 4, PULSES, settings, standbys=1, transfers=1)
    lost, producers = ("node-2", ("node-3", "node-4")) if shard == INGRESS else ("node-4", ("node-2", "node-3"))
    cluster.run_until(lambda: cluster.delivered() >= 2)
    cluster.wipe(lost, False)
    replica = ReplicaId(shard, 2)
    cluster.run_until(lambda: replica in cluster.layout.placement)
    assert cluster.layout.placement[replica] == "standby-1"
    return Rebuilding(cluster, shard, replica, producers)


Reached = Callable[[Rebuilding], bool]

STEPS: dict[str, Reached] = {
    "placed": lambda r: True,
    "claiming": lambda r: r.phase() is not None,
    "claimed": lambda r: r.phase() is Phase.FETCHING,
    "pinned": lambda r: r.pinned(),
    "started": lambda r: r.phase() in (Phase.CATCHING_UP, Phase.CAUGHT_UP),
    "caught up": lambda r: r.phase() is Phase.CAUGHT_UP,
    "promoted": lambda r: r.full(),
}

ROLES = ["newcomer", "donor", "producer", "leader"]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("shard", [ShardId("s1", 0), INGRESS], ids=["segment", "ingress"])
def test_whoever_is_killed_while_a_replica_catches_up(shard: ShardId, step: str, role: str) -> None:
    for single in (False, True):
        case = rebuilding(shard, single)
        case.cluster.run_until(lambda case=case: STEPS[step](case))  # type: ignore[misc]
        victim = case.victim(role)
        case.cluster.kill(victim)
        # The others go on as far as they can before the node comes back.
        case.cluster.run_turns(20)
        case.cluster.check()
        case.cluster.settle()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("shard", [ShardId("s1", 0), INGRESS], ids=["segment", "ingress"])
def test_whoever_is_lost_for_good_while_a_replica_catches_up(shard: ShardId, step: str) -> None:
    """Except for a node that has the only full replica of a shard."""
    lost = 0
    for role in ROLES:
        case = rebuilding(shard)
        case.cluster.run_until(lambda case=case: STEPS[step](case))  # type: ignore[misc]
        victim = case.victim(role)
        if case.cluster.spares(case.cluster.layout.hosted(victim)):
            lost += 1
            case.cluster.wipe(victim, False)
            case.cluster.settle()
    assert lost > 0


def test_a_newcomer_does_not_count_while_a_producer_knows_nothing_of_it() -> None:
    """That producer may drop what the newcomer needs, and be the only one left tomorrow."""
    case = rebuilding(ShardId("s1", 0))
    cluster = case.cluster
    cluster.cut("standby-1", "node-2")
    cluster.run_until(
        lambda: cluster.delivered() == PULSES,
        unless=lambda step: step.kind == "connect" and step.nodes == ("standby-1", "node-2"),
    )
    assert case.phase() is Phase.CATCHING_UP and not case.full()
    cluster.settle()
    assert case.full()


def test_nobody_goes_on_alone_with_a_log_that_the_layout_has_given_up() -> None:
    """The leader is to be built again and does not know it yet when it loses sight of the other member.

    The store refuses its proposal, because the layout does not place its replica any more: accepted, it would make the
    only log that counts the one that is about to be dropped.
    """
    cluster = FaultyCluster(chain((1,)), 3, PULSES)
    cluster.run_until(lambda: cluster.delivered() >= 2)
    assert cluster.world.zookeeper.sync.leader == "node-1"
    cluster.renew(ReplicaId(INGRESS, 0))
    renewed = cluster.layout.version
    cluster.run_until(lambda: cluster.layout.version > renewed, without=("document",))
    cluster.cut_both("node-1", "node-2")
    store = cluster.world.zookeeper
    alone = {"node-1"}
    cluster.run_until(
        lambda: any(step.proposal.members == alone for step in store.proposals),
        without=("connect", "document", "write"),
    )
    cluster.run_turns(
        20, without=("connect", "document"), unless=lambda step: step.kind == "write" and "node-2" in step.nodes
    )
    assert cluster.world.zookeeper.sync.members == {"node-1", "node-2"}
    cluster.settle()


@pytest.mark.parametrize("single", [False, True], ids=["duplicate", "single"])
@pytest.mark.parametrize("consumer", [0, 1])
@pytest.mark.parametrize("producer", [0, 1])
def test_one_producer_and_one_consumer_of_two_pairs_may_be_lost_at_once(
    producer: int, consumer: int, single: bool
) -> None:
    """The survivors find each other, whichever they are, and nobody has to decide anything for that."""
    shards = (INGRESS, ShardId("s0", 0), ShardId("s1", 0))
    placement = {ReplicaId(shard, i): f"node-{2 * place + i + 1}" for place, shard in enumerate(shards) for i in (0, 1)}
    settings = replace(SETTINGS, single_delivery=single)
    cluster = FaultyCluster(chain((1, 1)), 6, PULSES, settings, placement=placement)
    cluster.run_until(lambda: cluster.delivered() >= 3)
    for victim in (f"node-{3 + producer}", f"node-{5 + consumer}"):
        cluster.wipe(victim, False)
    cluster.run_until(lambda: cluster.delivered() == PULSES, without=("control", "write", "document"))
    cluster.settle()


@pytest.mark.parametrize("single", [False, True], ids=["duplicate", "single"])
@pytest.mark.parametrize("turns", [0, 15, 40, 80])
def test_everybody_is_killed_at_once_and_goes_on_from_disk(turns: int, single: bool) -> None:
    cluster = FaultyCluster(join(2), 3, PULSES, replace(SETTINGS, single_delivery=single))
    cluster.run_turns(turns)
    cluster.blackout()
    cluster.settle()
    assert cluster.layout.next_index[INGRESS] == 2, "nobody was replaced"


@pytest.mark.parametrize(
    "victims",
    [("node-3", "node-4"), ("node-5", "node-6"), ("node-3", "node-4", "node-5", "node-6")],
    ids=["first", "last", "both"],
)
def test_a_shard_that_is_lost_everywhere_goes_on_from_its_snapshot(victims: tuple[NodeId, ...]) -> None:
    """Nodes come back with empty disks; the producers have kept what follows the snapshots."""
    first, last = ShardId("s0", 0), ShardId("s1", 0)
    shards = (INGRESS, first, last)
    placement = {ReplicaId(shard, i): f"node-{2 * place + i + 1}" for place, shard in enumerate(shards) for i in (0, 1)}
    cluster = FaultyCluster(chain((1, 1)), 6, PULSES, replace(SETTINGS, snapshots=True), placement=placement)
    saved = cluster.world.snapshots.saved
    cluster.run_until(lambda: cluster.delivered() >= 3 and saved.keys() == {first, last})
    cluster.run_until(lambda: cluster.delivered() >= 7, without=("transfer",))
    stream = cluster.topology.inputs(first)[0]
    assert cluster.protocol("node-1").outboxes.boxes[stream].base == saved[first].committed < 7, "kept from there on"
    for victim in victims:
        cluster.wipe(victim)
    cluster.settle()
    assert cluster.world.counts["restored"] == len(victims) // 2


def test_a_node_that_was_given_up_while_it_was_cut_off_drops_its_replicas_and_joins_again() -> None:
    cluster = FaultyCluster(chain((1, 1)), 3, PULSES)
    cluster.run_turns(30)
    before = cluster.layout.hosted("node-2")
    cluster.expire("node-2")
    cluster.run_until(lambda: not set(before) & set(cluster.layout.placement), without=("return",))
    cluster.run_turns(10)
    cluster.settle()
    assert not set(before) & set(cluster.layout.placement)
    reports = cluster.reports("node-2")
    assert [one.replica for one in reports if isinstance(one, ReplicaReplaced)] == sorted(before)


def test_a_frozen_consumer_is_given_up_when_too_much_is_kept_for_it() -> None:
    """Its session does not end, its links stand: only what is kept for it shows that it is behind."""
    placement = {ReplicaId(INGRESS, 0): "node-1", ReplicaId(INGRESS, 1): "node-2"}
    placement |= {ReplicaId(ShardId("s0", 0), 0): "node-1", ReplicaId(ShardId("s0", 0), 1): "node-3"}
    cluster = FaultyCluster(chain((1,)), 3, PULSES, replace(SETTINGS, claim_units=3), placement=placement)
    cluster.run_until(lambda: cluster.delivered() >= 1)
    cluster.freeze("node-3")
    cluster.run_until(lambda: cluster.delivered() == PULSES)
    slow = ReplicaId(ShardId("s0", 0), 1)
    assert slow not in cluster.layout.placement, "it held up the outboxes"
    cluster.settle()


def test_a_drained_node_has_nothing_left_and_redundancy_was_never_short() -> None:
    cluster = FaultyCluster(chain((1, 1)), 3, PULSES, standbys=1)
    cluster.run_turns(20)
    cluster.drain("node-2")
    cluster.settle()
    assert cluster.layout.hosted("node-2") == []
    assert not any(isinstance(notice, ReplicasDropped) for notice in cluster.reports())


@pytest.mark.parametrize("replica", ["ingress.0#0", "ingress.0#1", "s0.0#0", "s1.0#1"])
def test_a_replica_is_built_again_in_its_place(replica: str) -> None:
    """Also that of the node that leads the ingress, which the others have to find out."""
    cluster = FaultyCluster(chain((1, 1)), 3, PULSES)
    cluster.run_turns(20)
    renewed = ReplicaId.parse(replica)
    node = cluster.layout.placement[renewed]
    cluster.renew(renewed)
    cluster.settle()
    assert cluster.layout.replica_on(node, renewed.shard) == ReplicaId(renewed.shard, 2)


def test_a_query_that_fails_is_started_again_and_one_that_keeps_failing_is_replaced() -> None:
    cluster = FaultyCluster(chain((1,)), 3, PULSES)
    cluster.run_turns(10)
    replica = ReplicaId(ShardId("s0", 0), 0)
    node = cluster.layout.placement[replica]

    def runs() -> bool:
        query = cluster.process(node).engine.queries.get(replica)
        return query is not None and not query.stopped

    cluster.fail(node, replica)
    assert not runs()
    cluster.run_until(runs)
    while replica in cluster.layout.placement:
        if runs():
            cluster.fail(node, replica)
        cluster.run_turns(1)
    cluster.settle()
