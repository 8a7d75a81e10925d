"""One flow on many nodes of which some fail, and what keeps that quick."""

from __future__ import annotations

import gc
import json
from random import Random

import pytest
from click.testing import CliRunner

from unbroken.cli import cli
from unbroken.errors import InvariantViolation
from unbroken_lab.sim.collecting import YOUNG, collecting_seldom
from unbroken_lab.sim.faults import Kind
from unbroken_lab.sim.pairs import ByPair
from unbroken_lab.sim.scale import Scale, make_blows, run_scale
from unbroken_lab.sim.world import World


def test_forty_nodes_of_which_some_fail() -> None:
    found = run_scale(Scale(nodes=40, seconds=20.0, faults=8, check=True), lambda _: None)
    assert found["failure"] is None
    assert found["faults"]["kill"] >= 5
    assert found["faults"]["kill"] + found["faults"]["freeze"] + found["skipped"] == 8
    assert found["copies"] > 0 and found["layouts"] > 1, "no node was away for so long that its replicas had to move"
    assert found["delivered"] >= 20
    assert found["simulated_s"] > 20.0, "it came to rest after the time that was asked for"


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_a_thousand_nodes_of_which_some_fail() -> None:
    found = run_scale(Scale(nodes=1_000, seconds=60.0, faults=12, check=True), lambda _: None)
    assert found["failure"] is None
    assert found["faults"]["kill"] >= 5 and found["layouts"] > 1


def test_the_same_seed_fails_in_the_same_way() -> None:
    asked = Scale(nodes=12, seconds=5.0, faults=3, check=True)
    one, two = (run_scale(asked, lambda _: None) for _ in range(2))
    assert one["digest"] == two["digest"]
    other = run_scale(Scale(nodes=12, seconds=5.0, faults=3, check=True, seed=1), lambda _: None)
    assert other["digest"] != one["digest"]


def test_without_check_it_ends_when_the_time_is_over() -> None:
    found = run_scale(Scale(nodes=12, seconds=3.0), lambda _: None)
    assert found["simulated_s"] == 3.0 and not found["checked"] and found["faults"] == {}


def test_what_is_wrong_ends_the_command_with_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: World) -> None:
        raise InvariantViolation("unit 3 of b0s0.0>end.0 is not what it would be without faults")

    monkeypatch.setattr(World, "check_result", wrong)
    arguments = ["simulate", "scale", "--nodes", "8", "--seconds", "3", "--faults", "1", "--check", "--json"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    assert "unit 3 of" in json.loads(result.stdout)["failure"]
    assert "FAILED" in result.stderr


def test_invariants_are_looked_at_only_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    monkeypatch.setattr(World, "check", lambda self: looks.append(self.kernel.now_ms))
    run_scale(Scale(nodes=8, seconds=4.0), lambda _: None)
    assert not looks
    run_scale(Scale(nodes=8, seconds=4.0, check=True), lambda _: None)
    assert len(looks) >= 4


def test_nodes_are_killed_and_frozen_for_a_short_and_for_a_long_time() -> None:
    blows = make_blows(Random(1), [f"node-{n}" for n in range(20)], 10_000.0, 200)
    assert len(blows) == 200 and {blow.kind for blow in blows} == {Kind.KILL, Kind.FREEZE}
    assert all(1_000.0 <= blow.at_ms <= 10_000.0 for blow in blows)
    assert min(blow.length_ms for blow in blows) < 3_000 < 6_000 < max(blow.length_ms for blow in blows)


def test_what_a_node_is_part_of_has_the_order_of_all() -> None:
    random, pairs = Random(7), ByPair[int]()
    for number in range(2_000):
        pair = (f"n{random.randrange(8)}", f"m{random.randrange(8)}")
        if random.random() < 0.4:
            if pair in pairs:
                del pairs[pair]
        else:
            pairs[pair] = number
        name = random.choice(pair)
        assert list(pairs.of(name).items()) == [(key, value) for key, value in pairs.items() if name in key]
    assert pairs.of("nobody") == {}


def test_the_collector_is_as_it_was_afterwards() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(ZeroDivisionError), collecting_seldom():
        assert gc.get_threshold()[0] == YOUNG and gc.get_freeze_count() > frozen
        raise ZeroDivisionError
    assert gc.get_threshold() == before and gc.get_freeze_count() == 0
