"""Redundancy comes back, whoever is lost at whichever step of a catch-up; and it is worth what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from protocol.cluster_effects import SETTINGS, Transfer
from protocol.cluster_model import Cluster
from protocol.model_parts import chain, join
from unbroken.protocol.instructions import ReportCaughtUp
from unbroken.protocol.repair.catchup import CatchUp, Phase
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS

PULSES = 12


@dataclass
class Rebuilding:
    """A cluster that has lost a node and builds a replica of ``shard`` again on its standby."""

    cluster: Cluster
    shard: ShardId
    replica: ReplicaId
    producers: tuple[NodeId, ...]

    @property
    def newcomer(self) -> NodeId:
        return "s0"

    def join(self) -> CatchUp | None:
        return self.cluster.nodes["s0"].protocol.joining.joins.get(self.replica)

    def transfer(self) -> Transfer | None:
        return next((t for t in self.cluster.nodes["s0"].transfers if t.replica == self.replica), None)

    def phase(self) -> Phase | None:
        join = self.join()
        return None if join is None else join.phase

    def stage(self) -> str | None:
        transfer = self.transfer()
        return None if transfer is None else transfer.stage

    def full(self) -> bool:
        return self.replica in self.cluster.store.layout.full(self.shard)

    def reported(self) -> bool:
        writes = [write for write, _ in self.cluster.nodes["s0"].writes]
        return any(isinstance(write, ReportCaughtUp) and write.replica == self.replica for write in writes)

    def victim(self, role: str) -> NodeId:
        layout = self.cluster.store.layout
        donor = self.cluster.store.sync.leader if self.shard == INGRESS else min(layout.full_nodes_of(self.shard))
        return {
            "newcomer": self.newcomer,
            "donor": donor,
            "producer": next(node for node in self.producers if node != donor),
            "leader": self.cluster.store.sync.leader,
        }[role]


def rebuilding(shard: ShardId, single: bool = False) -> Rebuilding:
    """Of nodes n0 to n3 the ingress is on n0 and n1, s0 on n1 and n2, s1 on n2 and n3."""
    settings = replace(SETTINGS, single_delivery=single)
    cluster = Cluster(chain((1, 1)), 4, PULSES, settings, standbys=1, transfers=1)
    lost, producers = ("n1", ("n2", "n3")) if shard == INGRESS else ("n3", ("n1", "n2"))
    cluster.run_until(lambda: cluster.delivered() >= 2)
    cluster.perform(("wipe", lost, False))
    replica = ReplicaId(shard, 2)
    cluster.run_until(lambda: replica in cluster.store.layout.placement)
    assert cluster.store.layout.placement[replica] == "s0"
    return Rebuilding(cluster, shard, replica, producers)


Reached = Callable[[Rebuilding], bool]

STEPS: dict[str, Reached] = {
    "placed": lambda r: True,
    "claiming": lambda r: r.phase() is not None,
    "claimed": lambda r: r.phase() is Phase.FETCHING,
    "pinned": lambda r: r.stage() == "pinned",
    "copied": lambda r: r.stage() == "copied",
    "started": lambda r: r.phase() in (Phase.CATCHING_UP, Phase.CAUGHT_UP),
    "caught up": lambda r: r.reported(),
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
        case.cluster.perform(("kill", victim))
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
        if case.cluster.spares(case.cluster.store.layout.hosted(victim)):
            lost += 1
            case.cluster.perform(("wipe", victim, False))
            case.cluster.settle()
    assert lost > 0


def test_a_newcomer_does_not_count_while_a_producer_knows_nothing_of_it() -> None:
    """That producer may drop what the newcomer needs, and be the only one left tomorrow."""
    case = rebuilding(ShardId("s1", 0))
    cluster = case.cluster
    for _ in range(200):
        actions = [action for action in cluster.enabled() if action[:3] != ("connect", "s0", "n1")]
        for action in actions:
            if action[0] != "lost" and ("s0", "n1") in cluster.exchanges:
                cluster.exchanges["s0", "n1"].cut(late_messages=False)
            cluster.perform(action)
        if not actions:
            cluster.advance()
    assert cluster.delivered() == PULSES
    assert case.phase() is Phase.CATCHING_UP and not case.full()
    cluster.settle()
    assert case.full()


def test_nobody_goes_on_alone_with_a_log_that_the_layout_has_given_up() -> None:
    """The leader is to be built again and does not know it yet when it loses sight of the other member.

    The store refuses its proposal, because the layout does not place its replica any more: accepted, it would make the
    only log that counts the one that is about to be dropped.
    """
    cluster = Cluster(chain((1,)), 3, PULSES)
    cluster.run_until(lambda: cluster.delivered() >= 2)
    assert cluster.store.sync.leader == "n0"
    cluster.perform(("renew", ReplicaId(INGRESS, 0)))
    cluster.perform(("control",))
    for pair in (("n0", "n1"), ("n1", "n0")):
        cluster.perform(("cut", *pair, False))
    proposed = cluster.nodes["n0"].writes
    cluster.run_until(lambda: bool(proposed), without=("connect", "document", "write"))
    cluster.perform(("write", "n0"))
    assert cluster.store.sync.members == {"n0", "n1"}
    cluster.settle()


@pytest.mark.parametrize("single", [False, True], ids=["duplicate", "single"])
@pytest.mark.parametrize("consumer", [0, 1])
@pytest.mark.parametrize("producer", [0, 1])
def test_one_producer_and_one_consumer_of_two_pairs_may_be_lost_at_once(
    producer: int, consumer: int, single: bool
) -> None:
    """The survivors find each other, whichever they are, and nobody has to decide anything for that."""
    shards = (INGRESS, ShardId("s0", 0), ShardId("s1", 0))
    placement = {ReplicaId(shard, i): f"n{2 * place + i}" for place, shard in enumerate(shards) for i in (0, 1)}
    settings = replace(SETTINGS, single_delivery=single)
    cluster = Cluster(chain((1, 1)), 6, PULSES, settings, placement=placement)
    cluster.run_until(lambda: cluster.delivered() >= 3)
    for victim in (f"n{2 + producer}", f"n{4 + consumer}"):
        cluster.perform(("wipe", victim, False))
    cluster.run_until(lambda: cluster.delivered() == PULSES, without=("control", "write", "document"))
    cluster.settle()


@pytest.mark.parametrize("single", [False, True], ids=["duplicate", "single"])
@pytest.mark.parametrize("turns", [0, 15, 40, 80])
def test_everybody_is_killed_at_once_and_goes_on_from_disk(turns: int, single: bool) -> None:
    cluster = Cluster(join(2), 3, PULSES, replace(SETTINGS, single_delivery=single))
    cluster.run_turns(turns)
    cluster.perform(("blackout",))
    cluster.settle()
    assert cluster.store.layout.next_index[INGRESS] == 2, "nobody was replaced"


@pytest.mark.parametrize(
    "victims", [("n2", "n3"), ("n4", "n5"), ("n2", "n3", "n4", "n5")], ids=["first", "last", "both"]
)
def test_a_shard_that_is_lost_everywhere_goes_on_from_its_snapshot(victims: tuple[NodeId, ...]) -> None:
    """Nodes come back with empty disks; the producers have kept what follows the snapshots."""
    first, last = ShardId("s0", 0), ShardId("s1", 0)
    shards = (INGRESS, first, last)
    placement = {ReplicaId(shard, i): f"n{2 * place + i}" for place, shard in enumerate(shards) for i in (0, 1)}
    cluster = Cluster(chain((1, 1)), 6, PULSES, replace(SETTINGS, snapshots=True), placement=placement)
    cluster.store.restorable = True
    cluster.run_until(lambda: cluster.delivered() >= 3)
    for name, shard in (("n2", first), ("n4", last)):
        cluster.perform(("snapshot", name, shard))
    cluster.run_until(lambda: cluster.delivered() >= 7)
    stream = cluster.topology.inputs(first)[0]
    saved = cluster.snapshots[first].committed
    assert cluster.nodes["n0"].protocol.outboxes.boxes[stream].base == saved < 7, "kept from the snapshot on"
    for victim in victims:
        cluster.perform(("wipe", victim, True))
    cluster.recover_all()
    cluster.run_until(lambda: cluster.delivered() == PULSES and not cluster.shortage())
    for shard in (first, last):
        host = cluster.store.layout.placement[min(cluster.store.layout.full(shard))]
        cluster.perform(("snapshot", host, shard))
    cluster.settle()


def test_a_node_that_was_given_up_while_it_was_cut_off_drops_its_replicas_and_joins_again() -> None:
    cluster = Cluster(chain((1, 1)), 3, PULSES)
    cluster.run_turns(30)
    before = cluster.store.layout.hosted("n1")
    cluster.perform(("expire", "n1"))
    cluster.perform(("control",))
    cluster.run_turns(10)
    cluster.settle()
    assert not set(before) & set(cluster.store.layout.placement)
    reports = cluster.nodes["n1"].reports
    assert sum("was replaced and is given up here" in report for report in reports) == len(before)


def test_a_frozen_consumer_is_given_up_when_too_much_is_kept_for_it() -> None:
    """Its session does not end, its links stand: only what is kept for it shows that it is behind."""
    placement = {ReplicaId(INGRESS, 0): "n0", ReplicaId(INGRESS, 1): "n1"}
    placement |= {ReplicaId(ShardId("s0", 0), 0): "n0", ReplicaId(ShardId("s0", 0), 1): "n2"}
    cluster = Cluster(chain((1,)), 3, PULSES, replace(SETTINGS, claim_units=3), placement=placement)
    cluster.run_until(lambda: cluster.delivered() >= 1)
    cluster.perform(("freeze", "n2"))
    cluster.run_until(lambda: cluster.delivered() == PULSES)
    slow = ReplicaId(ShardId("s0", 0), 1)
    assert slow not in cluster.store.layout.placement, "it held up the outboxes"
    cluster.settle()


def test_a_drained_node_has_nothing_left_and_redundancy_was_never_short() -> None:
    cluster = Cluster(chain((1, 1)), 3, PULSES, standbys=1)
    cluster.run_turns(20)
    cluster.perform(("drain", "n1"))
    cluster.settle()
    assert cluster.store.layout.hosted("n1") == []
    assert not any("lost" in sentence or "stopped" in sentence for sentence in cluster.store.sentences)


@pytest.mark.parametrize("replica", ["ingress.0#0", "ingress.0#1", "s0.0#0", "s1.0#1"])
def test_a_replica_is_built_again_in_its_place(replica: str) -> None:
    """Also that of the node that leads the ingress, which the others have to find out."""
    cluster = Cluster(chain((1, 1)), 3, PULSES)
    cluster.run_turns(20)
    renewed = ReplicaId.parse(replica)
    node = cluster.store.layout.placement[renewed]
    cluster.perform(("renew", renewed))
    cluster.settle()
    assert cluster.store.layout.replica_on(node, renewed.shard) == ReplicaId(renewed.shard, 2)


def test_a_query_that_fails_is_started_again_and_one_that_keeps_failing_is_replaced() -> None:
    cluster = Cluster(chain((1,)), 3, PULSES)
    cluster.run_turns(10)
    replica = ReplicaId(ShardId("s0", 0), 0)
    node = cluster.store.layout.placement[replica]
    cluster.perform(("fail", node, replica))
    assert not cluster.nodes[node].sparks[replica].can_step
    cluster.run_until(lambda: cluster.nodes[node].sparks[replica].can_step)
    while replica in cluster.store.layout.placement:
        if cluster.nodes[node].sparks[replica].can_step:
            cluster.perform(("fail", node, replica))
        cluster.run_turns(1)
    cluster.settle()
