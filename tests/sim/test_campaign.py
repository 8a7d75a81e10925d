"""Random flows under random faults, and how a failure is told."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count, islice
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from unbroken.cli import cli
from unbroken.protocol.events import Event
from unbroken.protocol.ingress.log import IngressLog
from unbroken.protocol.instructions import Instruction, SendUnit
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.output.outbox import Outbox
from unbroken.protocol.policies.upstream_backup import backup as upstream
from unbroken.protocol.policies.upstream_backup.levels import needed_levels, relying_row
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.rebuilt_state import FROM_THE_FIRST, Rebuilt
from unbroken.protocol.values.strategy import Ha
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim import campaign, faults
from unbroken_lab.sim.campaign import Options, Outcome, flow_of, run_campaign, run_seed, sentence, summary
from unbroken_lab.sim.faults import ALONE, JOB_FAULTS, Fault, Kind, make_tears
from unbroken_lab.sim.flows import SMALL, Flow, chain
from unbroken_lab.sim.injector import Injector
from unbroken_lab.sim.steps.schedules import schedules
from unbroken_lab.sim.story import Story, Subject
from unbroken_lab.sim.world import Setup, World

SHORT = Options(length_s=1.2, mean_s=0.3, most_nodes=4, check_every=50)
"""Several faults in little more than a second, and then all has to be put right."""

LONG = Options(length_s=5.0, mean_s=1.0, most_nodes=6, check_every=7)
LARGE = Options(length_s=2.0, mean_s=1.0, check_every=200)


LOSSES = Options(length_s=5.0, mean_s=1.0, most_nodes=6, check_every=50)

ROWS = Options(length_s=6.0, mean_s=30.0, most_nodes=6, check_every=50)

SEEDS = schedules(120)
CLOSELY = 7
"""Of every so many seeds one checks all invariants of a node after every event."""

DISKS = frozenset({Kind.LOST_TAIL, Kind.DAMAGE})
"""What only disks do."""

BAD_DISKS = Options(length_s=4.0, mean_s=0.5, most_nodes=5, check_every=50)

SELDOM = ALONE - {Kind.WIPE}
"""What hardly ever finds a flow whole in little more than a second; it has a test of its own."""


def check(seeds: Iterable[int], options: Options) -> list[Outcome]:
    """Run seeds, of which none may fail."""
    outcomes: list[Outcome] = []
    for seed in seeds:
        outcome = run_seed(seed, options, story=True)
        assert outcome.ok, "\n".join([f"{options.command(seed)}: {outcome.failure}", *outcome.story])
        outcomes.append(outcome)
    return outcomes


def fault_kinds(found: Mapping[str, Any]) -> set[str]:
    return {name.removeprefix("fault ") for name, number in found.items() if name.startswith("fault ") and number}


@pytest.mark.timeout(900)
def test_many_short_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """None fails, and what they are run for has happened in some of them: every kind of fault, and all that follows."""
    outcomes: list[Outcome] = []
    for seed in SEEDS:
        outcomes += check([seed], SHORT if seed % CLOSELY else replace(SHORT, check_every=1))
    found = summary(outcomes)
    with capsys.disabled():
        print(f"\n{sentence(found)}")
    assert fault_kinds(found) >= set(Kind) - SELDOM
    happened = sum(number for name, number in found.items() if name.startswith("fault "))
    assert happened > 3 * len(SEEDS) and found["skipped"] < happened / 2
    for consequence in ("copies", "forks", "folded", "repeated", "snapshots", "torn"):
        assert found[consequence] > 2, consequence


def test_what_is_lost_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows with snapshots that hardly anything else happens to, so that they are whole when it does."""
    monkeypatch.setattr(faults, "WEIGHTS", {Kind.LOSS: 2, Kind.STOP: 2, Kind.RENEW: 2, Kind.WIPE: 1})
    flows = ((seed, flow_of(seed, LOSSES)) for seed in count())
    seeds = (seed for seed, flow in flows if flow.kind == "snapshots" and flow.setup.nodes >= 5)
    found = summary(check(islice(seeds, 16), LOSSES))
    assert fault_kinds(found) >= ALONE - DISKS - {*JOB_FAULTS}, sentence(found)
    assert found["restored"] > 0


def bad_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "WEIGHTS", {Kind.LOST_TAIL: 3, Kind.DAMAGE: 3, Kind.PUSH: 3, Kind.KILL: 1})


