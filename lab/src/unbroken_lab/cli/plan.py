"""``unbroken simulate plan``: which way to keep a flow available suits it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from unbroken.cli.command import command
from unbroken.cli.shared import AS_JSON

if TYPE_CHECKING:
    from unbroken.flow.dataflow import Dataflow
    from unbroken_lab.studies.calibration.calibration import Calibration
    from unbroken_lab.studies.plan.prediction import LinkCapacity

TABLE_WIDTH = 140
"""Columns of the table where the output is no terminal: it does not fit into the usual 80."""

_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_HOURS = {"ms": 1 / 3_600_000, "s": 1 / 3600, "m": 1 / 60, "min": 1 / 60, "h": 1.0, "d": 24.0, "y": 8766.0}


def link_of(text: str) -> LinkCapacity:
    """A link as it is written on the command line: bandwidth and latency of one way, such as 1gbit,1ms."""
    from unbroken_lab.studies.plan.prediction import LinkCapacity

    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]bit)\s*,\s*([0-9.]+)\s*(ms|s)\s*", text.lower())
    values = [] if match is None else [_number(match[1]), _number(match[3])]
    if match is None or None in values or not values[0]:
        raise click.BadParameter(f"{text!r} is no link; write bandwidth and latency, for example 1gbit,1ms")
    assert values[0] is not None and values[1] is not None
    return LinkCapacity(values[0] * _BITS[match[2]] / 8, values[1] * (1000 if match[4] == "s" else 1))


def hours_of(text: str) -> float:
    """A time as it is written on the command line, such as 30d or 10m, in hours."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*(ms|s|min|m|h|d|y)\s*", text.lower())
    value = None if match is None else _number(match[1])
    if match is None or not value:
        raise click.BadParameter(f"{text!r} is no length of time; write for example 30d, 12h, 10m or 90s")
    return value * _HOURS[match[2]]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@command(
    "plan",
    examples=[
        ("unbroken simulate plan my_flow.py --rate 2000", "measure the flow here, and compare the strategies"),
        (
            "unbroken simulate plan my_flow.py --rate 2000 --nodes 3 --link 1gbit,1ms --out plan/",
            "for other machines, with tables and a picture",
        ),
    ],
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), required=True, help="Rows per second of all sources."
)
@click.option("--nodes", type=int, help="Nodes, if not the number in the file.")
@click.option(
    "--link",
    default="1gbit,1ms",
    show_default=True,
    callback=lambda _ctx, _param, value: link_of(value),
    metavar="BANDWIDTH,LATENCY",
    help="Links between nodes.",
)
@click.option(
    "--mttf",
    default="30d",
    show_default=True,
    callback=lambda _ctx, _param, value: hours_of(value),
    metavar="TIME",
    help="Mean time until a machine fails.",
)
@click.option(
    "--mttr",
    default="10m",
    show_default=True,
    callback=lambda _ctx, _param, value: hours_of(value),
    metavar="TIME",
    help="Mean time until it is back.",
)
@click.option(
    "--interval", type=int, help="Units between acknowledgements and between checkpoints.  [default: the flow's]"
)
@click.option("--segment", "segments", multiple=True, help="A segment whose ha is to be chosen; all unless given.")
@click.option("--runs", default=6, show_default=True, help="Runs with a killed node for each strategy.")
@click.option("--seed", default=1, show_default=True)
@click.option("--calibration", "known", type=click.Path(path_type=Path), help="Use this instead of measuring.")
@click.option(
    "--out", "directory", type=click.Path(path_type=Path), help="Write calibration.json, plan.json and plan.png there."
)
@AS_JSON
def plan(
    file: Path,
    rate: float,
    nodes: int | None,
    link: LinkCapacity,
    mttf: float,
    mttr: float,
    interval: int | None,
    segments: tuple[str, ...],
    runs: int,
    seed: int,
    known: Path | None,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Predict what each strategy (ha=) costs a flow and how long recovery takes, to choose one.

    The flow's segments run on this machine for some seconds each, to measure them; then the flow is simulated.
    """
    from unbroken.flow.loading import load_flow
    from unbroken_lab.studies.calibration.calibration import Calibration
    from unbroken_lab.studies.plan import report
    from unbroken_lab.studies.plan.plan import make_plan
    from unbroken_lab.studies.plan.prediction import Question

    flow = load_flow(file)
    question = Question(rate, nodes or flow.settings.nodes, link, mttf, mttr, interval, segments, runs, seed)
    with _telling() as say:
        calibration = _measured(flow, question.nodes, rate, say) if known is None else Calibration.read(known)
        made = make_plan(flow, calibration, question, say)
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        calibration.write(directory / "calibration.json")
        (directory / "plan.json").write_text(json.dumps(made.to_json(), indent=2) + "\n")
        report.draw(directory / "plan.png", made)
    if as_json:
        click.echo(json.dumps(made.to_json()))
        return
    console = Console()
    console = console if console.is_terminal else Console(width=TABLE_WIDTH)
    console.print(report.report_of(made), highlight=False)
    if directory is not None:
        console.print(f"  written to {directory}: calibration.json, plan.json, plan.png", highlight=False)


def _measured(flow: Dataflow, nodes: int, rate: float, say: Callable[[str], None]) -> Calibration:
    """Run the flow's segments here, each for a few seconds."""
    from unbroken.spark.session import start_session
    from unbroken_lab.studies.calibration.measurement import calibrate, for_measuring
    from unbroken_lab.studies.plan.variants import segment_order

    order = segment_order(flow, nodes)
    say(f"{flow.name}: starting Spark to measure {len(order)} segments")
    began = time.monotonic()
    session = start_session("unbroken-plan", for_measuring(flow.settings))
    try:
        return calibrate(flow, order, rate, session, time.monotonic() - began, say)
    finally:
        session.stop()


@contextlib.contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """Say on stderr what is going on, and keep what Spark and its JVM write there off the screen."""
    from unbroken.cli.progress import WaitDisplay

    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        with os.fdopen(os.dup(kept), "w") as file, WaitDisplay("the plan is made", Console(file=file)) as waiting:
            yield waiting.say
    finally:
        os.dup2(kept, 2)
        os.close(kept)


COMMANDS = (plan,)
"""What this module adds to ``unbroken simulate``."""
