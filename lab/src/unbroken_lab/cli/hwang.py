"""``unbroken simulate hwang``: the experiments of Hwang et al. on the protocol, beside their formulas."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from unbroken.cli.command import command
from unbroken.cli.shared import AS_JSON, out

_NAMES = ("overhead", "dynamics", "recovery", "tradeoff", "boxes", "selectivity", "distribution")


@command(
    "hwang",
    examples=[
        ("unbroken simulate hwang", "all of them, into hwang/"),
        ("unbroken simulate hwang --experiment recovery --runs 5 --out results", "one of them, quickly"),
    ],
)
@click.option(
    "--experiment",
    "names",
    type=click.Choice(_NAMES),
    multiple=True,
    help="Which of them, several times if wanted; all unless given.",
)
@click.option("--runs", type=click.IntRange(min=1), default=25, show_default=True, help="Runs of each point.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The seed of the first run.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=0.2,
    show_default=True,
    help="Simulated seconds of a run in which bytes are counted; at least one interval.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=lambda: os.cpu_count() or 1, show_default="cores", help="Processes."
)
@click.option(
    "--out",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("hwang"),
    show_default=True,
    help="Where a table (CSV) and a picture (PNG) of each experiment are written.",
)
@AS_JSON
def hwang(
    names: tuple[str, ...], runs: int, seed: int, seconds: float, jobs: int, directory: Path, as_json: bool
) -> None:
    """Overhead and recovery of passive standby, active standby and upstream backup: paper, formulas, simulation."""
    from unbroken.cli.progress import WaitDisplay
    from unbroken_lab.studies.hwang import report
    from unbroken_lab.studies.hwang.runs import Study, SweepPlan
    from unbroken_lab.studies.hwang.study import experiment_of
    from unbroken_lab.studies.hwang.summary import handshakes, summary, summary_table

    experiments = [experiment_of(name) for name in dict.fromkeys(names or _NAMES)]
    study = Study(SweepPlan(runs, seed, seconds, jobs), experiments)
    with WaitDisplay(f"{len(experiments)} experiments are simulated") as waiting:
        study.run(waiting.say)
    for experiment in experiments:
        results = study.results(experiment)
        report.write_csv(directory / f"{experiment.name}.csv", experiment, results)
        report.draw(directory / f"{experiment.name}.png", experiment, results)
    slower = handshakes(study) if any(experiment.name == "recovery" for experiment in experiments) else ()
    entries = summary(study, slower)
    if as_json:
        click.echo(json.dumps({"seed": seed, "runs": runs, "seconds": seconds, "experiments": entries}))
        return
    out.print(summary_table(entries))
    click.echo(f"tables and pictures are in {directory}")


COMMANDS = (hwang,)
"""What this module adds to ``unbroken simulate``."""
