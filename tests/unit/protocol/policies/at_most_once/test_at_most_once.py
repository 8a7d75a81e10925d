"""At most once: who delivers a unit, who gives it up, and what is said about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.topologies import chain
from unbroken.coordination.documents import LAYOUT
from unbroken.errors import InvariantViolation
from unbroken.protocol.events import InSyncChanged, LayoutChanged, Produced, Received, SinkDelivered, SinkFailed, Tick
from unbroken.protocol.ingress.log import InSync, ProposeInSync
from unbroken.protocol.instructions import Deliver, DropOutbox, Instruction, PollSources, Report, Send
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import Delivered
from unbroken.protocol.placement.controller import Situation, next_layout
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.policies.at_most_once.delivery import TURN_BACKLOG, AtMostOnce
from unbroken.protocol.policies.at_most_once.turns import next_turn
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Layout, Topology
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.placement import TurnPassed
from unbroken.protocol.values.notices.sinks import UnitGivenUp, UnitsUncertain
from unbroken.protocol.values.recovery import StoredReplica, StoredUnits
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken.protocol.values.turns import Turn, Verdict
from unbroken.protocol.values.units import Digest, UnitHeader

SHARD = ShardId("s0", 0)
INPUT, OUTPUT = StreamId(ShardId("source", 0), SHARD), StreamId(SHARD, ShardId("sink", 0))
ELDER, YOUNGER = ReplicaId(SHARD, 0), ReplicaId(SHARD, 1)
TOPOLOGY = replace(chain((1,)), at_most_once=True)
DISKS = {"a": "disk of a", "b": "disk of b", "c": "disk of c"}
FIRST = chained_placement(TOPOLOGY, DISKS)
SETTINGS = ProtocolSettings(pulse_min_ms=100, pulse_start_ms=100, hedge_ms=50, ring_period_ms=0)


def node(replica: ReplicaId, state: StoredReplica | None = None, topology: Topology = TOPOLOGY) -> NodeProtocol:
    """The node of a replica, with the state that it finds on its disk."""
    me = FIRST.placement[replica]
    recovered = {hosted: StoredReplica() for hosted in FIRST.hosted(me)} | {replica: state or StoredReplica()}
    sync = InSync(1, "a", frozenset(FIRST.nodes_of(INGRESS)), 0)
    out = NodeProtocol(me, topology, FIRST, sync, recovered, SETTINGS, DISKS[me])
    out.start(0)
    return out


def unit(number: int, layout: int, final: bool = False) -> UnitHeader:
    return UnitHeader(OUTPUT, number, number, 0, Digest(1, number), final=final, layout=layout)


def produced(of: NodeProtocol, replica: ReplicaId, *headers: UnitHeader) -> list[Instruction]:
    return [step for header in headers for step in of.handle(Produced(replica, header.number, (header,)), 0)]


def handed_over(steps: list[Instruction]) -> list[int]:
    assert all(step.once for step in steps if isinstance(step, Deliver))
    return [step.header.number for step in steps if isinstance(step, Deliver)]


def told(steps: list[Instruction]) -> list[Notice]:
    return [step.notice for step in steps if isinstance(step, Report)]


def with_turn(replica: ReplicaId, since: int, version: int | None = None) -> Layout:
    return replace(FIRST, version=version or since, turns={SHARD: Turn(replica, since)})


# --- whose turn it is -----------------------------------------------------------------------------------------


def test_a_unit_belongs_to_the_turn_of_the_layout_it_was_cut_by() -> None:
    turn = Turn(YOUNGER, since=5)
    assert turn.verdict(YOUNGER, unit(1, layout=5), version=7) is Verdict.DELIVER
    assert turn.verdict(YOUNGER, unit(1, layout=4), version=7) is Verdict.GIVE_UP
    assert turn.verdict(ELDER, unit(1, layout=4), version=7) is Verdict.WAIT
    assert turn.verdict(ELDER, unit(1, layout=6), version=7) is Verdict.WAIT


def test_a_unit_cut_by_a_layout_that_is_not_known_here_waits_for_it() -> None:
    assert Turn(ELDER, since=1).verdict(ELDER, unit(1, layout=8), version=7) is Verdict.WAIT


def test_a_turn_lasts_as_long_as_there_is_no_doubt() -> None:
    held, both = Turn(YOUNGER, 3), {ELDER, YOUNGER}
    assert next_turn(held, both, both, set(), 9) == held
    assert next_turn(held, both, both, {YOUNGER}, 9) == Turn(ELDER, 9)
    assert next_turn(held, both, both, both, 9) == held  # whoever is left may be well after all
    assert next_turn(held, {ELDER, ReplicaId(SHARD, 2)}, {ReplicaId(SHARD, 2)}, set(), 9) == Turn(
        ReplicaId(SHARD, 2), 9
    )
    assert next_turn(None, {ELDER}, set(), set(), 9) == Turn(ELDER, 9)
    assert next_turn(None, set(), set(), set(), 9) is None


def test_the_first_layout_gives_the_turn_to_the_oldest_replica() -> None:
    assert FIRST.turns == {SHARD: Turn(ELDER, 1)}
    assert LAYOUT.decode(LAYOUT.encode(FIRST)) == FIRST
    assert not chained_placement(chain((1,)), DISKS).turns
    live = replace(TOPOLOGY, client_sinks=frozenset({"sink"}))
    assert not chained_placement(live, DISKS).turns  # a client leaves out what it has had


def test_the_controller_passes_the_turn_on_when_its_holder_is_lost_or_suspected() -> None:
    host = FIRST.placement[ELDER]
    present = {name: disk for name, disk in DISKS.items() if name != host}
    for situation in (Situation(0, present), Situation(0, DISKS, suspected=frozenset({host}))):
        decision = next_layout(TOPOLOGY, situation, FIRST, 2)
        assert decision is not None
        assert decision.layout.turns == {SHARD: Turn(YOUNGER, FIRST.version + 1)}
        assert TurnPassed(YOUNGER, "c") in decision.notices
    assert next_layout(TOPOLOGY, Situation(0, DISKS), FIRST, 2) is None


def test_a_flow_that_was_started_with_another_guarantee_gets_its_turns() -> None:
    before = replace(FIRST, turns={})
    decision = next_layout(TOPOLOGY, Situation(0, DISKS), before, 2)
    assert decision is not None and decision.layout.turns == {SHARD: Turn(ELDER, 2)}
    back = next_layout(chain((1,)), Situation(0, DISKS), FIRST, 2)
    assert back is not None and not back.layout.turns


# --- delivering -----------------------------------------------------------------------------------------------


def test_only_the_one_who_has_the_turn_delivers_and_no_time_changes_that() -> None:
    elder, younger = node(ELDER), node(YOUNGER)
    assert handed_over(produced(elder, ELDER, unit(1, 1))) == [1]
    assert handed_over(produced(younger, YOUNGER, unit(1, 1))) == []
    assert handed_over(younger.handle(Tick(), 10_000)) == [] and younger.next_wake_ms() is None
    steps = elder.handle(SinkDelivered(OUTPUT, 1), 0)
    assert Send("c", Delivered(OUTPUT, 1)) in steps
    assert DropOutbox(YOUNGER, OUTPUT, (1,)) in younger.handle(Received("b", Delivered(OUTPUT, 1)), 0)


def test_a_standby_that_is_kept_quiet_delivers_if_it_has_the_turn() -> None:
    topology = replace(TOPOLOGY, strategies={"s0": Strategy(Ha.ACTIVE_STANDBY)})
    younger = node(YOUNGER, topology=topology)
    younger.links.add("b")
    younger.handle(LayoutChanged(with_turn(YOUNGER, 2)), 0)
    assert handed_over(produced(younger, YOUNGER, unit(1, 2))) == [1]
    assert younger.outboxes.boxes[OUTPUT].quiet


def test_who_gets_the_turn_gives_up_what_was_cut_before_and_says_so_once() -> None:
    younger = node(YOUNGER)
    produced(younger, YOUNGER, unit(1, 1), unit(2, 1), unit(3, 1))
    younger.handle(Received("b", Delivered(OUTPUT, 1)), 0)
    steps = younger.handle(LayoutChanged(with_turn(YOUNGER, 5)), 0)
    assert not handed_over(steps) and not told(steps)
    assert DropOutbox(YOUNGER, OUTPUT, (2, 3)) in steps and Send("b", Delivered(OUTPUT, 3)) in steps
    assert not handed_over(produced(younger, YOUNGER, unit(4, 4)))
    steps = produced(younger, YOUNGER, unit(5, 5))
    assert handed_over(steps) == [5]
    assert told(steps) == [UnitsUncertain(OUTPUT, 2, 4)]
    assert younger.counters["units_given_up"] == 3


def test_what_is_given_up_at_the_end_is_told_of_as_well() -> None:
    younger = node(YOUNGER)
    produced(younger, YOUNGER, unit(1, 1, final=True))
    steps = younger.handle(LayoutChanged(with_turn(YOUNGER, 2)), 0)
    assert told(steps) == [UnitsUncertain(OUTPUT, 1, 1)]


def test_who_loses_the_turn_finishes_what_it_has_handed_over_and_no_more() -> None:
    elder = node(ELDER)
    assert handed_over(produced(elder, ELDER, unit(1, 1), unit(2, 1))) == [1]
    elder.handle(LayoutChanged(with_turn(YOUNGER, 2)), 0)
    assert handed_over(elder.handle(SinkDelivered(OUTPUT, 1), 0)) == []
    assert handed_over(produced(elder, ELDER, unit(3, 2))) == []


def test_a_layout_that_comes_late_holds_the_delivery_up() -> None:
    elder = node(ELDER)
    assert handed_over(produced(elder, ELDER, unit(1, 3))) == []
    assert handed_over(elder.handle(LayoutChanged(with_turn(ELDER, 1, version=3)), 0)) == [1]


def test_after_a_restart_nothing_that_may_have_been_delivered_is_delivered() -> None:
    kept = StoredUnits(3, (unit(4, 1), unit(5, 1)))
    waiting = UnitHeader(INPUT, 6, 6, 0, Digest(1, 1), layout=1)
    elder = node(ELDER, StoredReplica(5, {OUTPUT: kept}, {INPUT: (waiting,)}))
    assert elder.sinks.deliveries[OUTPUT].delivered == 3
    elder.handle(Tick(), 0)
    assert elder.sinks.deliveries[OUTPUT].delivered == 5
    # Unit 6 may have been produced, delivered and dropped before its micro-batch was committed.
    assert handed_over(produced(elder, ELDER, unit(6, 1))) == []
    assert handed_over(produced(elder, ELDER, unit(7, 1))) == [7]


def test_little_is_cut_while_nobody_delivers() -> None:
    younger = node(YOUNGER)
    produced(younger, YOUNGER, *(unit(number, 1) for number in range(1, 6)))
    assert younger.advance.reached[YOUNGER] == TURN_BACKLOG
    younger.handle(LayoutChanged(with_turn(YOUNGER, 2)), 0)
    assert younger.advance.reached[YOUNGER] == 5


def test_the_first_unit_of_all_is_delivered() -> None:
    assert handed_over(produced(node(ELDER), ELDER, unit(1, 1))) == [1]


def test_a_sink_that_fails_is_not_asked_again() -> None:
    elder = node(ELDER)
    assert handed_over(produced(elder, ELDER, unit(1, 1), unit(2, 1))) == [1]
    steps = elder.handle(SinkFailed(OUTPUT, 1, "ValueError: away"), 0)
    assert handed_over(steps) == [2] and DropOutbox(ELDER, OUTPUT, (1,)) in steps
    assert told(steps) == [UnitGivenUp(OUTPUT, 1, "ValueError: away")]


def test_pulses_say_by_which_layout_they_are_delivered() -> None:
    layout, recovered = replace(FIRST, version=4), {ReplicaId(INGRESS, 0): StoredReplica()}
    leader = NodeProtocol("a", TOPOLOGY, layout, InSync(1, "a", frozenset("a"), 0), recovered, SETTINGS, DISKS["a"])
    (proposed,) = [step.proposal for step in leader.start(0) if isinstance(step, ProposeInSync)]
    steps = [*leader.handle(InSyncChanged(proposed), 0), *leader.handle(Tick(), 1_000)]
    assert [step for step in steps if isinstance(step, PollSources)] == [PollSources(1, 1, 4)]


def test_a_unit_that_is_given_up_and_still_to_come_is_found() -> None:
    younger = node(YOUNGER)
    younger.check()
    younger.policies.of(AtMostOnce).given_up[OUTPUT] = (1, 2)
    with pytest.raises(InvariantViolation, match="given up"):
        younger.check()
