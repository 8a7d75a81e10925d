"""The command that continues a flow whose ZooKeeper has lost its data: ``adopt``."""

from __future__ import annotations

import click

from unbroken.cli.command import command
from unbroken.cli.shared import AS_JSON, NamedRun, answer, on_run, say


@command(
    examples=[
        ("unbroken adopt totals", "continue the run that is on the disks of its nodes"),
        ("unbroken adopt totals --zookeeper zk1:2181 --token-file token", "the same for a flow on other machines"),
        ("unbroken adopt totals --without node-3", "without the disk of node-3, which is lost"),
    ]
)
@on_run
@click.option(
    "--without", multiple=True, metavar="NODE", help="Continue without a node whose disk is lost. Repeatable."
)
@click.option("--wait", "wait_s", default=60.0, show_default=True, help="Seconds to wait for it; 0 does not wait.")
@AS_JSON
def adopt(run: NamedRun, without: tuple[str, ...], wait_s: float, as_json: bool) -> None:
    """Continue a flow whose ZooKeeper has lost its data, from the disks of its nodes.

    Start the nodes on their directories first; they wait, and announce what their disks hold. All nodes that the last
    layout places a replica on have to be present, unless --without leaves one out; rows that only that one had accepted
    are lost then. Nothing is published if disks of different runs are present, or if a shard is on no disk.
    """
    from unbroken.cli.progress import WaitDisplay
    from unbroken.operations import adopt as adopting

    with run.coordinated() as (client, flow):
        decided = adopting.adopt(client, flow, without)
        layout = decided.layout
        say(f"run {layout.run} continues with layout {layout.version}, from the disks of {', '.join(decided.disks)}")
        if decided.lost:
            say(f"to be rebuilt: {', '.join(str(replica) for replica in decided.lost)}")
        if wait_s:
            with WaitDisplay("nodes take their places") as waiting:
                adopting.wait_adopted(client, flow, decided, wait_s, waiting.show)
    text = f"run {layout.run} of {flow} continues" if wait_s else f"run {layout.run} of {flow} is adopted"
    facts = {
        "run": layout.run,
        "layout_version": layout.version,
        "nodes": sorted(layout.nodes),
        "rebuilt": [str(replica) for replica in decided.lost],
    }
    answer(as_json, text, flow=flow, **facts, leader=decided.sync.leader)
