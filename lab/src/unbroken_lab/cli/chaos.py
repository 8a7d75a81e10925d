"""``unbroken chaos``: seeded schedules of real faults."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from unbroken.cli.command import command
from unbroken.cli.shared import EXIT_FAILED
from unbroken_lab.cli.experiments import telling


@command(
    examples=[
        ("unbroken chaos --seeds 17", "one schedule; the same faults every time"),
        ("unbroken chaos --seeds 1-30 --json > chaos.jsonl", "a campaign of an hour and a half"),
    ]
)
@click.option("--seeds", default="1-30", show_default=True, help="Schedules to run, as 17, 1-30 or 1-3,8.")
@click.option("--length", "length_s", default=45.0, show_default=True, help="Seconds in which faults begin.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), default=Path("build/chaos"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per run and one for the campaign.")
def chaos(seeds: str, length_s: float, directory: Path, as_json: bool) -> None:
    """Run a flow through seeded schedules of real faults and check every result.

    Processes are killed and frozen, disks wiped, ZooKeeper is taken away. Exit code 0 says that every result of every
    run was exact.
    """
    from unbroken_lab.chaos.campaign import parse_seeds, run_campaign

    with telling("schedules of faults", "are run") as tell:
        passed = run_campaign(parse_seeds(seeds), directory, length_s, click.echo if as_json else lambda _: None, tell)
    sys.exit(0 if passed else EXIT_FAILED)