def test_disks_that_do_not_give_back_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of the ingress come back shorter, replicas damaged: nothing that others have is lost."""
    bad_disks(monkeypatch)
    found = summary(check(range(24), BAD_DISKS))
    assert fault_kinds(found) >= DISKS, sentence(found)
    assert found["lost entries"] > 10


def test_a_leader_that_trusts_a_shorter_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator sees the difference if a member that restarts does not ask what the others hold."""
    bad_disks(monkeypatch)
    recovered = IngressLog.recovered

    def trusting(*arguments: Any) -> IngressLog:
        log = recovered(*arguments)
        log.unsure = False
        return log

    monkeypatch.setattr(IngressLog, "recovered", trusting)
    failures = (run_seed(seed, BAD_DISKS).failure for seed in range(40))
    failure = next((each for each in failures if each is not None), None)
    assert failure is not None and "commits another entry" in failure


def test_as_many_nodes_are_lost_at_once_as_strategies_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments in a row that rely on their producers; and a flow in which k_safety is taken for 1 is found out."""
    monkeypatch.setattr(faults, "WEIGHTS", {Kind.WIPE: 1})
    monkeypatch.setattr(faults, "SEVERAL", 1.0)
    seeds = list(islice((seed for seed in count() if in_a_row(flow_of(seed, ROWS).setup.topology)), 12))
    found = summary(check(seeds, ROWS))
    assert found["fault nodes"] > 3, sentence(found)

    def one_level(topology: Topology, layout: Layout, part: str) -> int:
        return min(1, needed_levels(topology, layout, part))

    monkeypatch.setattr(upstream, "needed_levels", one_level)
    assert not all(run_seed(seed, ROWS).ok for seed in seeds)


def in_a_row(topology: Topology) -> bool:
    """Whether there are segments that may be lost together with one that they rely on."""
    safe = [
        part for part, strategy in topology.strategies.items() if strategy.ha is Ha.UPSTREAM and strategy.backups > 1
    ]
    return any(relying_row(topology, part)[1] > 1 for part in safe)


def test_faults_that_are_left_out_are_counted() -> None:
    world = World(Setup(chain((1,)), 2), seed=1)
    injector = Injector(world, fragile=False, tell=lambda _: None)
    injector.begin([Fault(500.0, kind, "node-1", "node-2", 400.0) for kind in (Kind.KILL, Kind.KILL, Kind.FREEZE)])
    world.kernel.run(1_000.0)
    assert [fault.kind for fault in injector.done] == [Kind.KILL]
    assert injector.skipped == 2, "there is nothing to kill or to freeze any more"


def test_deaths_within_an_event_are_drawn_apart_and_wherever_they_may_be() -> None:
    drawn = [make_tears(Random(seed), ["a", "b"], 10_000.0) for seed in range(400)]
    assert 60 < sum(map(len, drawn)) < 140
    asked = make_tears(Random(1), ["a", "b"], 10_000.0, 300)
    assert len(asked) == 300 and {fault.kind for fault in asked} == {Kind.TEAR}
    assert min(fault.fuse for fault in asked) == 1 and max(fault.fuse for fault in asked) > 64
    assert make_tears(Random(1), ["a", "b"], 10_000.0, 0) == []
    assert "--torn 4" in Options(torn=4).command(1) and "--torn" not in Options().command(1)


def test_large_flows() -> None:
    large = (seed for seed in count() if flow_of(seed, LARGE).setup.nodes > SMALL)
    for seed in islice(large, 3):
        check(range(seed, seed + 1), LARGE)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 6))
def test_longer_runs(first: int) -> None:
    check(range(first, first + 6), LONG)


# --- how it is told ---------------------------------------------------------------------------------------


@pytest.fixture
def simple(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seed is a chain of two segments."""
    flow = Flow("active", Setup(chain((1, 1)), 3), fragile=False)
    monkeypatch.setattr(campaign, "pick_flow", lambda *_: flow)
    monkeypatch.setattr(campaign, "REST_MS", 10_000.0)


