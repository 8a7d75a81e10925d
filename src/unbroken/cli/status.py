"""Commands that look at a flow: ``status``, ``topology`` and ``history``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unbroken.cli.command import command
from unbroken.cli.completion import complete_flow_or_file
from unbroken.cli.shared import ANSWER_DEADLINE_S, AS_JSON, EXIT_DEGRADED, NamedRun, on_run, out, run_options
from unbroken.errors import Unreachable

if TYPE_CHECKING:
    from unbroken.cli.drawing import Drawing
    from unbroken.protocol.values.notices import Reported

LOOK_S = 1.0
FLOW_FILES = (".py", ".yaml", ".yml")


@command(
    examples=[
        ("unbroken status", "the only local run below ./.unbroken"),
        ("unbroken status clicks --watch", "keep showing it, until Ctrl-C"),
        ("unbroken status --check || echo look", "exit code 5 unless all is as it should be"),
        ("unbroken status --json | jq '.nodes[].pid'", "everything that the nodes say, for programs"),
        ("unbroken status clicks --zookeeper zk1:2181 --token-file token", "a flow on other machines"),
    ]
)
@on_run
@click.option("--watch", is_flag=True, help="Keep showing the status, once a second.")
@click.option("--check", is_flag=True, help="Exit with 5 if the flow is not redundant, or anything else is wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --watch, one per line.")
def status(run: NamedRun, watch: bool, check: bool, as_json: bool) -> None:
    """Show how a running flow is: redundancy, lag, latency, nodes and replicas.

    Redundancy is the first thing to look at: while every shard has all its replicas, any node may be lost. A shard
    that is short of replicas says since when, and how many are on the way. With --check, a source, an ingress or a sink
    that makes no progress, and a sink that has stopped, are reasons for exit code 5, too.
    """
    from unbroken.local.terminal import status_view
    from unbroken.observe.status.codec import encode
    from unbroken.observe.status.reader import StatusReader
    from unbroken.observe.status.summary import flow_status

    place = run.place().named()
    with StatusReader(place.zookeeper, place.flow, place.token(), ANSWER_DEADLINE_S) as reader:
        while True:
            states = reader.read()
            if not states:
                raise Unreachable(f"ZooKeeper at {place.zookeeper} knows no node of flow {place.flow}; does it run?")
            away, now_ms = reader.directory.away, int(time.time() * 1000)
            found = flow_status(place.flow, states, zookeeper_away=away, time_ms=now_ms)
            if as_json:
                click.echo(encode(found))
            else:
                if watch:
                    out.clear()
                out.print(status_view(place.flow, states, zookeeper_away=away))
            if not watch:
                break
            try:
                time.sleep(LOOK_S)
            except KeyboardInterrupt:
                break
    if check and not found.summary.well:
        raise SystemExit(EXIT_DEGRADED)


@command(
    examples=[
        ("unbroken topology", "the running flow: parts, shards, and replicas on their nodes"),
        ("unbroken topology clicks.py", "what a file declares, without running it"),
        ("unbroken topology clicks.py --dot | dot -Tsvg > clicks.svg", "a picture, if Graphviz is installed"),
    ]
)
@run_options("[FLOW|FILE]", complete_flow_or_file)
@click.option("--dot", "as_dot", is_flag=True, help="Print it for Graphviz.")
@AS_JSON
def topology(run: NamedRun, as_dot: bool, as_json: bool) -> None:
    """Show what a flow consists of and how its parts hang together.

    FLOW is the name of a running flow, FILE one that declares a flow: Python, or an operator network in YAML. Of a
    running flow it also shows which replica is on which node, and how it is.
    """
    from unbroken.cli.drawing import dot, tree
    from unbroken.observe.status.codec import encode

    name = run.flow_name
    drawing = _declared(Path(name)) if name is not None and _is_file(name) else _running(run)
    if as_json:
        click.echo(encode(drawing.status()))
    elif as_dot:
        click.echo(dot(drawing))
    else:
        out.print(tree(drawing), highlight=False)


def _is_file(name: str) -> bool:
    return name.endswith(FLOW_FILES) or Path(name).is_file()


def _declared(file: Path) -> Drawing:
    from unbroken.cli.drawing import Drawing
    from unbroken.flow.loading import load_flow
    from unbroken.flow.plan import build_topology
    from unbroken.observe.status.shape import flow_shape

    flow = load_flow(file)
    return Drawing(flow_shape(flow.name, build_topology(flow)))


def _running(run: NamedRun) -> Drawing:
    from unbroken.cli.drawing import Drawing
    from unbroken.observe.status.reader import StatusReader

    place = run.place().named()
    with StatusReader(place.zookeeper, place.flow, place.token(), ANSWER_DEADLINE_S) as reader:
        states = reader.read()
        layout = reader.directory.layout
    if layout is None or not any(state.flow is not None for state in states):
        raise Unreachable(f"no node of flow {place.flow} says yet what it consists of; try again in a moment")
    return Drawing.running(states, layout)


@command(
    examples=[
        ("unbroken history", "everything that is remembered, oldest first"),
        ("unbroken history --last 20 --follow", "the end of it, and what comes"),
        ("unbroken history --json | jq -r .text", "one JSON object per line"),
    ]
)
@on_run
@click.option("--last", type=click.IntRange(min=0), help="Only so many of the latest notices.")
@click.option("--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def history(run: NamedRun, last: int | None, follow: bool, as_json: bool) -> None:
    """Print what happened to a running flow.

    Every loss, every replica that was rebuilt, every request of an operator leaves a notice; --json has its kind,
    severity and fields. The latest thousand are kept.
    """
    from unbroken.coordination.documents import read_history

    with run.coordinated() as (client, flow):
        entries = read_history(client, flow)
        told = set(entries)
        _tell(_latest(entries, last), as_json)
        while follow:
            try:
                time.sleep(LOOK_S)
            except KeyboardInterrupt:
                return
            news = [entry for entry in read_history(client, flow) if entry not in told]
            told |= set(news)
            _tell(news, as_json)


def _latest(entries: list[Reported], last: int | None) -> list[Reported]:
    if last is None:
        return entries
    return entries[-last:] if last else []


def _tell(entries: list[Reported], as_json: bool) -> None:
    import msgspec

    from unbroken.local.announcements import line
    from unbroken.observe.status.notices import reported_notice

    for entry in entries:
        click.echo(msgspec.json.encode(reported_notice(entry)).decode() if as_json else line(entry))
