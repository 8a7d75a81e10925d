"""The command that measures other systems beside Unbroken: ``bench peers``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from unbroken.cli.command import command
from unbroken.cli.shared import EXIT_FAILED, out
from unbroken_lab.cli.bench import AS_JSON, telling


@command(
    "peers",
    examples=[
        ("unbroken bench peers --systems unbroken,flink-tuned", "two of the systems"),
        ("unbroken bench peers --quick", "only see that they run"),
    ],
)
@click.option("--systems", default="unbroken,spark,spark-cluster,flink,flink-tuned,flink-eager", show_default=True)
@click.option("--rate", default=5_000, show_default=True, help="Events per second.")
@click.option("--seconds", type=float, help="Length of the stream of events for each system.  [default: 80]")
@click.option("--quick", is_flag=True, help="Tiny: shows that the systems run, and measures nothing worth keeping.")
@click.option("--out", "directory", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@AS_JSON
def bench_peers(systems: str, rate: int, seconds: float | None, quick: bool, directory: Path, as_json: bool) -> None:
    """Unbroken, Structured Streaming, a Spark cluster and Flink on the same events, each losing a process by kill -9.

    Flink is installed below ~/.cache/unbroken/peers when it is first needed. Leaves peers.csv, .png and .json.
    """
    from unbroken_lab.experiments.paper.experiment import Size
    from unbroken_lab.experiments.paper.records import read_csv, run_and_keep
    from unbroken_lab.experiments.peers.run import Peers, PeersSettings, peers_json, peers_table

    experiment = Peers(PeersSettings.parse(systems, rate, seconds))
    with telling("peers") as tell:
        kept = run_and_keep(experiment, directory, Size(quick), tell)
    rows = read_csv(directory / f"{experiment.name}.csv")
    if as_json:
        click.echo(json.dumps({**kept.to_json(), "systems": peers_json(rows)}))
    else:
        out.print(peers_table(rows))
        for sentence in kept.findings:
            out.print(sentence, highlight=False, markup=False)
        for failure in kept.failed:
            out.print(f"failed: {failure}", highlight=False, markup=False)
    sys.exit(EXIT_FAILED if kept.failed else 0)


COMMANDS = (bench_peers,)
