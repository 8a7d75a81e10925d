"""``unbroken simulate mttf``: how long until both nodes of a pair are down at once."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from unbroken.cli.command import command
from unbroken.cli.shared import AS_JSON

TABLE_WIDTH = 132
"""Columns of the table where the output is no terminal: it does not fit into the usual 80."""


def _counts(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    """Numbers of nodes, written as 100 or 10,100,1000."""
    from unbroken_lab.studies.reliability.reliability import MAX_NODES

    try:
        counts = [int(part) for part in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a number of nodes, nor several with commas between them") from None
    for count in counts:
        if not 2 <= count <= MAX_NODES:
            raise click.BadParameter(f"{count} nodes: give numbers from 2 to {MAX_NODES}")
    return list(dict.fromkeys(counts))


_TIME = click.FloatRange(min=0, min_open=True)


@command(
    "mttf",
    examples=[
        ("unbroken simulate mttf", "10 to 10,000 nodes, with defaults for failures and repair"),
        ("unbroken simulate mttf --nodes 10,100 --mttf 720 --mttr 1 --png mttf.png", "a picture of your own figures"),
    ],
)
@click.option(
    "--nodes",
    callback=_counts,
    metavar="N[,N...]",
    default="10,100,1000,10000",
    show_default=True,
    help="Nodes in all.",
)
@click.option("--mttf", "mttf_h", type=_TIME, default=720.0, show_default=True, help="Hours until a node fails.")
@click.option(
    "--mttr", "mttr_min", type=_TIME, default=1.0, show_default=True, help="Minutes until it is redundant again."
)
@click.option("--cluster-mttr", "cluster_min", type=_TIME, help="The same for cluster pairs.  [default: --mttr]")
@click.option(
    "--pairs",
    type=click.Choice(["process", "cluster", "partition"]),
    multiple=True,
    help="Kinds of pairs; all unless given. Partition pairs are shown as the paper has them and chained.",
)
@click.option("--runs", type=click.IntRange(min=100), help="Simulated runs; by default enough for about 1 %.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@AS_JSON
@click.option("--csv", "csv_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file.")
@click.option("--png", "png_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw them into this file.")
def mttf(
    nodes: list[int],
    mttf_h: float,
    mttr_min: float,
    cluster_min: float | None,
    pairs: tuple[str, ...],
    runs: int | None,
    seed: int,
    as_json: bool,
    csv_file: Path | None,
    png_file: Path | None,
) -> None:
    """Mean time until both nodes of a pair are down: the paper's and the exact formulas, and a simulation."""
    from unbroken_lab.studies.reliability import report
    from unbroken_lab.studies.reliability.reliability import Machines, Pairing

    chosen = pairs or ("process", "cluster", "partition")
    kinds = [kind for kind in Pairing if kind.value in chosen or (kind is Pairing.CHAINED and "partition" in chosen)]
    machines = Machines(nodes[0], mttf_h, mttr_min / 60, None if cluster_min is None else cluster_min / 60)
    rows = report.rows_of(machines, nodes, kinds, runs, seed)
    if csv_file is not None:
        report.write_csv(csv_file, rows)
    if png_file is not None:
        report.draw(png_file, rows)
    if as_json:
        click.echo(json.dumps({"seed": seed, "rows": [row.to_json() for row in rows]}))
    else:
        console = Console()
        console = console if console.is_terminal else Console(width=TABLE_WIDTH)
        console.print(report.table_of(rows), highlight=False)


COMMANDS = (mttf,)
"""What this module adds to ``unbroken simulate``."""
