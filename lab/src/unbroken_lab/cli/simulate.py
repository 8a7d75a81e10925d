"""Commands that run the protocol on virtual time: ``simulate``."""

from __future__ import annotations

import json
import sys

import click

from unbroken.cli.command import group
from unbroken.cli.shared import AS_JSON, EXIT_FAILED, out, say


@group(
    examples=[
        ("unbroken simulate faults --seeds 200 --jobs 2", "random flows under random faults"),
        ("unbroken simulate plan flow.py --rate 2000", "what each way to stay available would cost your flow"),
    ]
)
def simulate() -> None:
    """Run the real protocol on simulated machines, links and faults.

    Time is virtual, so a minute of a small flow takes seconds, and every run can be repeated from its seed.
    """


@simulate.command(
    "faults",
    examples=[
        ("unbroken simulate faults --seeds 200 --jobs 2", "a campaign on two cores"),
        ("unbroken simulate faults --first 17 --seeds 1", "one of them again"),
    ],
)
@click.option("--seeds", default=20, show_default=True, help="How many random flows to run.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--length", "length_s", default=20.0, show_default=True, help="Simulated seconds in which faults begin.")
@click.option("--mean", "mean_s", default=1.5, show_default=True, help="Mean simulated seconds between two faults.")
@click.option("--nodes", "most_nodes", default=50, show_default=True, help="Most nodes of a flow.")
@click.option(
    "--check-every",
    default=1,
    show_default=True,
    help="Events of a run after which a node checks all its invariants; 0: only when the whole is looked at.",
)
@click.option(
    "--torn",
    type=click.IntRange(min=0),
    help="How many nodes are killed in each run between two effects of one event; unless given, one in a quarter of"
    " the runs.",
)
@click.option("--jobs", default=1, show_default=True, help="How many flows are run at a time, each in a process.")
@click.option(
    "--story/--no-story", default=True, help="Run what fails again, and tell what happened to the units concerned."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per seed and one for the campaign.")
def simulate_faults(
    seeds: int,
    first: int,
    length_s: float,
    mean_s: float,
    most_nodes: int,
    check_every: int,
    torn: int | None,
    jobs: int,
    story: bool,
    as_json: bool,
) -> None:
    """Random flows under random faults: no invariant broken, and the output of a run without faults."""
    from unbroken.cli.progress import WaitDisplay
    from unbroken_lab.sim.campaign import Options, Outcome, run_campaign, sentence, summary

    options = Options(length_s, mean_s, most_nodes, check_every, torn)
    outcomes: list[Outcome] = []
    waiting = WaitDisplay(f"{seeds} flows are run")

    def told(outcome: Outcome) -> None:
        outcomes.append(outcome)
        waiting.show(f"{seeds} flows are run", len(outcomes), seeds)
        if as_json:
            click.echo(json.dumps(outcome.to_json()))
        if outcome.ok:
            waiting.say(f"seed {outcome.seed} passed in {outcome.took_s:.1f} s: {outcome.flow}")
            return
        again = options.command(outcome.seed)
        waiting.say(f"seed {outcome.seed} FAILED: {outcome.flow}\n  {outcome.failure}\n  {again}")
        for line in outcome.story:
            click.echo(line, err=as_json)

    with waiting:
        passed = run_campaign(range(first, first + seeds), options, story, told, jobs)
    say(sentence(summary(outcomes)))
    click.echo(json.dumps({"summary": summary(outcomes)}, indent=None if as_json else 2))
    sys.exit(0 if passed else EXIT_FAILED)


@simulate.command(
    "scale",
    examples=[
        ("unbroken simulate scale --nodes 100 --seconds 10", "a hundred nodes"),
        ("unbroken simulate scale --nodes 100 --seconds 20 --faults 10 --check", "ten of them fail"),
    ],
)
@click.option("--nodes", type=click.IntRange(min=2), default=100, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Simulated seconds, without those in which the flow comes to rest.",
)
@click.option("--pulse", "pulse_ms", default=1_000.0, show_default=True, help="Length of every pulse in milliseconds.")
@click.option("--seed", default=0, show_default=True)
@click.option("--mesh", is_flag=True, help="Link every node to every other one, as real nodes are.")
@click.option(
    "--faults",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many nodes are killed and started again, or frozen, at random moments.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Check invariants meanwhile, and in the end let the flow come to rest with the results of one without faults.",
)
@AS_JSON
def simulate_scale(
    nodes: int, seconds: float, pulse_ms: float, seed: int, mesh: bool, faults: int, check: bool, as_json: bool
) -> None:
    """One flow on many nodes: how fast it is simulated, and whether it stands the failure of some of them."""
    from unbroken_lab.sim.scale import Scale, run_scale

    result = run_scale(Scale(nodes, seconds, pulse_ms, seed, mesh, faults, check), say)
    if as_json:
        click.echo(json.dumps(result))
    else:
        out.print_json(data=result)
    if result["failure"] is not None:
        say(f"FAILED: {result['failure']}")
        sys.exit(EXIT_FAILED)


COMMANDS = (simulate_faults, simulate_scale)
"""What this module has of ``unbroken simulate``."""
