"""Commands that run flows: ``check``, ``run`` and ``node``."""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from unbroken.cli.command import command
from unbroken.cli.shared import AS_JSON, out, quiet
from unbroken.errors import Refused, UnbrokenError
from unbroken.security.secret import Secret, is_secret, mask_logs
from unbroken.wording import counted

if TYPE_CHECKING:
    from unbroken.flow.dataflow import Dataflow
    from unbroken.protocol.values.consistency import DelayBound
    from unbroken.protocol.values.layout import Topology
    from unbroken.protocol.values.strategy import Strategy

PORT = click.IntRange(0, 65_535)
FLOW_FILE = click.argument("file", type=click.Path(path_type=Path))
ADD_TO_SINKS = click.option(
    "--add-to-sinks", is_flag=True, help="Let a new run write to sinks that hold results of an earlier one."
)


@command(
    examples=[
        ("unbroken check flow.py", "exit code 0: it can be run; 2: refused, with reasons"),
        ("unbroken check flow.py --nodes 5", "for another number of nodes than in the file"),
        ("unbroken check network.yaml --json", "problems or schemas, for programs"),
    ]
)
@FLOW_FILE
@click.option("--nodes", type=int, help="Nodes the flow will run on, if not the number in the file.")
@AS_JSON
def check(file: Path, nodes: int | None, as_json: bool) -> None:
    """Say whether a flow can be run, and if not why and what to do.

    FILE is a Python file that declares a dataflow, or an operator network in YAML. Spark analyses every segment, and
    no rows are processed. What replicas could disagree on, such as clocks and randomness, is refused.
    """
    from unbroken.cli.progress import WaitDisplay
    from unbroken.flow.loading import load_flow
    from unbroken.flow.plan import build_topology
    from unbroken.flow.shard_keys import described
    from unbroken.spark.analysis.analysis import analyse
    from unbroken.spark.analysis.horizon import settled
    from unbroken.spark.session import start_session

    flow = load_flow(file)
    topology = build_topology(flow, nodes)
    with quiet() as screen, WaitDisplay("starting Spark", screen) as waiting:
        session = start_session("unbroken-check", flow.settings, "local[1]")
        try:
            waiting.show(f"Spark looks at {', '.join(topology.segments)}")
            analysis = analyse(flow, tuple(topology.segments), session)
            topology = settled(topology, analysis.horizons)
        finally:
            session.stop()
    if as_json:
        schemas = {name: schema.simpleString() for name, schema in analysis.schemas.items()}
        bounds = {name: msgspec.to_builtins(how) for name, how in topology.availability.items()}
        more: dict[str, Any] = {"availability": bounds, "tentative": _tentative(flow, topology)} if bounds else {}
        if analysis.shard_by:
            more["shard_by"] = {name: dict(columns) for name, columns in analysis.shard_by.items()}
        click.echo(json.dumps({"ok": True, "flow": flow.name, "schemas": schemas, **more}))
        return
    out.print(f"[bold green]ok[/] {flow.name}: {len(topology.streams)} streams", highlight=False, soft_wrap=True)
    for name, schema in analysis.schemas.items():
        segment = flow.segments.get(name)
        copies = "source" if segment is None else _copies(segment.shards, topology.strategy(name))
        copies += _bound(topology.availability[name]) if name in topology.availability else ""
        copies += f", {described(analysis.shard_by[name])}" if name in analysis.shard_by else ""
        out.print(f"  {name} ({copies}): {schema.simpleString()}", highlight=False, markup=False, soft_wrap=True)
    for name, shown in _tentative(flow, topology).items():
        sink = flow.sinks[name]
        what = "tentative results, which stable ones replace" if shown else "stable results only"
        kind = type(sink.connector).__name__
        out.print(f"  {name} ({kind}, takes {sink.input}): {what}", highlight=False, markup=False, soft_wrap=True)


def _tentative(flow: Dataflow, topology: Topology) -> dict[str, bool]:
    """The sinks of segments that go on without missing input, and whether they show tentative results."""
    taking = {name: sink for name, sink in flow.sinks.items() if sink.input in topology.availability}
    return {
        name: not _suspends(topology.availability[sink.input]) and (sink.connector.client or sink.connector.tentative)
        for name, sink in taking.items()
    }


def _suspends(how: DelayBound) -> bool:
    """Whether a segment waits for missing input all the same."""
    from unbroken.protocol.values.consistency import InputHandling

    return how.during_failure is how.during_stabilization is InputHandling.SUSPEND


