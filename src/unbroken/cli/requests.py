"""Commands that ask a running flow for a change: ``drain``, ``reinit`` and ``upgrade``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from unbroken.cli.command import command
from unbroken.cli.completion import complete_node, complete_shard
from unbroken.cli.shared import AS_JSON, NamedRun, answer, on_run
from unbroken.errors import Refused
from unbroken.protocol.values.ids import generation_of

if TYPE_CHECKING:
    from unbroken.cli.progress import WaitDisplay
    from unbroken.operations.requests import RequestStage, Show

WAIT = click.option(
    "--wait", "wait_s", default=300.0, show_default=True, help="Seconds to wait for it; 0 does not wait."
)
NODE = click.argument("node_name", metavar="NODE", shell_complete=complete_node)


@command(
    examples=[
        ("unbroken drain node-2", "leave node-2, and wait until nothing is on it"),
        ("unbroken drain node-2 --wait 0", "only ask for it"),
        ("unbroken drain node-2 --undo", "let it be used again"),
    ]
)
@NODE
@on_run
@click.option("--undo", is_flag=True, help="Let the node be used again.")
@WAIT
@AS_JSON
def drain(node_name: str, run: NamedRun, undo: bool, wait_s: float, as_json: bool) -> None:
    """Move everything away from a node, so that it can be stopped without anybody noticing.

    Replacements of its replicas are built on other nodes first; each of its own is given up when its replacement has
    caught up. A node whose replicas could go nowhere is not drained.
    """
    from unbroken.cli.progress import WaitDisplay
    from unbroken.operations import requests as operations

    with run.coordinated() as (client, flow):
        facts = {"flow": flow, "node": node_name}
        if undo:
            operations.undo_drain(client, flow, node_name)
            answer(as_json, f"{node_name} may be used again", **facts, draining=False)
            return
        operations.drain(client, flow, node_name)
        if wait_s:
            with WaitDisplay(f"{node_name} is being drained") as waiting:
                operations.wait_drained(client, flow, node_name, wait_s, waiting.say, shown(waiting))
    text = f"{node_name} can be stopped" if wait_s else f"{node_name} is to be left; see unbroken status"
    answer(as_json, text, **facts, draining=True, drained=bool(wait_s))


@command(
    examples=[
        ("unbroken reinit totals.0 node-2", "build the replica of totals.0 on node-2 again"),
        ("unbroken reinit ingress.0 node-1", "the same for its part of the ingress"),
    ]
)
@click.argument("shard", shell_complete=complete_shard)
@NODE
@on_run
@WAIT
@AS_JSON
def reinit(shard: str, node_name: str, run: NamedRun, wait_s: float, as_json: bool) -> None:
    """Build the replica of a shard on a node again from one of its peers.

    For a replica whose files are damaged or whose state is in doubt. Its peers go on meanwhile; the last replica of a
    shard cannot be built again. SHARD is written as `unbroken status` does: SEGMENT.NUMBER.
    """
    from unbroken.cli.progress import WaitDisplay
    from unbroken.operations import requests as operations
    from unbroken.protocol.values.ids import ShardId

    try:
        wanted = ShardId.parse(shard)
    except ValueError:
        raise Refused(f"{shard!r} is not a shard; write SEGMENT.NUMBER, as `unbroken status` does") from None
    with run.coordinated() as (client, flow):
        replica = operations.reinit(client, flow, wanted, node_name)
        if wait_s:
            with WaitDisplay(f"{replica} is to be replaced") as waiting:
                operations.wait_renewed(client, flow, replica, wait_s, waiting.say, shown(waiting))
    text = f"{shard} is redundant again" if wait_s else f"{replica} on {node_name} is to be built again"
    answer(as_json, text, flow=flow, shard=shard, node=node_name, replaced=str(replica), done=bool(wait_s))


@command(
    examples=[
        ("unbroken upgrade totals_v2.py", "go over to this file, and wait until it has taken over"),
        ("unbroken upgrade totals_v2.py clicks", "the same for one of several flows"),
        ("unbroken upgrade --undo", "withdraw it, as long as its results do not count"),
    ]
)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@on_run
@click.option("--undo", is_flag=True, help="Withdraw an upgrade whose results do not count yet.")
@WAIT
@AS_JSON
def upgrade(file: Path | None, run: NamedRun, undo: bool, wait_s: float, as_json: bool) -> None:
    """Let a running flow go over to other code for its segments, without a pause.

    Segments whose code differs, and those behind them, run beside the old ones from a copy of their state until all of
    them are redundant; then the sinks turn to their results from one pulse to the next. Sources, sinks, settings and
    the shape of the flow have to stay as they are. Code that cannot go on with the state is refused, and the flow goes
    on as before. FILE is a Python file or an operator network in YAML.
    """
    from unbroken.cli.progress import WaitDisplay
    from unbroken.operations import upgrade as upgrading

    with run.coordinated() as (client, flow):
        if undo:
            upgrading.withdraw(client, flow)
            answer(as_json, "the upgrade is withdrawn", flow=flow, withdrawn=True)
            return
        if file is None:
            raise Refused("name the file with the code to go over to: unbroken upgrade FILE")
        program = upgrading.propose(client, flow, file)
        generation = program.generation
        parts = [part for part in program.topology.segments if generation_of(part) == generation]
        runs_as = f"generation {generation} runs as {', '.join(parts)}"
        if wait_s:
            with WaitDisplay(runs_as) as waiting:
                upgrading.wait_upgraded(client, flow, generation, wait_s, waiting.say, shown(waiting))
    text = f"generation {generation} has taken over" if wait_s else runs_as
    answer(as_json, text, flow=flow, generation=generation, parts=parts, done=bool(wait_s))


def shown(waiting: WaitDisplay) -> Show:
    """Show how far something is."""

    def show(stage: RequestStage) -> None:
        waiting.show(stage.what, stage.done, stage.total or None)

    return show
