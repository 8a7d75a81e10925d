"""Commands that measure and try Unbroken on this machine: ``bench`` and ``chaos``."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from unbroken.cli.command import command, group
from unbroken.cli.shared import EXIT_FAILED, out

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")


@group(
    examples=[
        ("unbroken bench core", "latency and throughput beside plain Structured Streaming"),
        ("unbroken bench recovery --sizes 10 --json", "how soon redundancy is back after a kill"),
        ("unbroken bench peers --systems unbroken,flink-tuned", "beside other systems, on the same events"),
    ]
)
def bench() -> None:
    """Measure Unbroken on this machine.

    Each takes minutes and wants the machine for itself. Progress is told on stderr, figures on stdout.
    """


@bench.command("core", examples=[("unbroken bench core --seconds 60", "longer measurements of latency")])
@click.option("--seconds", default=40, show_default=True, help="Length of each latency measurement.")
@click.option("--warm-up", default=20, show_default=True, help="Seconds of it that are left out at the start.")
@click.option("--rows", default=12_000_000, show_default=True, help="Rows of each saturation measurement.")
@AS_JSON
def bench_core(seconds: int, warm_up: int, rows: int, as_json: bool) -> None:
    """Plain Structured Streaming, one replica and two replicas, on the same query and rows in one run."""
    from unbroken_lab.experiments.core import CoreSettings, run_core

    settings = CoreSettings(latency_seconds=seconds, warm_up_seconds=warm_up, saturation_rows=rows)
    with telling("core") as tell:
        result = run_core(settings, tell)
    _print(result, as_json)


@bench.command("recovery", examples=[("unbroken bench recovery --sizes 1,10", "two sizes of state, in megabytes")])
@click.option("--sizes", default="10,100", show_default=True, help="Megabytes of state, one measurement each.")
@click.option("--rate", default=10_000, show_default=True, help="Rows per second meanwhile.")
@AS_JSON
def bench_recovery(sizes: str, rate: int, as_json: bool) -> None:
    """Kill a node of two with a warm standby: time until redundancy is back, bytes moved, latency meanwhile."""
    from unbroken_lab.experiments.recovery import RecoverySettings, run_recovery

    settings = RecoverySettings(sizes=[int(float(size) * 1e6) for size in sizes.split(",")], rate=rate)
    with telling("recovery") as tell:
        result = run_recovery(settings, tell)
    _print(result, as_json)


@bench.command("piecemeal", examples=[("unbroken bench piecemeal --size 50", "more state to be copied")])
@click.option("--size", default=10.0, show_default=True, help="Megabytes of state in all four shards.")
@click.option("--rate", default=4_000, show_default=True, help="Rows per second meanwhile.")
@click.option("--pulse", "pulse_ms", default=1_000, show_default=True, help="Shortest pulse in milliseconds.")
@AS_JSON
def bench_piecemeal(size: float, rate: int, pulse_ms: int, as_json: bool) -> None:
    """Kill a node of four that hosts two of four shards: are results of the other two later meanwhile?"""
    from unbroken_lab.experiments.piecemeal import PiecemealSettings, run_piecemeal

    with telling("piecemeal") as tell:
        result = run_piecemeal(PiecemealSettings(int(size * 1e6), rate, pulse_ms), tell)
    _print(result, as_json)


@bench.command("delivery", examples=[("unbroken bench delivery --rate 5000", "more rows per second")])
@click.option("--seconds", default=70, show_default=True, help="Length of the stream of rows, for each way.")
@click.option("--rate", default=2_000, show_default=True, help="Rows per second.")
@click.option("--pulse", "pulse_ms", default=750, show_default=True, help="Length of every pulse in milliseconds.")
@AS_JSON
def bench_delivery(seconds: int, rate: int, pulse_ms: int, as_json: bool) -> None:
    """Input from all producers against input from one: bytes on the wire, and what a killed node is noticed by."""
    from unbroken_lab.experiments.delivery import DeliverySettings, run_delivery

    with telling("delivery") as tell:
        result = run_delivery(DeliverySettings(rate, pulse_ms, seconds), tell)
    _print(result, as_json)


@bench.command(
    "strategies", examples=[("unbroken bench strategies --strategies active,passive --intervals 1,4", "some of them")]
)
@click.option("--strategies", default="active,active-standby,passive,upstream,none", show_default=True)
@click.option("--intervals", default="1,2,4,8", show_default=True, help="Units between two acknowledgements.")
@click.option("--rate", default=2_000, show_default=True, help="Rows per second.")
@AS_JSON
def bench_strategies(strategies: str, intervals: str, rate: int, as_json: bool) -> None:
    """Ways to keep a segment available: bytes for it, and time to go on when its node is killed."""
    from unbroken_lab.experiments.strategies import StrategiesSettings, run_strategies, strategies_table

    with telling("strategies") as tell:
        result = run_strategies(StrategiesSettings.parse(strategies, intervals, rate), tell)
    if as_json:
        _print(result, as_json)
    else:
        out.print(strategies_table(result))
        _print(result["ratios"], as_json)


@bench.command(
    "ordering",
    examples=[("unbroken bench ordering --orderings pulse,leader-zookeeper --kills leader", "without Kafka")],
)
@click.option("--orderings", default="pulse,leader-zookeeper,leader-kafka", show_default=True)
@click.option("--inputs", default="balanced,unbalanced", show_default=True, help="Rates of the two inputs.")
@click.option("--kills", default="leader,follower", show_default=True, help="Which node is killed, one run each.")
@click.option("--seconds", default=60, show_default=True, help="Length of each run from its first result on.")
@click.option("--kafka", metavar="HOST:PORT", help="Servers for leader-kafka, which is left out without them.")
@AS_JSON
def bench_ordering(orderings: str, inputs: str, kills: str, seconds: int, kafka: str | None, as_json: bool) -> None:
    """Input ordered by pulses or by a leader: latency, bytes, and what a killed leader or follower costs."""
    from unbroken_lab.experiments.ordering import OrderingSettings, ordering_table, run_ordering

    with telling("ordering") as tell:
        result = run_ordering(OrderingSettings.parse(orderings, inputs, kills, seconds, kafka), tell)
    if as_json:
        _print(result, as_json)
    else:
        out.print(ordering_table(result))
        _print(result["ratios"], as_json)


@bench.command(
    "consistency", examples=[("unbroken bench consistency --durations 5 --policies process/process", "one failure")]
)
@click.option("--durations", default="2,5,15,30", show_default=True, help="Seconds without one of three inputs.")
@click.option(
    "--policies",
    default="process/process,process/delay,process/suspend,delay/process,delay/delay,delay/suspend",
    show_default=True,
    help="What becomes of new input during the failure / while results are put right.",
)
@click.option("--reconcile", default="fork,redo,undo", show_default=True, help="All of them with the first policies.")
@click.option("--max-delay", default="3s", show_default=True, help="The bound X on the delay of new results.")
@click.option("--alpha", default=0.9, show_default=True, help="The share of X that is spent waiting.")
@click.option("--rate", default=4_500, show_default=True, help="Rows per second of all inputs together.")
@click.option("--bucket", default="500ms", show_default=True, help="Length of event time that makes one unit.")
@click.option("--replicas", default=1, show_default=True)
@click.option("--repeat", default=1, show_default=True, help="How often each failure is caused.")
@AS_JSON
def bench_consistency(durations: str, policies: str, reconcile: str, as_json: bool, **options: Any) -> None:
    """Inputs that are missing for a while: delay of new results, tentative ones, and time to put them right."""
    from unbroken_lab.experiments.consistency import consistency_table, run_consistency
    from unbroken_lab.experiments.consistency_settings import ConsistencySettings

    with telling("consistency") as tell:
        result = run_consistency(ConsistencySettings.parse(durations, policies, reconcile, **options), tell)
    if as_json:
        _print(result, as_json)
    else:
        out.print(consistency_table(result))
        _print(result["ratios"], as_json)


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


@contextlib.contextmanager
def telling(what: str, verb: str = "is measured") -> Iterator[Callable[[str], None]]:
    """Tell what a measurement does, and show that it goes on."""
    from unbroken.cli.progress import Waiting

    with Waiting(f"{what} {verb}") as waiting:
        yield waiting.say


def _print(result: dict[str, Any], as_json: bool) -> None:
    click.echo(json.dumps(result) if as_json else json.dumps(result, indent=2))


COMMANDS = (
    *(bench_core, bench_recovery, bench_piecemeal, bench_delivery),
    *(bench_strategies, bench_ordering, bench_consistency),
)
"""What this module has of ``unbroken bench``."""
