"""Random flows under random faults, and how a failure is told."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from unbroken.cli import cli
from unbroken.sim.campaign import Options, run_seed, summary
from unbroken.sim.world import World

pytestmark = pytest.mark.slow

OPTIONS = Options(length_s=5.0, mean_s=1.0, most_nodes=4, check_every=7)


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_seeds(first: int) -> None:
    for seed in range(first, first + 6):
        outcome = run_seed(seed, OPTIONS)
        assert outcome.ok, f"{OPTIONS.command(seed)}: {outcome.failure}"


def test_a_failure_is_told_with_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: World) -> None:
        raise AssertionError("unit 3 of s0.0>sink.0 is not what it would be without faults")

    monkeypatch.setattr(World, "check_result", wrong)
    arguments = ["simulate", "faults", "--first", "1", "--seeds", "1", "--length", "2", "--nodes", "3", "--story"]
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[0]["ok"] is False
    assert "unit 3 of" in lines[0]["failure"]
    assert lines[-1]["summary"]["failed"] == [1]
    assert "unbroken simulate faults --first 1 --seeds 1 --length 2 --nodes 3 --story" in " ".join(
        result.stderr.split()
    )
    assert "no more faults" in result.stderr


def test_a_campaign_that_passes() -> None:
    result = CliRunner().invoke(cli, ["simulate", "faults", "--seeds", "2", "--length", "2", "--nodes", "3", "--json"])
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["ok"] for line in lines[:-1]] == [True, True]
    assert lines[-1]["summary"]["seeds"] == 2


def test_a_summary_adds_up() -> None:
    outcomes = [run_seed(seed, OPTIONS) for seed in (1, 2)]
    found = summary(outcomes)
    assert found["units"] == sum(outcome.counts["units"] for outcome in outcomes)
    assert found["failed"] == []
