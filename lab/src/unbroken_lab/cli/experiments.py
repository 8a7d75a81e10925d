"""``unbroken bench NAME``: a command for every experiment, with its parameters as options, and ``bench results``."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from unbroken.cli.command import Command, command, group
from unbroken.cli.shared import EXIT_FAILED, answer, out
from unbroken_lab.experiments.registry import (
    BENCHMARKS,
    EXPERIMENTS,
    PAPERS,
    PEERS,
    ExperimentEntry,
    experiment_of,
    kind_of,
    names,
)

if TYPE_CHECKING:
    from unbroken_lab.experiments.experiment import Experiment, Rows
    from unbroken_lab.experiments.records import Kept

FOLDER = click.Path(path_type=Path)


@group(
    examples=[
        ("unbroken bench core", "latency and throughput beside plain Structured Streaming"),
        ("unbroken bench recovery --sizes 10 --json", "how soon redundancy is restored after a kill"),
        ("unbroken bench mib1 --resume", "an experiment of a paper: measure what an interrupted run has not"),
        ("unbroken bench peers --systems unbroken,flink-tuned", "beside other systems, on the same events"),
    ]
)
def bench() -> None:
    """Measure Unbroken on this machine.

    Each command takes minutes and wants the machine for itself. Progress is printed on stderr, a report on stdout;
    NAME.csv, NAME.png and NAME.json are left in a directory.
    """


class ExperimentCommand(Command):
    """The command of one experiment. Its module is loaded when its options are asked for, not before."""

    def __init__(self, name: str, entry: ExperimentEntry) -> None:
        usual = (f"unbroken bench {name}", "measure it, and leave its files in results/")
        super().__init__(name, callback=self._run, help=entry.about, examples=entry.examples or (usual,))

    @cached_property
    def kind(self) -> type[Experiment]:
        return kind_of(str(self.name))

    @property
    def params(self) -> list[click.Parameter]:
        return self._options

    @params.setter
    def params(self, given: list[click.Parameter]) -> None:
        """What click sets when the command is made: nothing is declared before the experiment is known."""

    @cached_property
    def _options(self) -> list[click.Parameter]:
        from unbroken_lab.experiments.experiment import parameters_of

        own: list[click.Parameter] = [
            click.Option(
                [f"--{each.name.replace('_', '-')}", each.name],
                type=each.kind,
                default=each.default,
                show_default=each.default is not None,
                help=each.about,
            )
            for each in parameters_of(self.kind)
        ]
        return [*own, *_common()]

    def _run(self, *, directory: Path, quick: bool, resume: bool, redraw: bool, as_json: bool, **settings: Any) -> None:
        from unbroken_lab.experiments import records
        from unbroken_lab.experiments.experiment import Size

        experiment = self.kind(**settings)
        with telling(experiment.name) as tell:
            if redraw:
                kept = records.redraw(experiment, directory)
            else:
                kept = records.run_and_keep(experiment, directory, Size(quick), tell, resume=resume)
        lines = experiment.lines(records.read_csv(directory / f"{experiment.name}.csv"))
        if as_json:
            click.echo(json.dumps({**kept.to_json(), "rows": records.numeric(lines)}))
        else:
            print_report(experiment, kept, lines)
        sys.exit(EXIT_FAILED if kept.failed else 0)


def _common() -> list[click.Parameter]:
    """The options that every experiment has."""
    return [
        click.Option(
            ["--out", "directory"],
            type=FOLDER,
            default=Path("results"),
            show_default=True,
            help="Directory of its files.",
        ),
        click.Option(["--quick"], is_flag=True, help="Tiny: shows that it runs, and measures nothing worth keeping."),
        click.Option(["--resume"], is_flag=True, help="Measure only what is not in the directory yet, or failed."),
        click.Option(["--redraw"], is_flag=True, help="Only draw and describe again what was measured before."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object at the end."),
    ]


def print_report(experiment: Experiment, kept: Kept, lines: Rows) -> None:
    """The figures and the claims of an experiment as tables, and what failed."""
    if experiment.columns:
        out.print(figures_table(experiment, lines))
    table = _table(kept.title, ("claim", "paper", "here", "agrees"))
    for claim in kept.claims:
        agrees = {True: "yes", False: "no"}.get(claim["agrees"], "")
        table.add_row(*(Text(str(claim[column])) for column in ("claim", "paper", "here")), agrees)
    out.print(table)
    out.print(kept.scale, highlight=False, markup=False)
    for failure in kept.failed:
        out.print(f"failed: {failure}", highlight=False, markup=False)


def figures_table(experiment: Experiment, lines: Rows) -> Table:
    """One line for each row that an experiment shows; one that failed has no figures."""
    from unbroken_lab.experiments.experiment import ERROR

    table = Table(title=experiment.title, caption=experiment.caption or None)
    for column in experiment.columns:
        table.add_column(column.head, justify="left" if column.digits is None else "right")
    for row in lines:
        shown = [column.shown(row) for column in experiment.columns]
        if row.get(ERROR):
            shown = [*("" if cell == "-" else cell for cell in shown[:-1]), "failed"]
        table.add_row(*(Text(cell) for cell in shown))
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column)
    return table


@command("list", examples=[("unbroken bench list --json", "titles, sources and parameters for a program")])
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench_list(as_json: bool) -> None:
    """List all experiments with their sources and parameters."""
    every = {name: experiment_of(name) for name in names()}
    text = "\n".join(f"{name:16} {found.title} ({found.source})" for name, found in every.items())
    facts = {
        name: {"title": found.title, "source": found.source, "parameters": found.settings()}
        for name, found in every.items()
    }
    answer(as_json, text, experiments=facts)


@command(
    "results",
    examples=[("unbroken bench results --from docs/results --out docs/results.md", "after experiments were run")],
)
@click.option("--from", "directory", type=FOLDER, default=Path("results"), show_default=True)
@click.option("--out", "page", type=FOLDER, default=Path("docs/results.md"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def bench_results(directory: Path, page: Path, as_json: bool) -> None:
    """Write the page of results from the files that experiments left in a directory."""
    from unbroken_lab.experiments.results import write_page

    shown = write_page(directory, page)
    missing = [name for name in names() if name not in shown]
    rest = f"; not yet run: {', '.join(missing)}" if missing else ""
    answer(as_json, f"{page}: {len(shown)} experiments{rest}", page=str(page), shown=list(shown), missing=missing)


@contextlib.contextmanager
def telling(what: str, verb: str = "is measured") -> Iterator[Callable[[str], None]]:
    """Report what a measurement does, and that it continues."""
    from unbroken.cli.progress import WaitDisplay

    with WaitDisplay(f"{what} {verb}") as waiting:
        yield waiting.say


bench.fill(
    {
        title: [ExperimentCommand(name, EXPERIMENTS[name]) for name in entries]
        for title, entries in (
            ("Unbroken itself", BENCHMARKS),
            ("Experiments of the papers", PAPERS),
            ("Beside other systems", PEERS),
        )
    }
)
bench.fill({"What there is": (bench_list, bench_results)})
