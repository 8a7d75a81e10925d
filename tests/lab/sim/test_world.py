"""A simulated flow as a whole: sessions, the controller, and every kind of fault at least once."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from unbroken.errors import InvariantViolation
from unbroken.protocol.events import Tick
from unbroken.protocol.instructions import DropOutbox, Report
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.placement.controller import Decision
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.protocol.values.notices.placement import NodeReady
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken_lab.sim.faults import Fault, Kind
from unbroken_lab.sim.flows import KINDS, chain, diamond, join, pick_flow
from unbroken_lab.sim.injector import Injector
from unbroken_lab.sim.world import Setup, World

SETUP = Setup(chain((1, 2)), 3, standbys=1)


def to_rest(world: World, end_ms: float, deadline_ms: float = 120_000.0) -> None:
    """Let the sources end, and everything come to rest."""
    world.sources.end_ms = end_ms
    while (reason := world.at_rest()) is not None:
        assert world.kernel.now_ms < deadline_ms, reason
        world.kernel.run(world.kernel.now_ms + 250.0, 1_000_000)
    world.check()
    world.check_result()


@pytest.mark.parametrize("topology", [chain((1,)), chain((2, 1, 2)), join(2), diamond(2)], ids=["1", "3", "join", "d"])
def test_without_faults_everything_is_delivered(topology: Topology) -> None:
    world = World(Setup(topology, 3), seed=1)
    to_rest(world, 4_000.0, 10_000.0)
    assert world.counts["delivered"] > 10
    assert world.zookeeper.layout.version == 1
    assert not world.copying.copies


def test_what_is_lost_on_the_way_to_zookeeper_is_written_again() -> None:
    """The answer would come when ZooKeeper is in reach again: it is none to what has never arrived."""
    world = World(Setup(chain((1,)), 3), seed=1)
    world.kernel.run(1_000.0)
    process, written = world.process("node-1"), list[float]()
    assert process is not None
    process.client.submit(lambda: written.append(world.kernel.now_ms))
    world.network.block("node-1", "zookeeper")
    world.kernel.run(world.kernel.now_ms + world.zookeeper.model.latency_ms * 1.5)
    world.network.unblock("node-1", "zookeeper")
    assert not written
    world.kernel.run(world.kernel.now_ms + 5_000.0)
    assert len(written) == 1


def test_where_leaders_order_everything_is_delivered() -> None:
    topology = replace(diamond(), led=frozenset({"a", "d"}))
    world = World(Setup(topology, 3), seed=1)
    to_rest(world, 4_000.0, 10_000.0)
    assert all(log.orders for log in world.zookeeper.logs.values())


def test_what_a_leader_orders_comes_from_whoever_sends_it() -> None:
    """Single delivery from a segment with a silent standby, which is as good as any until nothing comes."""
    base = chain((1, 1))
    topology = replace(
        base, led=frozenset({"s0", "s1"}), strategies={**base.strategies, "s0": Strategy(Ha.ACTIVE_STANDBY, 1)}
    )
    world = World(Setup(topology, 3, settings=replace(SETUP.settings, single_delivery=True)), seed=1)
    to_rest(world, 4_000.0, 30_000.0)
    assert world.counts["delivered"] > 5


@pytest.mark.parametrize("kind", list(Kind))
def test_each_fault(kind: Kind) -> None:
    topology = replace(SETUP.topology, bucketed=kind is Kind.SOURCE)
    settings = replace(SETUP.settings, snapshots=kind is Kind.LOSS)
    nodes = 6 if kind is Kind.LOSS else SETUP.nodes
    world = World(replace(SETUP, topology=topology, settings=settings, nodes=nodes), seed=11)
    told: list[str] = []
    injector = Injector(world, fragile=False, tell=told.append)
    leader = world.zookeeper.sync.leader
    other = next(name for name in world.machines if name != leader)
    injector.begin([Fault(3_000.0, kind, leader, other, 5_000.0, fuse=3 if kind is Kind.TEAR else 0)])
    world.kernel.run(12_000.0)
    assert [fault.kind for fault in injector.done] == [kind]
    assert told
    assert world.counts["torn"] == (kind is Kind.TEAR)
    injector.heal_all()
    to_rest(world, 13_000.0)


def test_a_process_is_killed_between_two_instructions_of_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(SETUP, seed=2)
    world.kernel.run(3_000.0)
    process = world.process("node-2")
    assert process is not None
    monkeypatch.setattr(
        NodeProtocol, "handle", lambda *_: [Report(NodeReady(word)) for word in ("one", "two", "three")]
    )
    process.fuse, before = 3, len(world.zookeeper.history)
    for _ in range(3):
        process.post(Tick())
    told = [(reported.node, reported.notice) for reported in world.zookeeper.history[before:]]
    words = ("one", "two", "three", "one")
    assert told == [("node-2", NodeReady(word)) for word in words], "two places, and one more"
    assert not process.alive and world.counts["torn"] == 1


@pytest.mark.parametrize("ha", list(Ha))
def test_a_node_is_lost_whatever_the_strategy(ha: Ha) -> None:
    base = chain((1, 1, 1))
    strategy = Strategy(ha, 0 if ha is Ha.NONE else 1, every=2)
    strategies = {**base.strategies, "s1": strategy}
    topology = replace(base, strategies=strategies, replicas={**base.replicas, "s1": strategy.running})
    world = World(Setup(topology, 4, standbys=1), seed=5)
    world.kernel.run(4_000.0)
    host = world.zookeeper.layout.placement[ReplicaId.parse("s1.0#0")]
    world.kill(host)
    world.kernel.run(14_000.0)
    world.boot(host)
    to_rest(world, 16_000.0)


def test_a_copy_of_the_whole_flow_is_lost_with_its_node_and_built_elsewhere() -> None:
    topology = replace(chain((1, 2)), whole=True)
    world = World(Setup(topology, 3), seed=4)
    world.kernel.run(3_000.0)
    assert len(set(world.zookeeper.layout.placement.values())) == 2
    lost = world.zookeeper.layout.placement[ReplicaId.parse("s0.0#0")]
    world.wipe(lost)
    world.kernel.run(20_000.0)
    assert lost not in world.zookeeper.layout.placement.values()
    assert world.shortage() is None
    to_rest(world, 21_000.0)


@pytest.mark.parametrize("shard", ["s0.0", "s1.0"])
def test_a_shard_that_is_lost_everywhere_goes_on_from_its_snapshot(shard: str) -> None:
    settings = replace(SETUP.settings, snapshots=True)
    world = World(Setup(chain((1, 1)), 6, settings=settings), seed=5)
    world.kernel.run(4_000.0)
    assert world.snapshots.saved.keys() == {ShardId("s0", 0), ShardId("s1", 0)}
    lost = list(world.zookeeper.layout.nodes_of(ShardId.parse(shard)))
    for name in lost:
        world.wipe(name)
    world.kernel.run(7_000.0)
    for name in lost:
        world.boot(name)
    world.kernel.run(30_000.0)
    assert world.counts["restored"] > 0
    assert world.shortage() is None
    to_rest(world, 31_000.0)


def test_a_session_ends_after_its_time_out_and_the_replicas_move() -> None:
    world = World(SETUP, seed=2)
    world.kernel.run(3_000.0)
    world.kill("node-2")
    model = world.setup.store
    world.kernel.run(3_000.0 + model.session_ms * 2 / 3 - 1.0)
    assert "node-2" in world.zookeeper.members
    world.kernel.run(3_000.0 + model.session_ms + 1.0)
    assert "node-2" not in world.zookeeper.members
    world.kernel.run(20_000.0)
    assert "node-2" not in world.zookeeper.layout.placement.values()
    assert world.shortage() is None
    assert world.copying.copies > 0


def test_a_node_that_is_back_waits_for_its_name() -> None:
    world = World(SETUP, seed=2)
    world.kernel.run(3_000.0)
    world.kill("node-2")
    world.boot("node-2")
    process = world.machines["node-2"].process
    assert process is not None
    world.kernel.run(4_900.0)
    assert not process.begun, "the session of the process before it still has the name"
    world.kernel.run(8_000.0)
    assert process.begun
    to_rest(world, 9_000.0)


def test_a_short_freeze_costs_no_session() -> None:
    world = World(SETUP, seed=2)
    world.kernel.run(3_000.0)
    version = world.zookeeper.layout.version
    process = world.process("node-2")
    assert process is not None
    process.freeze()
    world.kernel.run(4_500.0)
    process.thaw()
    world.kernel.run(12_000.0)
    assert world.zookeeper.layout.version == version
    to_rest(world, 13_000.0)


def test_results_go_on_without_zookeeper() -> None:
    world = World(SETUP, seed=2)
    world.kernel.run(3_000.0)
    before, version = world.counts["delivered"], world.zookeeper.layout.version
    world.zookeeper.go_down()
    world.touch_all()
    world.kernel.run(13_000.0)
    assert world.counts["delivered"] > before + 20
    assert world.zookeeper.layout.version == version
    world.zookeeper.come_up()
    world.touch_all()
    to_rest(world, 14_000.0)


def test_the_next_in_line_becomes_controller() -> None:
    world = World(SETUP, seed=2)
    world.kernel.run(3_000.0)
    first = world.zookeeper.line[0].node
    world.kill(first)
    world.kernel.run(12_000.0)
    assert world.zookeeper.line[0].node != first
    assert first not in world.zookeeper.layout.placement.values()


def test_a_layout_is_only_replaced_by_who_has_seen_it() -> None:
    world = World(SETUP, seed=2)
    world.kernel.run(3_000.0)
    store = world.zookeeper
    decision = Decision(replace(store.layout, version=store.layout.version + 1), (NodeReady("other"),))
    assert not store.publish(decision, store.layout.version - 1, store.sync.version)
    assert not store.publish(decision, store.layout.version, store.sync.version + 1)
    assert store.publish(decision, store.layout.version, store.sync.version)


def test_a_corrupt_replica_is_found_and_built_again() -> None:
    world = World(Setup(chain((1,), replicas=3), 4), seed=2)
    world.kernel.run(3_000.0)
    replica = ReplicaId.parse("s0.0#2")
    node = world.process(world.zookeeper.layout.placement[replica])
    assert node is not None
    query = node.engine.queries[replica]
    query.corrupt_from = query.disk.committed + 3
    world.kernel.run(20_000.0)
    assert replica not in world.zookeeper.layout.placement
    assert world.shortage() is None


def test_a_wrong_result_is_noticed() -> None:
    """The oracle is worth nothing if it cannot fail."""
    world = World(Setup(chain((1,)), 2), seed=1)
    to_rest(world, 3_000.0, 10_000.0)
    stream = next(iter(world.sink.written))
    world.sink.written[stream][3] ^= 1
    with pytest.raises(InvariantViolation) as other:
        world.check_result()
    assert (other.value.about, other.value.unit) == ((stream,), 4)
    world.sink.written[stream].pop()
    with pytest.raises(InvariantViolation) as fewer:
        world.check_result()
    assert (fewer.value.about, fewer.value.unit) == ((stream,), 0)


def test_a_unit_that_is_dropped_too_early_is_noticed() -> None:
    world = World(Setup(chain((1, 1)), 2), seed=1)
    world.kernel.run(3_000.0)
    owner, stream = ReplicaId.parse("s0.0#0"), StreamId.parse("s0.0>s1.0")
    process = world.process(world.zookeeper.layout.placement[owner])
    assert process is not None
    done = min(world.where[ReplicaId.parse(name)].committed for name in ("s1.0#0", "s1.0#1"))
    process.effects.dropped.clear()
    world.check_dropped(process, DropOutbox(owner, stream, (done,)))
    with pytest.raises(InvariantViolation) as caught:
        world.check_dropped(process, DropOutbox(owner, stream, (done + 10,)))
    assert caught.value.about[0] == stream and caught.value.unit == done + 10


def test_flows_are_random_and_fit_their_nodes() -> None:
    flows = [pick_flow(Random(seed)) for seed in range(300)]
    assert {flow.kind for flow in flows} == set(KINDS)
    assert max(flow.setup.nodes for flow in flows) > 20
    for flow in flows:
        topology = flow.setup.topology
        assert flow.setup.nodes <= 50
        assert max(topology.strategy(part).nodes for part in topology.replicas) <= flow.setup.nodes
        assert topology.replicas[INGRESS.part] >= 2