def _bound(how: DelayBound) -> str:
    """How long a segment waits for missing input, and what it does then."""
    from unbroken.protocol.values.strategy import STATELESS
    from unbroken.spark.analysis.horizon import readable

    if _suspends(how):
        return ", waits for missing input"
    text = f", results within {readable(how.max_delay_ms)}"
    text += f", tentative after {readable(how.patience_ms)}: {how.during_failure.value} during a failure, "
    text += f"{how.during_stabilization.value} during stabilization, {how.reconcile.value}"
    if not how.rebuilt:
        return text
    clock = "" if how.timed else " by the time of cuts"
    reach = "no state" if how.horizon_ms == STATELESS else f"state of the last {readable(how.horizon_ms)}{clock}"
    return f"{text}, {reach}"


def _copies(shards: int, strategy: Strategy) -> str:
    """How many replicas a segment has, and what else keeps it available."""
    from unbroken.protocol.registry import Backups
    from unbroken.protocol.values.strategy import STATELESS, Ha
    from unbroken.spark.analysis.horizon import readable

    text = f"{counted(shards, 'shard')} x {counted(strategy.running, 'replica')}"
    if strategy.ha is Ha.ACTIVE:
        return text
    text += f", {strategy.ha.value}"
    if strategy.kept_by is Backups.HOLD:
        text += f", {strategy.backups} copies of the state, every {strategy.every} units"
    elif strategy.kept_by is Backups.NONE:
        text += ", waits for its node to return"
    elif strategy.rebuilt and strategy.horizon_ms == STATELESS:
        text += ", no state"
    elif strategy.rebuilt:
        clock = "" if strategy.timed else " by the time of cuts"
        text += f", state of the last {readable(strategy.horizon_ms)}{clock}"
    return text


@command(
    examples=[
        ("unbroken run flow.py", "state and logs go to .unbroken/FLOW; Ctrl-C ends it"),
        ("unbroken run flow.py --nodes 4 --standbys 1", "more nodes than the file says, and one in reserve"),
        ("unbroken run flow.py --fresh", "forget what an earlier run has left"),
        ("unbroken run flow.py --json > events.jsonl", "what happens, one JSON object per line"),
    ]
)
@FLOW_FILE
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where state and logs are kept.")
@click.option("--nodes", type=int, help="Local nodes to start, if not the number in the file.")
@click.option("--standbys", type=int, help="Idle local nodes to keep ready, if not the number in the file.")
@click.option("--fresh", is_flag=True, help="Delete what an earlier run left in the directory and start over.")
@ADD_TO_SINKS
@click.option(
    "--metrics-port",
    type=PORT,
    help="Port of the first node's metrics, from which the others count up; free ones by default.",
)
@click.option("--page-port", type=PORT, default=0, help="Port of the live page; a free one by default.")
@click.option("--no-page", is_flag=True, help="Do without the live page.")
@click.option("--demo", "demo_page", is_flag=True, help="Let the page kill and freeze nodes, to see what happens.")
@click.option("--json", "as_json", is_flag=True, help="Print what happens, one JSON object per line.")
def run(
    file: Path,
    directory: Path | None,
    nodes: int | None,
    standbys: int | None,
    fresh: bool,
    add_to_sinks: bool,
    metrics_port: int | None,
    page_port: int,
    no_page: bool,
    demo_page: bool,
    as_json: bool,
) -> None:
    """Run a flow on local nodes with an embedded ZooKeeper, until it ends or Ctrl-C.

    FILE is a Python file that declares a dataflow, or an operator network in YAML. Rows of console sinks are printed,
    and whatever happens to the nodes; a node that dies is started again. What an earlier run of the flow has left in
    the directory is gone on with, however that run ended.
    """
    from unbroken.cli.page import page_beside
    from unbroken.cli.progress import WaitDisplay
    from unbroken.flow.loading import load_flow
    from unbroken.local.announcements import JsonTeller, TextTeller
    from unbroken.local.launcher import LocalCluster
    from unbroken.local.terminal import by_run, follow, greet

    if no_page and demo_page:
        raise Refused("--demo is about the page, which --no-page does without: leave one of them out")
    teller = JsonTeller(click.echo) if as_json else TextTeller(out)
    flow = load_flow(file)
    where = directory or Path(".unbroken") / flow.name
    signal.signal(signal.SIGTERM, _interrupt)
    if metrics_port is None:
        metrics_port = flow.settings.metrics_port or 0
    told = {"fresh": fresh, "add_to_sinks": add_to_sinks}
    with LocalCluster(file, where, nodes=nodes, standbys=standbys, metrics_port=metrics_port, **told) as cluster:
        if cluster.resumed:
            teller.say("resumed", f"{flow.name}: going on with the run in {cluster.directory}")
        teller.say("starting", f"{flow.name}: logs are in {cluster.logs}", flow=flow.name, logs=str(cluster.logs))
        try:
            with WaitDisplay("starting") as waiting:
                cluster.start()
                cluster.wait_ready(
                    progress=waiting.show,
                    say=lambda notice: teller.news(by_run(notice)),
                )
            with page_beside(cluster, None if no_page else page_port, demo_page) as page:
                greet(cluster, teller, page)
                follow(cluster, teller)
        except KeyboardInterrupt:
            teller.say("stopping", "stopping")


