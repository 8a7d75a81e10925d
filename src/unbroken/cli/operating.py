"""Commands that ask a running flow for a change: ``drain``, ``reinit`` and ``upgrade``."""

from __future__ import annotations

from pathlib import Path

import click

from unbroken.cli.shared import coordinated, of_run
from unbroken.errors import UnbrokenError
from unbroken.protocol.ids import generation_of

WAIT = click.option(
    "--wait", "wait_s", default=300.0, show_default=True, help="Seconds to wait for it; 0 does not wait."
)


@click.command()
@click.argument("node_name", metavar="NODE")
@of_run
@click.option("--undo", is_flag=True, help="Let the node be used again.")
@WAIT
def drain(node_name: str, flow_name: str | None, directory: Path | None, undo: bool, wait_s: float) -> None:
    """Move everything away from a node, so that it can be stopped without anybody noticing.

    Example: unbroken drain node-2
    """
    from unbroken.cluster import operations

    with coordinated(flow_name, directory) as (client, flow):
        if undo:
            operations.undo_drain(client, flow, node_name)
            return
        operations.drain(client, flow, node_name)
        if wait_s:
            operations.wait_drained(client, flow, node_name, wait_s, click.echo)
            click.echo(f"{node_name} can be stopped")


@click.command()
@click.argument("shard")
@click.argument("node_name", metavar="NODE")
@of_run
@WAIT
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
    with coordinated(flow_name, directory) as (client, flow):
        replica = operations.reinit(client, flow, wanted, node_name)
        if wait_s:
            operations.wait_renewed(client, flow, replica, wait_s, click.echo)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@of_run
@click.option("--undo", is_flag=True, help="Withdraw an upgrade whose results do not count yet.")
@WAIT
def upgrade(file: Path | None, flow_name: str | None, directory: Path | None, undo: bool, wait_s: float) -> None:
    """Let a running flow go over to other code for its segments, without a pause.

    Segments whose code differs, and those behind them, run beside the old ones from a copy of their state until all of
    them are redundant; then the sinks turn to their results from one pulse to the next. Sources, sinks, settings and
    the shape of the flow have to stay as they are. Code that cannot go on with the state is refused, and the flow goes
    on as before. FILE is a Python file or an operator network in YAML.

    Example: unbroken upgrade totals_v2.py
    """
    from unbroken.cluster import upgrading

    with coordinated(flow_name, directory) as (client, flow):
        if undo:
            upgrading.withdraw(client, flow)
            return
        if file is None:
            raise UnbrokenError("name the file with the code to go over to: unbroken upgrade FILE")
        program = upgrading.propose(client, flow, file)
        parts = ", ".join(part for part in program.topology.segments if generation_of(part) == program.generation)
        click.echo(f"generation {program.generation} runs as {parts}")
        if wait_s:
            upgrading.wait_upgraded(client, flow, program.generation, wait_s, click.echo)
            click.echo(f"generation {program.generation} has taken over")
