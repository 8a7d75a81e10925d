"""Simulated sources that are cut by event time: which units they close, and what a flow does without one of them."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from unbroken.node.policies.bucket.rule import BucketStep
from unbroken.protocol.replica.cuts import PulseCuts
from unbroken.protocol.replica.inbox import Inbox
from unbroken.protocol.values.consistency import DelayBound, InputHandling, Reconcile
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.notices.replicas import InputMissing
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken_lab.sim.flows import chain, join
from unbroken_lab.sim.machine import NodeProcess
from unbroken_lab.sim.policies.bucket import GRID_MS, RULE, Lane, groups_of
from unbroken_lab.sim.queries import CostModel
from unbroken_lab.sim.world import SETTINGS, Setup, World


def to_rest(world: World, end_ms: float, deadline_ms: float = 120_000.0) -> None:
    world.sources.end_ms = end_ms
    while (reason := world.at_rest()) is not None:
        assert world.kernel.now_ms < deadline_ms, reason
        world.kernel.run(world.kernel.now_ms + 250.0, 1_000_000)
    world.check()
    world.check_result()


def bucketed(topology: Topology) -> Topology:
    return replace(topology, bucketed=True)


def available(reconcile: Reconcile, max_delay_ms: float = 500.0) -> Topology:
    how = DelayBound(max_delay_ms, during_failure=InputHandling.PROCESS, reconcile=reconcile, horizon_ms=3_000.0)
    return replace(bucketed(join()), availability={"join": how}, tentative_sinks=frozenset({"sink"}))


def step(lane: Lane, pulse: int, start: int | None, end: int) -> list[int]:
    lane.steps.append(BucketStep(pulse, end, start, end))
    return [unit.number for unit in lane.take()]


def test_a_source_has_the_same_rows_however_it_is_read() -> None:
    whole = BucketStep(1, 11_000, 10_000, 11_000)
    pieces = [BucketStep(n, 10_000 + n * 8, 10_000 + (n - 1) * 8, 10_000 + n * 8) for n in range(1, 126)]
    groups = list(groups_of("source", whole))
    assert groups == [group for step in pieces for group in groups_of("source", step)]
    assert len(groups) == 1_000 // GRID_MS


def test_a_source_that_was_away_closes_its_units_at_once() -> None:
    lane = Lane("source")
    step(lane, 1, None, 10_000)
    before = step(lane, 2, 10_000, 10_600)
    lane.steps.append(BucketStep(3, 13_000, 10_600, 10_600, reachable=False))
    assert lane.take() == []
    lane.steps.append(BucketStep(4, 14_000, 10_600, 14_000))
    units = lane.take()
    assert units[0].number == before[-1] + 1
    assert len(units) >= 3_000 // RULE.size_ms
    assert {unit.fold for unit in units} == {units[-1].number}
    assert all(unit.marks for unit in units[:-1])


@pytest.mark.parametrize("topology", [chain((1, 2)), join(2)], ids=["chain", "join"])
def test_without_faults_everything_is_delivered(topology: Topology) -> None:
    world = World(Setup(bucketed(topology), 3), seed=1)
    to_rest(world, 4_000.0, 10_000.0)
    assert world.counts["delivered"] > 10


def test_a_source_that_is_away_is_waited_for_and_its_units_are_taken_together() -> None:
    world = World(Setup(bucketed(join()), 3), seed=1)
    world.kernel.run(2_000.0)
    world.sources.away.add("left")
    world.kernel.run(3_000.0)
    stream = StreamId.parse("join.0>sink.0")
    before = world.sink.through(stream)
    world.kernel.run(4_000.0)
    assert world.sink.through(stream) == before
    world.sources.away.clear()
    to_rest(world, 6_000.0)
    assert world.counts["folded"] > 0
    assert world.sink.through(stream) > before + 10


@pytest.mark.parametrize("seed", range(40))
def test_what_is_complete_is_taken_at_once_and_by_all_replicas_together(seed: int) -> None:
    """Sources are away, or ahead, as it comes. A replica that has a unit of all inputs takes it, with units that it has
    as well; and one that gets everything later makes the same micro-batches."""
    rng = random.Random(seed)
    lanes = {name: Lane(name) for name in ("a", "b", "c")}
    streams = {name: StreamId.parse(f"{name}.0>join.0") for name in lanes}
    inboxes = {stream: Inbox(stream, limit=10_000) for stream in streams.values()}
    cuts, ends, headers = PulseCuts(inboxes), [0], list[UnitHeader]()
    ahead, away, at = dict.fromkeys(lanes, 0), set[str](), dict[str, int]()
    for pulse in range(1, 120):
        cut_ms = 10_000 + 100 * pulse
        ahead |= {name: rng.choice((0, 0, 1_000, 5_000)) for name in lanes if rng.random() < 0.05}
        away ^= {name for name in lanes if rng.random() < 0.1}
        closed = {name: lane.closed for name, lane in lanes.items()}
        for name, lane in lanes.items():
            start, end = at.get(name), cut_ms + ahead[name]
            end = start if start is not None and (name in away or end < start) else end
            others = tuple(unit for other, unit in closed.items() if other != name)
            lane.steps.append(BucketStep(pulse, cut_ms, start, end, name not in away, others=others))
            at[name] = end
            for unit in lane.take():
                facts = (unit.number, unit.number, cut_ms, Digest(0, unit.number))
                headers.append(UnitHeader(streams[name], *facts, fold=unit.fold))
                inboxes[streams[name]].arrive(headers[-1])
        while (number := cuts.next(ends[-1])) is not None:
            take(inboxes, ends, number)
        assert cuts.cut(ends[-1] + 1) is None, f"micro-batch {ends[-1] + 1} waits for what nobody has"
    assert any(end > begin + 1 for begin, end in itertools.pairwise(ends))
    late = {stream: Inbox(stream, limit=10_000) for stream in inboxes}
    for header in sorted(headers, key=lambda header: (header.stream, header.number)):
        late[header.stream].arrive(header)
    again, cuts = [0], PulseCuts(late)
    while (number := cuts.next(again[-1])) is not None:
        take(late, again, number)
    assert again == ends


def take(inboxes: dict[StreamId, Inbox], ends: list[int], number: int) -> None:
    for inbox in inboxes.values():
        inbox.consume(number)
    ends.append(number)


def test_units_are_not_taken_together_with_those_that_another_input_does_not_have_yet() -> None:
    """Rows from the future close ten buckets at once; the other input has them one after the other."""
    world = World(Setup(bucketed(join()), 3), seed=1)
    world.kernel.run(2_000.0)
    world.sources.ahead["right"] = 10 * RULE.size_ms
    stream = StreamId.parse("join.0>sink.0")
    for end_ms in (3_000.0, 3_600.0, 4_200.0):
        before = world.sink.through(stream)
        world.kernel.run(end_ms)
        assert world.sink.through(stream) >= before + 2, f"results wait at {end_ms}"
    world.sources.ahead.clear()
    to_rest(world, 8_000.0)


@pytest.mark.parametrize("seed", [1, 4])
def test_without_faults_no_input_is_missing(seed: int) -> None:
    """However short the patience, as long as it is longer than sources are apart."""
    settings = replace(SETTINGS, warm_units=2, warm_ms=200.0)
    world = World(Setup(available(Reconcile.FORK, 300.0), 3, settings=settings), seed)
    to_rest(world, 5_000.0)
    missing = [one for one in world.zookeeper.history if isinstance(one.notice, InputMissing)]
    assert not missing and not world.counts["tentative"]


def test_a_source_that_ends_early_holds_nobody_up() -> None:
    world = World(Setup(bucketed(join()), 3), seed=1)
    world.sources.ends["left"] = 1_500.0
    to_rest(world, 4_000.0, 10_000.0)
    assert world.counts["delivered"] > 10


def test_a_member_of_the_ingress_goes_on_from_its_base() -> None:
    world = World(Setup(bucketed(join()), 3, standbys=1), seed=3)
    world.kernel.run(4_000.0)
    leader = world.zookeeper.sync.leader
    process = world.process(leader)
    assert process is not None and process.hosting.ingress is not None
    assert process.hosting.ingress.log.base.lanes, "there is a base to go on from"
    world.kill(leader)
    world.boot(leader)
    world.kernel.run(8_000.0)
    to_rest(world, 9_000.0)


@pytest.mark.parametrize("reconcile", list(Reconcile))
def test_a_flow_goes_on_without_a_source_and_puts_its_results_right(reconcile: Reconcile) -> None:
    settings = replace(SETTINGS, warm_units=2, warm_ms=200.0)
    world = World(Setup(available(reconcile), 3, settings=settings), seed=2)
    world.kernel.run(3_000.0)
    world.sources.away.add("right")
    world.kernel.run(6_000.0)
    assert world.counts["tentative"] > 0
    assert any(world.sink.tentative.values())
    world.sources.away.clear()
    to_rest(world, 8_000.0)
    assert (world.counts["undone"] > 0) == (reconcile is Reconcile.UNDO)


def test_what_was_taken_together_is_kept_until_its_results_are_safe() -> None:
    """The results of units that are taken together are all in the last of them. A sink has most of them, without any
    rows, when a replica that keeps nothing is lost with the last."""
    base = bucketed(chain((1, 1)))
    upstream = Strategy(Ha.UPSTREAM, 1)
    topology = replace(
        base, strategies={**base.strategies, "s1": upstream}, replicas={**base.replicas, "s1": upstream.running}
    )
    world = World(Setup(topology, 4, standbys=1, costs=CostModel(sink_ms=40.0)), seed=1)
    world.kernel.run(2_500.0)
    world.sources.away.add("source")
    world.kernel.run(4_000.0)
    world.sources.away.clear()
    stream, shard = StreamId.parse("s1.0>sink.0"), ShardId("s1", 0)

    def host() -> NodeProcess:
        layout = world.zookeeper.layout
        process = world.process(layout.placement[min(layout.full(shard))])
        assert process is not None and process.protocol is not None
        return process

    def under_way() -> bool:
        """Whether some of the units that were taken together are in the sink."""
        protocol = host().protocol
        assert protocol is not None
        box, through = protocol.outboxes.boxes.get(stream), world.sink.through(stream)
        header = None if box is None else box.headers.get(through + 1)
        return box is not None and header is not None and through + 2 < header.fold and box.base > header.fold - 8

    while not under_way():
        assert world.kernel.now_ms < 9_000.0
        world.kernel.run(world.kernel.now_ms + 5.0)
    lost = host().name
    world.wipe(lost)
    world.kernel.run(world.kernel.now_ms + 15_000.0)
    world.boot(lost)
    to_rest(world, world.kernel.now_ms + 1_000.0)
