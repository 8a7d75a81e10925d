"""Commands that repeat the experiments of the papers, and show them: ``bench paper`` and ``bench results``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from unbroken.cli.command import command
from unbroken.cli.shared import EXIT_FAILED, answer, out
from unbroken_lab.cli.bench import AS_JSON, telling


@command(
    "paper",
    examples=[
        ("unbroken bench paper --list", "which experiments there are"),
        ("unbroken bench paper mib1 faults", "two of them, into results/"),
        ("unbroken bench paper mib1 --resume", "measure what a run that was ended has not"),
        ("unbroken bench paper mib1 --redraw", "draw again what was measured before"),
    ],
)
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--list", "listed", is_flag=True, help="Say which experiments there are, and end.")
@click.option("--out", "directory", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option("--quick", is_flag=True, help="Tiny: shows that an experiment runs, and measures nothing worth keeping.")
@click.option("--resume", is_flag=True, help="Measure only what is not in the directory yet, or failed.")
@click.option("--redraw", is_flag=True, help="Only draw and describe again what was measured before.")
@AS_JSON
def bench_paper(
    names: tuple[str, ...], listed: bool, directory: Path, quick: bool, resume: bool, redraw: bool, as_json: bool
) -> None:
    """Repeat experiments of the papers on the real system: NAME.csv, NAME.png and NAME.json for each."""
    from unbroken_lab.experiments.paper.experiment import Size
    from unbroken_lab.experiments.paper.records import redraw as redrawn
    from unbroken_lab.experiments.paper.records import run_and_keep
    from unbroken_lab.experiments.paper.registry import experiment_of
    from unbroken_lab.experiments.paper.registry import names as known

    if listed or not names:
        every = {name: experiment_of(name) for name in known()}
        text = "\n".join(f"{name:16} {found.title} ({found.source})" for name, found in every.items())
        facts = {name: {"title": found.title, "source": found.source} for name, found in every.items()}
        answer(as_json, text, experiments=facts)
        return
    failed, size = False, Size(quick)
    for experiment in [experiment_of(name) for name in names]:
        with telling(experiment.name) as tell:
            if redraw:
                kept = redrawn(experiment, directory)
            else:
                kept = run_and_keep(experiment, directory, size, tell, resume=resume)
        failed = failed or bool(kept.failed)
        if as_json:
            click.echo(json.dumps(kept.to_json()))
        else:
            for sentence in [*kept.findings, *(f"failed: {error}" for error in kept.failed)]:
                out.print(f"{experiment.name}: {sentence}", highlight=False, markup=False)
    sys.exit(EXIT_FAILED if failed else 0)


@command(
    "results",
    examples=[("unbroken bench results --from docs/results --out docs/results.md", "after `unbroken bench paper`")],
)
@click.option("--from", "directory", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option("--out", "page", type=click.Path(path_type=Path), default=Path("docs/results.md"), show_default=True)
@AS_JSON
def bench_results(directory: Path, page: Path, as_json: bool) -> None:
    """Write the page of results from what `bench paper` left in a directory."""
    from unbroken_lab.experiments.paper.registry import names as known
    from unbroken_lab.experiments.paper.results import write_page

    shown = write_page(directory, page)
    missing = [name for name in known() if name not in shown]
    rest = f"; not yet run: {', '.join(missing)}" if missing else ""
    answer(as_json, f"{page}: {len(shown)} experiments{rest}", page=str(page), shown=list(shown), missing=missing)


COMMANDS = (bench_paper, bench_results)