@pytest.mark.usefixtures("simple")
def test_a_unit_that_a_broken_protocol_never_sends_is_missed_and_its_story_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = NodeProtocol.handle

    def lossy(self: NodeProtocol, event: Event, now_ms: float) -> list[Instruction]:
        steps = handle(self, event, now_ms)
        return [step for step in steps if not (isinstance(step, SendUnit) and lost(step.header))]

    def lost(header: UnitHeader) -> bool:
        return header.number == 7 and header.stream == StreamId.parse("s0.0>s1.0")

    monkeypatch.setattr(NodeProtocol, "handle", lossy)
    outcome = run_seed(1, SHORT, story=True)
    assert outcome.subject is not None and outcome.subject.unit == 7
    assert "s0.0>s1.0" in outcome.subject.names and outcome.subject.names & {"s1.0#0", "s1.0#1"}
    text = "\n".join(outcome.story)
    assert "has unit 7 of s0.0#0 made: " in text
    assert "puts unit 7 of source.0>s0.0 into the inbox of s0.0#0" in text
    assert "of s0.0>s1.0 into the inbox" not in text
    assert "* fault: " in text


@pytest.mark.usefixtures("simple")
def test_a_unit_that_a_broken_protocol_drops_too_early_is_missed_and_its_story_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ack = Outbox.ack

    def hasty(self: Outbox, subscriber: str, through: int, level: int = 0, valid: Rebuilt = FROM_THE_FIRST) -> None:
        early = 2 if self.stream.consumer.part == "s1" else 0
        ack(self, subscriber, min(self.last, through + early), level, valid)

    monkeypatch.setattr(Outbox, "ack", hasty)
    outcomes = (run_seed(seed, replace(SHORT, check_every=1), story=True) for seed in range(20))
    outcome = next(outcome for outcome in outcomes if outcome.failure is not None)
    assert outcome.subject is not None and outcome.subject.unit, outcome.failure
    number = outcome.subject.unit
    (stream,) = [name for name in outcome.subject.names if ">" in name]
    (replica,) = [name for name in outcome.subject.names if "#" in name]
    assert f"of {stream} from the outbox of" in outcome.story[-1], outcome.story[-1]
    text = "\n".join(outcome.story)
    assert f"sends unit {number} of {stream}" in text
    assert f"is done with unit {number} of {stream} in the inbox of {replica}" not in text


def test_the_story_of_a_unit_is_that_unit_alone() -> None:
    story = Story()
    world = World(Setup(chain((1, 1)), 3), seed=1, story=story)
    world.kernel.run(4_000.0)
    stream, replica = StreamId(ShardId("s0", 0), ShardId("s1", 0)), ReplicaId(ShardId("s1", 0), 1)
    lines = story.about(Subject.about((stream, replica), unit=5), world.zookeeper.history)
    text = "\n".join(lines)
    for part in (
        "sends unit 5 of s0.0>s1.0 from s0.0#",
        "gets unit 5 of s0.0>s1.0 from node-",
        "puts unit 5 of s0.0>s1.0 into the inbox of s1.0#1",
        "has unit 5 of s0.0#0 made: ",
        "is done with unit 5 of s0.0>s1.0 in the inbox of s1.0#1",
        "from the outbox of s0.0#0",
    ):
        assert part in text
    assert "sends unit 6 of" not in text
    assert "unit 5 of s1.0>sink.0" not in text
    assert all(" s  " in line for line in lines)


def test_a_failure_is_told_with_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: World) -> None:
        raise AssertionError("unit 3 of s0.0>sink.0 is not what it would be without faults")

    monkeypatch.setattr(World, "check_result", wrong)
    arguments = ["simulate", "faults", "--first", "1", "--seeds", "1", "--length", "2", "--nodes", "3"]
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[0]["ok"] is False
    assert "unit 3 of" in lines[0]["failure"]
    assert lines[-1]["summary"]["failed"] == [1]
    told = " ".join(result.stderr.split())
    assert "unbroken simulate faults --first 1 --seeds 1 --length 2 --nodes 3" in told
    assert "no more faults" in told


def test_a_campaign_that_passes() -> None:
    arguments = ["simulate", "faults", "--seeds", "2", "--length", "1", "--nodes", "3", "--json"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["ok"] for line in lines[:-1]] == [True, True]
    assert lines[-1]["summary"]["seeds"] == 2


def test_seeds_do_the_same_in_other_processes() -> None:
    seeds, alone, together = range(4), [], []
    assert run_campaign(seeds, SHORT, False, lambda outcome: alone.append(outcome.digest))
    assert run_campaign(seeds, SHORT, False, lambda outcome: together.append(outcome.digest), jobs=2)
    assert alone == together


def test_a_summary_adds_up() -> None:
    outcomes = [run_seed(seed, SHORT) for seed in (1, 2)]
    found = summary(outcomes)
    assert found["units"] == sum(outcome.counts["units"] for outcome in outcomes)
    assert found["failed"] == []
