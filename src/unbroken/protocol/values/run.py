"""The identity of a run: what tells the disks, documents and ledgers of one run of a flow from those of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from unbroken.protocol.values.ids import NodeId


@dataclass(frozen=True)
class Run:
    """One run of a flow, from its first layout on; ``id`` is never used for another.

    ``supersedes`` are the runs whose results an operator has allowed this one to add to: a sink's ledger that one of
    them has left is continued with the numbers of this run. A run that is superseded never lists its successor, so it
    cannot take a ledger back.
    """

    id: str
    supersedes: frozenset[str] = frozenset()


NO_RUN = Run("")
"""What a disk has that never took a layout."""

WAYS = (
    "To continue the run on the disks, give the --zookeeper it was started with, or, if that ZooKeeper has lost its "
    "data, run `unbroken adopt`; to begin anew, give each node an empty --dir (a local run: `unbroken run --fresh`)"
)
"""How an operator continues when disks and documents are not of the same run."""


def foreign_layout(node: NodeId, mine: str, theirs: str) -> str | None:
    """Why a node does not take a layout: it is of another run than the node's disk. None if it may be taken."""
    if not mine or mine == theirs:
        return None
    return (
        f"the disk of {node} belongs to run {mine}, and ZooKeeper has the layout of run {theirs}; nothing was changed "
        f"or deleted. {WAYS}."
    )


def older_layout(node: NodeId, flow: str, taken: int, offered: int) -> str | None:
    """Why a node that starts does not take a layout of its run: it has taken a later one. None if it may be taken.

    ZooKeeper never forgets what it has acknowledged, unless its data are replaced by older ones.
    """
    if offered >= taken:
        return None
    return (
        f"ZooKeeper has layout {offered} of the run, and {node} has taken layout {taken}: the data of ZooKeeper are "
        f"older than the disks. Delete /unbroken/{flow} there, start all nodes, and run `unbroken adopt {flow}`."
    )


def unadopted(runs: Mapping[NodeId, str]) -> str | None:
    """Why no first layout is published: disks belong to a run whose documents are missing. None if none does."""
    owned = sorted((run, node) for node, run in runs.items() if run)
    if not owned:
        return None
    return f"no first layout: {disks_of_runs(owned)}, and ZooKeeper has no layout of it. {WAYS}."


def disks_of_runs(owned: Iterable[tuple[str, NodeId]]) -> str:
    """Which disks belong to which runs, in words."""
    by_run: dict[str, list[NodeId]] = {}
    for run, node in owned:
        by_run.setdefault(run, []).append(node)
    told = [
        f"{'the disk' if len(n) == 1 else 'disks'} of {', '.join(n)} belong{'s' if len(n) == 1 else ''} to run {run}"
        for run, n in by_run.items()
    ]
    return "; ".join(told)
