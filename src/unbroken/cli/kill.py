"""``unbroken kill``: see for yourself what the loss of a node does to a local run."""

from __future__ import annotations

import click

from unbroken.cli.command import command
from unbroken.cli.completion import complete_node
from unbroken.cli.shared import AS_JSON, NamedRun, answer, run_options
from unbroken.errors import Refused

NEXT = {
    "kill": "watch results go on and the node come back: unbroken status --watch; then: unbroken history",
    "freeze": "it keeps its connections and does nothing: unbroken status --watch; let it go on with --thaw",
    "thaw": "it finds out what it missed: unbroken history",
}
"""What to look at after each fault."""

DONE = {"kill": "was killed", "freeze": "is frozen", "thaw": "goes on"}


@command(
    examples=[
        ("unbroken kill node-2", "kill -9, after a question"),
        ("unbroken kill node-2 --yes && unbroken status --watch", "and see what becomes of it"),
        ("unbroken kill node-1 --freeze --yes", "stop it in its tracks, as a machine that swaps does"),
        ("unbroken kill node-1 --thaw", "let it go on"),
    ]
)
@click.argument("node_name", metavar="NODE", shell_complete=complete_node)
@run_options(local=True)
@click.option("--freeze", "fault", flag_value="freeze", help="Stop the node's processes instead (SIGSTOP).")
@click.option("--thaw", "fault", flag_value="thaw", help="Let frozen processes go on (SIGCONT).")
@click.option("--yes", is_flag=True, help="Do not ask.")
@AS_JSON
def kill(node_name: str, run: NamedRun, fault: str | None, yes: bool, as_json: bool) -> None:
    """Kill a node of a local run with kill -9, to see that results go on.

    For demonstrations and trials: it works only where `unbroken run` was started, on nodes of that run. `unbroken run`
    starts a killed node again after a moment.
    """
    from unbroken.local.strikes import find_node, local_nodes
    from unbroken.testing.injection.by_hand import FaultsByHand

    what = fault or "kill"
    place = run.place()
    assert place.directory is not None, "a local run has a directory"
    directory = place.directory
    process = find_node(directory, node_name)
    if what != "thaw" and not yes:
        question = f"{what} {node_name} of {place.flow} (process {process.pid})?"
        if not click.confirm(question, err=True):
            raise Refused("not confirmed, so nothing was done")
    faults = FaultsByHand(lambda: local_nodes(directory))
    {"kill": faults.kill, "freeze": faults.freeze, "thaw": faults.thaw}[what](node_name)
    text = f"{node_name} {DONE[what]} (process {process.pid})\n{NEXT[what]}"
    answer(as_json, text, flow=place.flow, node=node_name, pid=process.pid, fault=what)
