"""The identity of a run: what tells the disks, documents and ledgers of one run of a flow from those of another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unbroken.protocol.values.ids import NodeId


@dataclass(frozen=True)
class RunIdentity:
    """One run of a flow, from its first layout on; ``id`` is never used for another.

    ``supersedes`` are the runs whose results an operator has allowed this one to add to: a sink's ledger that one of
    them has left is continued with the numbers of this run. A run that is superseded never lists its successor, so it
    cannot take a ledger back.
    """

    id: str
    supersedes: frozenset[str] = frozenset()


NO_RUN = RunIdentity("")
"""What a disk has that never took a layout."""

WAYS = (
    "To continue the run on the disks, give the --zookeeper it was started with, or, if that ZooKeeper has lost its "
    "data, run `unbroken adopt`; to begin anew, give each node an empty --dir (a local run: `unbroken run --fresh`)"
)
"""How an operator continues when disks and documents are not of the same run."""


def is_foreign(mine: str, theirs: str) -> bool:
    """Whether a node whose disk belongs to a run does not take a layout, because it is of another one."""
    return bool(mine) and mine != theirs


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
