"""From one generation's results to the next: what is left out, what has to wait, when the predecessor may go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.topologies import chain
from unbroken.errors import InvariantViolation
from unbroken.protocol.instructions import DropOutbox, ReportSwitched
from unbroken.protocol.output.generation_switch import LINGER_UNITS, GenerationSwitch
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.output.sinks import Sinks
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.recovery import StoredUnits
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken_lab.sim.programs import ProgramModels

SINK = ShardId("sink", 0)
OLD, NEW = StreamId(ShardId("s0", 0), SINK), StreamId(ShardId("s0@2", 0), SINK)
GOING, COMING = ReplicaId(OLD.producer, 0), ReplicaId(NEW.producer, 0)
INPUT = StreamId(ShardId("source", 0), NEW.producer)


def topologies() -> tuple[Topology, Topology]:
    """While generation 2 runs beside generation 1, and after it has taken over."""
    programs = ProgramModels.of(chain((1,)))
    programs.declare(1, ["s0"])
    return programs.topology((1, 2)), programs.topology((2,))


BOTH, AFTER = topologies()


def unit(stream: StreamId, number: int, generation: int, final: bool = False) -> UnitHeader:
    return UnitHeader(stream, number, number, 0, Digest(1, number), size=1, final=final, generation=generation)


class Side:
    """A node with a replica of the code that goes, one of the code that comes, or both."""

    def __init__(self, *replicas: ReplicaId, base: int = 0, client: bool = False) -> None:
        topology = replace(BOTH, client_sinks=frozenset({"sink"})) if client else BOTH
        self.layout: Layout = chained_placement(chain((1,)), {"a": "", "b": ""})
        self.outboxes = Outboxes(topology, 1_000, 1_000, 1 << 30)
        self.switch = GenerationSwitch(topology, self.outboxes)
        self.sinks = Sinks("a", self.outboxes, self.switch, 10)
        for replica in replicas:
            stream = StreamId(replica.shard, SINK)
            self.outboxes.open(stream, replica, self.layout, StoredUnits(base))
            self.switch.open(stream)
            if not client:
                self.sinks.open(stream, replica, self.layout)

    def produce(self, replica: ReplicaId, number: int, generation: int, final: bool = False) -> bool:
        """As a node does with what its queries produce; whether the unit is for the sink."""
        header = unit(StreamId(replica.shard, SINK), number, generation, final)
        added, steps = self.outboxes.produced(replica, header, self.layout)
        if added:
            self.sinks.ready(header.stream, number, 0)
        else:
            assert steps == [DropOutbox(replica, header.stream, (number,))], "it is kept for nobody"
            self.switch.passed_over(header)
            if self.sinks.passed_over(header.stream, number):
                self.switch.delivered(header.stream, self.sinks.deliveries[header.stream].delivered)
        return added

    def delivered(self, through: int) -> None:
        self.switch.delivered(OLD, through)
        self.sinks.delivered(OLD, through)


def test_each_unit_is_for_the_sink_once() -> None:
    side = Side(GOING, COMING)
    for number, generation in enumerate([1, 1, 2, 2], start=1):
        assert side.produce(GOING, number, generation) == (generation == 1)
        assert side.produce(COMING, number, generation) == (generation == 2)
    assert list(side.outboxes.boxes[OLD].headers) == [1, 2]
    assert list(side.outboxes.boxes[NEW].headers) == [3, 4]


def test_segments_are_given_everything() -> None:
    outboxes = Side().outboxes
    assert outboxes.wanted(unit(INPUT, 1, 1)) and outboxes.wanted(unit(INPUT, 1, 2))


def test_the_first_unit_of_the_successor_waits_for_the_last_one_of_the_predecessor() -> None:
    side = Side(COMING)
    for number, generation in enumerate([1, 1, 2], start=1):
        side.produce(COMING, number, generation)
    assert side.sinks.tick(100) == [] and side.sinks.wake_times_ms() == [], "nothing to wake up for"
    side.delivered(1)
    assert side.sinks.tick(100) == [] and side.switch.tick(0) == []
    side.delivered(2)
    assert [step.header.number for step in side.sinks.tick(100) if hasattr(step, "header")] == [3]


def test_the_predecessor_counts_what_it_leaves_out_as_delivered() -> None:
    """So a successor that begins again later, with an outbox that has moved on, does not wait for ever."""
    side = Side(GOING)
    for number, generation in enumerate([1, 2, 2], start=1):
        side.produce(GOING, number, generation)
    assert side.sinks.deliveries[OLD].delivered == 0
    side.delivered(1)
    assert side.sinks.deliveries[OLD].delivered == 3


def test_a_node_that_starts_again_knows_what_its_own_predecessor_has_delivered() -> None:
    side = Side(GOING, COMING, base=7)
    assert side.switch.may_deliver(NEW)


def test_the_predecessor_may_go_when_the_sink_has_all_of_it_and_the_successor_something() -> None:
    side = Side(COMING)
    side.produce(COMING, 1, 1)
    side.delivered(1)
    assert side.switch.tick(0) == [], "its time has not come"
    side.produce(COMING, 2, 2)
    assert side.switch.tick(0) == [ReportSwitched(COMING.shard)]
    assert side.switch.tick(0) == [], "told once"


def test_clients_get_time_to_read_what_the_predecessor_has() -> None:
    side = Side(COMING, client=True)
    side.produce(COMING, 1, 1)
    for number in range(2, LINGER_UNITS + 1):
        side.produce(COMING, number, 2)
    assert side.switch.tick(0) == []
    side.produce(COMING, LINGER_UNITS + 1, 2)
    assert side.switch.tick(0) == [ReportSwitched(COMING.shard)]


def test_clients_do_not_need_time_after_the_last_unit() -> None:
    side = Side(COMING, client=True)
    side.produce(COMING, 1, 1)
    side.produce(COMING, 2, 2, final=True)
    assert side.switch.tick(0) == [ReportSwitched(COMING.shard)]


def test_without_a_predecessor_nothing_is_waited_for() -> None:
    side = Side(COMING)
    side.produce(COMING, 1, 1)
    side.produce(COMING, 2, 2)
    assert not side.switch.may_deliver(NEW)
    side.switch.topology_changed(AFTER)
    assert side.switch.may_deliver(NEW) and not side.switch.since and side.switch.tick(0) == []


def test_a_replica_that_is_let_go_leaves_nothing_behind() -> None:
    side = Side(COMING)
    side.produce(COMING, 1, 1)
    side.switch.close(COMING)
    assert not side.switch.since and side.switch.tick(0) == []


def test_a_switch_that_waits_for_no_predecessor_is_found() -> None:
    side = Side(GOING, COMING)
    side.switch.check()
    side.switch.told.add(OLD.producer)
    with pytest.raises(InvariantViolation, match="have taken over"):
        side.switch.check()
    side.switch.told.clear()
    side.switch.since[OLD] = 3
    with pytest.raises(InvariantViolation, match="predecessor"):
        side.switch.check()
