"""Commands that look at a flow: ``status``, ``topology`` and ``history``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unbroken.cli.command import command
from unbroken.cli.completion import complete_flow_or_file
from unbroken.cli.shared import ANSWER_DEADLINE_S, AS_JSON, EXIT_DEGRADED, Run, on_run, out, run_options
from unbroken.errors import Unreachable

if TYPE_CHECKING:
    from unbroken.cli.drawing import Drawing
    from unbroken.observe.status_reader import StatusReader

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
def status(run: Run, watch: bool, check: bool, as_json: bool) -> None:
    """Show how a running flow is: redundancy, lag, latency, nodes and replicas.

    Redundancy is the first thing to look at: while every shard has all its replicas, any node may be lost. A shard
    that is short of replicas says since when, and how many are on the way. With --check, a source, an ingress or a sink
    that makes no progress, and a sink that has stopped, are reasons for exit code 5, too.
    """
    from unbroken.local.terminal import status_view
    from unbroken.observe.status_reader import StatusReader
    from unbroken.observe.summary import summarize

    place = run.place().named()
    with StatusReader(place.zookeeper, place.flow, place.token(), ANSWER_DEADLINE_S) as reader:
        while True:
            states = reader.read()
            if not states:
                raise Unreachable(f"ZooKeeper at {place.zookeeper} knows no node of flow {place.flow}; does it run?")
            summary = summarize(states)
            if as_json:
                click.echo(json.dumps(_status(place.flow, states, summary.to_json(), reader)))
            else:
                if watch:
                    out.clear()
                out.print(status_view(place.flow, states, zookeeper_away=reader.directory.away))
            if not watch:
                break
            try:
                time.sleep(LOOK_S)
            except KeyboardInterrupt:
                break
    if check and not summary.well:
        raise SystemExit(EXIT_DEGRADED)


def _status(flow: str, states: list[dict[str, Any]], summary: dict[str, Any], reader: StatusReader) -> dict[str, Any]:
    now_ms = int(time.time() * 1000)
    away = reader.directory.away
    return {"flow": flow, "time_ms": now_ms, "zookeeper_away": away, "summary": summary, "nodes": states}


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
def topology(run: Run, as_dot: bool, as_json: bool) -> None:
    """Show what a flow consists of and how its parts hang together.

    FLOW is the name of a running flow, FILE one that declares a flow: Python, or an operator network in YAML. Of a
    running flow it also shows which replica is on which node, and how it is.
    """
    from unbroken.cli.drawing import dot, tree

    name = run.flow_name
    drawing = _declared(Path(name)) if name is not None and _is_file(name) else _running(run)
    if as_json:
        click.echo(json.dumps(drawing.to_json()))
    elif as_dot:
        click.echo(dot(drawing))
    else:
        out.print(tree(drawing), highlight=False)


def _is_file(name: str) -> bool:
    return name.endswith(FLOW_FILES) or Path(name).is_file()


def _declared(file: Path) -> Drawing:
    from unbroken.cli.drawing import Drawing
    from unbroken.flow.plan import build_topology, load_flow
    from unbroken.node.status import flow_shape

    flow = load_flow(file)
    return Drawing.of(flow_shape(flow.name, build_topology(flow)))


def _running(run: Run) -> Drawing:
    from unbroken.cli.drawing import Drawing
    from unbroken.observe.status_reader import StatusReader

    place = run.place().named()
    with StatusReader(place.zookeeper, place.flow, place.token(), ANSWER_DEADLINE_S) as reader:
        states = reader.read()
        layout = reader.directory.layout
    if layout is None or not any("flow" in state for state in states):
        raise Unreachable(f"no node of flow {place.flow} says yet what it consists of; try again in a moment")
    return Drawing.running(states, layout)


@command(
    examples=[
        ("unbroken history", "everything that is remembered, oldest first"),
        ("unbroken history --last 20 --follow", "the end of it, and what comes"),
        ("unbroken history --json | jq -r .sentence", "one JSON object per line"),
    ]
)
@on_run
@click.option("--last", type=click.IntRange(min=0), help="Only so many of the latest sentences.")
@click.option("--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def history(run: Run, last: int | None, follow: bool, as_json: bool) -> None:
    """Tell what happened to a running flow, in sentences.

    Every loss, every replica that was built again, every order of an operator leaves one. The latest thousand are kept.
    """
    from unbroken.coordination.documents import read_history

    with run.coordinated() as (client, flow):
        entries = read_history(client, flow)
        told = {_identity(entry) for entry in entries}
        _tell(_latest(entries, last), as_json)
        while follow:
            try:
                time.sleep(LOOK_S)
            except KeyboardInterrupt:
                return
            news = [entry for entry in read_history(client, flow) if _identity(entry) not in told]
            told |= {_identity(entry) for entry in news}
            _tell(news, as_json)


def _latest(entries: list[dict[str, Any]], last: int | None) -> list[dict[str, Any]]:
    if last is None:
        return entries
    return entries[-last:] if last else []


def _identity(entry: dict[str, Any]) -> tuple[int, str, str]:
    return int(entry["time_ms"]), str(entry["node"]), str(entry["sentence"])


def _tell(entries: list[dict[str, Any]], as_json: bool) -> None:
    for entry in entries:
        when = time.strftime("%H:%M:%S", time.localtime(entry["time_ms"] / 1000))
        click.echo(json.dumps(entry) if as_json else f"{when} {entry['node']}: {entry['sentence']}")
