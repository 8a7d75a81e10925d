"""`unbroken upgrade`: give a running flow other code for its segments, and watch it go over to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

from unbroken.coordination.documents import UPGRADE, UpgradeDocument, read_members, read_upgrade, root_of
from unbroken.errors import FlowError, Problem, Refused, UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.loading import load_text
from unbroken.flow.plan import build_topology
from unbroken.flow.program import Program, declares_the_same, differences, replaced_segments
from unbroken.node.replicas.programs import known_generations, read_program, write_program
from unbroken.observe.notices import text_of
from unbroken.operations.requests import RequestStage, Show, current_layout, watch_layout
from unbroken.protocol.values.ids import generation_of
from unbroken.protocol.values.layout import Layout


def propose(client: KazooClient, flow: str, file: Path) -> Program:
    """Ask for the flow to go over to the code in ``file``; what it will run as.

    Raises FlowError with everything that can be seen to be wrong before any node is asked.
    """
    layout = current_layout(client, flow)
    if len(layout.generations) > 1:
        raise Refused(
            f"flow {flow} is going over to generation {layout.generations[-1]} already; wait until `unbroken history` "
            "says that it has taken over, or withdraw it with `unbroken upgrade --undo`"
        )
    present = len(read_members(client, flow))
    most = max(len(layout.full(replica.shard)) for replica in layout.placement)
    if present < most:
        raise Refused(
            f"a shard has {most} replicas, each on a node of its own, and only {present} nodes are there: the code "
            "that comes could not be made as redundant. Start another node first with `unbroken node`."
        )
    if not file.is_file():
        raise FlowError([Problem(str(file), "there is no such file", "give the path of a flow's file")])
    text = file.read_text()
    running = read_program(client, flow, layout.generation)
    generation = max(known_generations(client, flow)) + 1
    # Of the two, only the operator's own file is executed: the other was read from ZooKeeper.
    after = load_text(file, text, generation)
    build_topology(after)
    problems = _problems(running, after, text)
    if problems:
        raise FlowError(problems)
    replaced = replaced_segments(after, running.text, text)
    if not replaced:
        raise Refused(f"{file} does not differ from generation {running.generation}, which runs already")
    program = running.followed_by(after, str(file.resolve()), text, generation, replaced)
    write_program(client, flow, program)
    path, wish = f"{root_of(flow)}/upgrade", UPGRADE.encode(UpgradeDocument(generation))
    try:
        client.create(path, wish)
    except NodeExistsError:
        client.set(path, wish)
    return program


def _problems(running: Program, after: Dataflow, text: str) -> list[Problem]:
    """What keeps a flow from going over to other code."""
    declared = running.declared
    if declared is None:
        what = f"generation {running.generation} does not say what it declares"
        return [Problem(after.where, what, "restart the nodes with the file that runs, and upgrade then")]
    if declared.fixed is None and declares_the_same(running.text, text, after):
        return []
    return differences(declared, after)


def withdraw(client: KazooClient, flow: str) -> None:
    """Take an upgrade back whose results do not count yet."""
    layout = current_layout(client, flow)
    if len(layout.generations) == 1:
        raise Refused(f"flow {flow} is not being upgraded; it runs generation {layout.generation} of its code")
    if layout.generation == layout.generations[-1]:
        raise Refused(
            f"the results of generation {layout.generation} count already; to go back, upgrade to the former file"
        )
    client.delete(f"{root_of(flow)}/upgrade")


def wait_upgraded(
    client: KazooClient,
    flow: str,
    generation: int,
    deadline_s: float,
    tell: Callable[[str], None],
    show: Show = lambda _: None,
) -> None:
    """Follow the history until ``generation`` has taken over; raises UnbrokenError if it is refused."""

    def done(layout: Layout) -> bool:
        refused = read_upgrade(client, flow).refused
        if refused is not None:
            raise UnbrokenError(text_of(refused))
        show(_stage(layout, generation))
        return layout.generations == (generation,)

    watch_layout(client, flow, done, deadline_s, tell, f"generation {generation} to take over")


def _stage(layout: Layout, generation: int) -> RequestStage:
    """How many replicas with the code that comes are ready; the last step is that its results count."""
    coming = [replica for replica in layout.placement if generation_of(replica.shard.part) == generation]
    ready = [replica for replica in coming if replica not in layout.joining]
    counts = layout.generation == generation
    what = "takes over" if counts else f"has {len(ready)} replicas ready"
    return RequestStage(f"generation {generation} {what}", len(ready) + counts, len(coming) + 1)