def _interrupt(*_: object) -> None:
    """SIGTERM ends a run as Ctrl-C does, also where a shell has let SIGINT be ignored (``unbroken run FILE &``)."""
    raise KeyboardInterrupt


@command(
    examples=[
        (
            "unbroken node --zookeeper zk1:2181 --flow my_flow.py --host 10.0.0.7 --token-file token",
            "one node of the flow; start one on each machine",
        ),
        (
            "unbroken node --zookeeper zk1:2181 --flow my_flow.py --host 10.0.0.9 --token-file token --standby",
            "one in reserve, for replicas that lose their node",
        ),
    ]
)
@click.option("--name", help="Name of the node; its host name and process number by default.")
@click.option("--flow", "file", required=True, type=click.Path(path_type=Path), help="The flow's file, Python or YAML.")
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
@click.option(
    "--spark-conf",
    multiple=True,
    metavar="KEY=VALUE",
    help="A Spark setting of this node, in addition to those of the flow; a secret one as KEY=env:NAME or "
    "KEY=file:PATH. May be repeated.",
)
@click.option("--standby", is_flag=True, help="Begin with nothing to do, ready to take replicas that lose their node.")
@ADD_TO_SINKS
@click.option(
    "--route",
    "routes",
    multiple=True,
    envvar="UNBROKEN_ROUTES",
    metavar="NODE=HOST:PORT",
    help="Where this node reaches another one, if not at the address it announces (or UNBROKEN_ROUTES, with spaces "
    "between them). May be repeated.",
)
@click.option(
    "--metrics-port",
    type=PORT,
    help="Port for Prometheus and probes (/metrics, /ready, /live); 0 picks a free one. The flow's metrics_port by "
    "default, which is off.",
)
@click.option(
    "--push-port",
    type=PORT,
    default=0,
    show_default=True,
    help="Port for pushed rows, if a source takes them; 0 picks a free one.",
)
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
    spark_conf: tuple[str, ...],
    standby: bool,
    add_to_sinks: bool,
    routes: tuple[str, ...],
    metrics_port: int | None,
    push_port: int,
) -> None:
    """Join a node to a flow, on this machine or another one.

    The flow begins when as many nodes as its `nodes` setting says have joined. Started again with the same name and
    directory, a node goes on with what it had. It ends with SIGTERM; what happens is written to stderr.
    """
    import socket

    from unbroken.coordination.routes import Routes
    from unbroken.node.main import NodeOptions, run_node
    from unbroken.security.keys import check_token
    from unbroken.transport.auth import read_token

    logging.basicConfig(
        level=os.environ.get("UNBROKEN_LOG", "INFO"), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    mask_logs()
    for chatty in ("kazoo", "py4j"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    token = read_token(token_file) if token_file else os.environ.get("UNBROKEN_TOKEN", "")
    if not token:
        raise Refused("the flow's token is needed: give --token-file, or set UNBROKEN_TOKEN")
    check_token(token)
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
        spark=_pairs(spark_conf),
        standby=standby,
        add_to_sinks=add_to_sinks,
        routes=Routes.parse(routes),
        metrics_port=metrics_port,
        push_port=push_port,
    )
    try:
        run_node(options)
    except UnbrokenError:
        raise
    except Exception as error:
        what = (str(error).splitlines() or [""])[0]
        logging.getLogger("unbroken").critical("%s ends: %s: %s", options.name, type(error).__name__, what)
        raise


def _pairs(texts: tuple[str, ...]) -> dict[str, str | Secret]:
    """Settings that were given as KEY=VALUE."""
    for text in texts:
        if not text.partition("=")[0] or "=" not in text:
            raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE", param_hint="--spark-conf")
    return {key: _value(key, value) for key, _, value in (text.partition("=") for text in texts)}


def _value(key: str, value: str) -> str | Secret:
    """A Spark setting as it was given; the command line is public, so a secret is named by where it is."""
    if not is_secret(key):
        return value
    kind, colon, place = value.partition(":")
    if kind not in ("env", "file") or not colon or not place:
        what = f"{key} is secret and every user of this machine can read a command line"
        raise click.BadParameter(f"{what}. Write {key}=env:NAME or {key}=file:PATH.", param_hint="--spark-conf")
    return Secret(kind, place)
