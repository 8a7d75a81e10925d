"""The command line: ``unbroken check | run | status | history | drain | reinit | node | demo | bench | chaos``."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from unbroken import __version__
from unbroken.errors import FlowError, UnbrokenError

EXIT_REFUSED = 2
"""The flow cannot be run as declared, or the command was used wrongly."""

EXIT_FAILED = 1

ANSWER_DEADLINE_S = 5.0
"""How long a command that asks a running flow waits for its ZooKeeper: one that runs answers at once."""

out = Console()
errors = Console(stderr=True)


class _Commands(click.Group):
    """Turns Unbroken's own errors into messages; anything else is a bug and keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FlowError as error:
            for problem in error.problems:
                errors.print(f"[bold red]refused[/] {problem.where}", highlight=False)
                errors.print(f"  {problem.what}", highlight=False, markup=False)
                errors.print(f"  -> {problem.remedy}", highlight=False, markup=False)
            ctx.exit(EXIT_REFUSED)
        except UnbrokenError as error:
            errors.print("[bold red]error[/]", end=" ")
            errors.print(str(error), highlight=False, markup=False)
            ctx.exit(EXIT_FAILED)


FLOW_FILE = click.argument("file", type=click.Path(path_type=Path))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Keep PySpark streaming pipelines producing results through failures."""
    # kazoo reports every attempt to connect; what comes of them is said once, by the command.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)


@cli.command()
@FLOW_FILE
@click.option("--nodes", type=int, help="Nodes the flow will run on, if not the number in the file.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(file: Path, nodes: int | None, as_json: bool) -> None:
    """Say whether a flow can be run, and if not why and what to do.

    Example: unbroken check my_flow.py
    """
    from unbroken.plan import build_topology, load_flow
    from unbroken.spark.analysis import analyse
    from unbroken.spark.session import start_session

    try:
        flow = load_flow(file)
        topology = build_topology(flow, nodes)
        with _quiet():
            session = start_session("unbroken-check", flow.settings, "local[1]")
            try:
                analysis = analyse(flow, tuple(topology.segments), session)
            finally:
                session.stop()
    except FlowError as error:
        if not as_json:
            raise
        problems = [{"where": p.where, "what": p.what, "remedy": p.remedy} for p in error.problems]
        click.echo(json.dumps({"ok": False, "problems": problems}))
        raise SystemExit(EXIT_REFUSED) from None
    if as_json:
        schemas = {name: schema.simpleString() for name, schema in analysis.schemas.items()}
        click.echo(json.dumps({"ok": True, "flow": flow.name, "schemas": schemas}))
        return
    out.print(f"[bold green]ok[/] {flow.name}: {len(topology.streams)} streams", highlight=False)
    for name, schema in analysis.schemas.items():
        segment = flow.segments.get(name)
        copies = "source" if segment is None else f"{segment.shards} shards x {segment.replicas} replicas"
        out.print(f"  {name} ({copies}): {schema.simpleString()}", highlight=False, markup=False)


@cli.command()
@FLOW_FILE
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where state and logs are kept.")
@click.option("--nodes", type=int, help="Local nodes to start, if not the number in the file.")
@click.option("--standbys", type=int, help="Idle local nodes to keep ready, if not the number in the file.")
@click.option("--fresh", is_flag=True, help="Delete what an earlier run left in the directory and start over.")
def run(file: Path, directory: Path | None, nodes: int | None, standbys: int | None, fresh: bool) -> None:
    """Run a flow on local nodes with an embedded ZooKeeper, until it ends or Ctrl-C.

    What an earlier run of the flow has left in the directory is gone on with, however that run ended.

    Example: unbroken run my_flow.py
    """
    from unbroken.cluster.launcher import LocalCluster
    from unbroken.cluster.watch import follow, greet
    from unbroken.plan import load_flow

    flow = load_flow(file)
    where = directory or Path(".unbroken") / flow.name
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with LocalCluster(file, where, nodes=nodes, standbys=standbys, fresh=fresh) as cluster:
        if cluster.resumed:
            out.print(f"{flow.name}: going on with the run in {cluster.directory}", highlight=False)
        out.print(f"{flow.name}: logs are in {cluster.logs}", highlight=False)
        try:
            with out.status("starting") as spinner:
                cluster.start()
                cluster.wait_ready(progress=lambda text: spinner.update(text))
            greet(cluster, out)
            follow(cluster, out)
        except KeyboardInterrupt:
            out.print("stopping")


@cli.command()
@click.argument("flow_name", required=False)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Directory of the run.")
@click.option("--watch", is_flag=True, help="Keep showing the status.")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
def status(flow_name: str | None, directory: Path | None, watch: bool, as_json: bool) -> None:
    """Show nodes, replicas, units and lag of a running flow.

    Example: unbroken status   or   unbroken status my-flow --watch
    """
    from unbroken.cluster.status_reader import StatusReader
    from unbroken.cluster.watch import status_view
    from unbroken.transport.auth import read_token

    info = _find_run(flow_name, directory)
    with StatusReader(info.zookeeper, info.flow, read_token(info.token_file), ANSWER_DEADLINE_S) as reader:
        while True:
            states = reader.read()
            if as_json:
                click.echo(json.dumps(states))
            else:
                if watch:
                    out.clear()
                out.print(status_view(info.flow, states, zookeeper_away=reader.directory.away))
            if not watch:
                return
            time.sleep(1)


@cli.command()
@click.argument("flow_name", required=False)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Directory of the run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def history(flow_name: str | None, directory: Path | None, as_json: bool) -> None:
    """Tell what happened to a running flow, in sentences."""
    from unbroken.cluster.documents import read_history

    with _coordinated(flow_name, directory) as (client, flow):
        entries = read_history(client, flow)
    for entry in entries:
        when = time.strftime("%H:%M:%S", time.localtime(entry["time_ms"] / 1000))
        line = json.dumps(entry) if as_json else f"{when} {entry['node']}: {entry['sentence']}"
        click.echo(line)


@cli.command()
@click.argument("node_name", metavar="NODE")
@click.argument("flow_name", required=False)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Directory of the run.")
@click.option("--undo", is_flag=True, help="Let the node be used again.")
@click.option("--wait", "wait_s", default=300.0, show_default=True, help="Seconds to wait for it; 0 does not wait.")
def drain(node_name: str, flow_name: str | None, directory: Path | None, undo: bool, wait_s: float) -> None:
    """Move everything away from a node, so that it can be stopped without anybody noticing.

    Example: unbroken drain node-2
    """
    from unbroken.cluster import operations

    with _coordinated(flow_name, directory) as (client, flow):
        if undo:
            operations.undo_drain(client, flow, node_name)
            return
        operations.drain(client, flow, node_name)
        if wait_s:
            operations.wait_drained(client, flow, node_name, wait_s, click.echo)
            click.echo(f"{node_name} can be stopped")


@cli.command()
@click.argument("shard")
@click.argument("node_name", metavar="NODE")
@click.argument("flow_name", required=False)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Directory of the run.")
@click.option("--wait", "wait_s", default=300.0, show_default=True, help="Seconds to wait for it; 0 does not wait.")
def reinit(shard: str, node_name: str, flow_name: str | None, directory: Path | None, wait_s: float) -> None:
    """Build the replica of a shard on a node again from one of its peers.

    Example: unbroken reinit totals.0 node-2
    """
    from unbroken.cluster import operations
    from unbroken.protocol.ids import ShardId

    try:
        wanted = ShardId.parse(shard)
    except ValueError:
        raise UnbrokenError(f"{shard!r} is not a shard; write SEGMENT.NUMBER, as `unbroken status` does") from None
    with _coordinated(flow_name, directory) as (client, flow):
        operations.reinit(client, flow, wanted, node_name)
        if wait_s:
            operations.wait_redundant(client, flow, wanted, wait_s, click.echo)


@cli.command()
@click.option("--name", help="Name of the node; its host name and process number by default.")
@click.option("--flow", "file", required=True, type=click.Path(path_type=Path), help="The flow's file.")
@click.option("--zookeeper", required=True, help="HOST:PORT of the ZooKeeper the flow uses.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Where the node keeps its state; .unbroken/FLOW/NAME by default.",
)
@click.option("--token-file", type=click.Path(path_type=Path), help="The flow's token (or UNBROKEN_TOKEN).")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind and to be reached at.")
@click.option("--port", default=0, show_default=True, help="Port for the other nodes; 0 picks a free one.")
@click.option("--nodes", type=int, help="Number of nodes of the flow, if not the number in the file.")
@click.option("--spark-master", help="Spark master URL; the node's own cores by default.")
@click.option("--standby", is_flag=True, help="Begin with nothing to do, ready to take replicas that lose their node.")
def node(
    name: str | None,
    file: Path,
    zookeeper: str,
    directory: Path | None,
    token_file: Path | None,
    host: str,
    port: int,
    nodes: int | None,
    spark_master: str | None,
    standby: bool,
) -> None:
    """Join a node to a flow, on this machine or another one.

    Example: unbroken node --zookeeper zk1:2181 --flow my_flow.py --host 10.0.0.7 --token-file token
    """
    import socket

    from unbroken.cluster.node_main import NodeOptions, run_node
    from unbroken.transport.auth import read_token

    logging.basicConfig(
        level=os.environ.get("UNBROKEN_LOG", "INFO"), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for chatty in ("kazoo", "py4j"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    token = os.environ.get("UNBROKEN_TOKEN") or (read_token(token_file) if token_file else "")
    if not token:
        raise UnbrokenError("the flow's token is needed: give --token-file, or set UNBROKEN_TOKEN")
    options = NodeOptions(
        name=name or f"{socket.gethostname()}-{os.getpid()}",
        flow_file=file,
        zookeeper=zookeeper,
        directory=directory,
        token=token,
        host=host,
        port=port,
        nodes=nodes,
        spark_master=spark_master,
        standby=standby,
    )
    try:
        run_node(options)
    except UnbrokenError:
        raise
    except Exception as error:
        what = (str(error).splitlines() or [""])[0]
        logging.getLogger("unbroken").critical("%s ends: %s: %s", options.name, type(error).__name__, what)
        raise


@cli.command()
@click.option("--out", "directory", type=click.Path(path_type=Path), default=Path("build/demo"), show_default=True)
@click.option("--rate", default=2_000, show_default=True, help="Packets per second.")
@click.option("--seconds", default=70, show_default=True, help="Length of the packet stream.")
@click.option("--no-kill", is_flag=True, help="Leave all nodes alive.")
def demo(directory: Path, rate: int, seconds: int, no_kill: bool) -> None:
    """Run the network-monitoring flow on three nodes, kill one, and show that nobody downstream notices."""
    from unbroken.demo.runner import run_demo

    sys.exit(run_demo(directory, rate=rate, seconds=seconds, kill=not no_kill, console=out))


@cli.command()
@click.option("--seeds", default="1-30", show_default=True, help="Schedules to run, as 17, 1-30 or 1-3,8.")
@click.option("--length", "length_s", default=45.0, show_default=True, help="Seconds in which faults begin.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), default=Path("build/chaos"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per run and one for the campaign.")
def chaos(seeds: str, length_s: float, directory: Path, as_json: bool) -> None:
    """Run a flow through seeded schedules of real faults and check every result.

    Example: unbroken chaos --seeds 17
    """
    from unbroken.chaos.campaign import parse_seeds, run_campaign

    passed = run_campaign(
        parse_seeds(seeds),
        directory,
        length_s,
        click.echo if as_json else lambda _: None,
        lambda text: errors.print(text, highlight=False, markup=False, soft_wrap=True),
    )
    sys.exit(0 if passed else EXIT_FAILED)


@cli.group()
def bench() -> None:
    """Measure Unbroken on this machine."""


@bench.command("core")
@click.option("--seconds", default=40, show_default=True, help="Length of each latency measurement.")
@click.option("--warm-up", default=20, show_default=True, help="Seconds of it that are left out at the start.")
@click.option("--rows", default=12_000_000, show_default=True, help="Rows of each saturation measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON at the end.")
def bench_core(seconds: int, warm_up: int, rows: int, as_json: bool) -> None:
    """Plain Structured Streaming, one replica and two replicas, on the same query and rows in one run."""
    from unbroken.bench.core import CoreSettings, run_core

    settings = CoreSettings(latency_seconds=seconds, warm_up_seconds=warm_up, saturation_rows=rows)
    result = run_core(settings, lambda text: errors.print(text, highlight=False, markup=False))
    click.echo(json.dumps(result) if as_json else json.dumps(result, indent=2))


@bench.command("recovery")
@click.option("--sizes", default="10,100", show_default=True, help="Megabytes of state, one measurement each.")
@click.option("--rate", default=10_000, show_default=True, help="Rows per second meanwhile.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON at the end.")
def bench_recovery(sizes: str, rate: int, as_json: bool) -> None:
    """Kill a node of two with a warm standby: time until redundancy is back, bytes moved, latency meanwhile."""
    from unbroken.bench.recovery import RecoverySettings, run_recovery

    settings = RecoverySettings(sizes=[int(float(size) * 1e6) for size in sizes.split(",")], rate=rate)
    result = run_recovery(settings, lambda text: errors.print(text, highlight=False, markup=False))
    click.echo(json.dumps(result) if as_json else json.dumps(result, indent=2))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what Spark and its JVM write to stderr off the screen: the command's own words are what is asked for."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _coordinated(flow_name: str | None, directory: Path | None) -> Iterator[tuple[Any, str]]:
    """A session with the ZooKeeper of a run, and the flow's name."""
    from unbroken.cluster.documents import connect

    info = _find_run(flow_name, directory)
    client = connect(info.zookeeper, 10, ANSWER_DEADLINE_S)
    try:
        yield client, info.flow
    finally:
        client.stop()
        client.close()


def _find_run(flow_name: str | None, directory: Path | None) -> Any:
    """The run named on the command line, or the only one below ./.unbroken."""
    from unbroken.cluster.launcher import RUN_FILE, RunInfo

    if directory is not None:
        return RunInfo.read(directory)
    if flow_name is not None:
        return RunInfo.read(Path(".unbroken") / flow_name)
    found = sorted(path.parent for path in Path(".unbroken").glob(f"*/{RUN_FILE}"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UnbrokenError(f"which flow? Runs below ./.unbroken: {names}. Name one, or give --dir.")
    return RunInfo.read(found[0])


def main() -> None:
    """Entry point of the ``unbroken`` command."""
    cli()
