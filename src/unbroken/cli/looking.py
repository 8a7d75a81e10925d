"""Commands that look at a running flow: ``status`` and ``history``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from unbroken.cli.shared import ANSWER_DEADLINE_S, coordinated, find_run, of_run, out


@click.command()
@of_run
@click.option("--watch", is_flag=True, help="Keep showing the status.")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
def status(flow_name: str | None, directory: Path | None, watch: bool, as_json: bool) -> None:
    """Show nodes, replicas, units and lag of a running flow.

    Example: unbroken status   or   unbroken status my-flow --watch
    """
    from unbroken.cluster.status_reader import StatusReader
    from unbroken.cluster.watch import status_view
    from unbroken.transport.auth import read_token

    info = find_run(flow_name, directory)
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


@click.command()
@of_run
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def history(flow_name: str | None, directory: Path | None, as_json: bool) -> None:
    """Tell what happened to a running flow, in sentences."""
    from unbroken.cluster.documents import read_history

    with coordinated(flow_name, directory) as (client, flow):
        entries = read_history(client, flow)
    for entry in entries:
        when = time.strftime("%H:%M:%S", time.localtime(entry["time_ms"] / 1000))
        line = json.dumps(entry) if as_json else f"{when} {entry['node']}: {entry['sentence']}"
        click.echo(line)
