"""What an operator may ask of a running flow: to leave a node, to build a replica again.

The wish becomes a document; the controller does the rest, and here it is only watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from unbroken.coordination.documents import read_history, read_layout, read_members, root_of
from unbroken.errors import DeadlinePassed, Refused
from unbroken.observe.notices import text_of
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import Layout
from unbroken.wording import counted

LOOK_S = 0.3


@dataclass(frozen=True)
class RequestStage:
    """How far something is that was asked for: so many of so many steps."""

    what: str
    done: int = 0
    total: int = 0


Show = Callable[[RequestStage], None]


def _unseen(stage: RequestStage) -> None:
    """Nobody watches."""


def drain(client: KazooClient, flow: str, node: NodeId) -> None:
    """Ask for ``node`` to be left; raises UnbrokenError if its replicas could go nowhere."""
    layout = current_layout(client, flow)
    if node not in layout.nodes:
        raise Refused(f"flow {flow} has no node {node!r}; its nodes: {', '.join(sorted(layout.nodes))}")
    left = set(read_members(client, flow)) - layout.draining - {node}
    most = max((len(layout.full(shard)) for shard in {replica.shard for replica in layout.placement}), default=0)
    if len(left) < most:
        raise Refused(
            f"{node} cannot be drained: a shard has {most} replicas, each on a node of its own, and only {len(left)} "
            "nodes would be left. Start another one first with `unbroken node`."
        )
    _create(client, f"{root_of(flow)}/draining/{node}")


def undo_drain(client: KazooClient, flow: str, node: NodeId) -> None:
    """Let ``node`` be used again."""
    try:
        client.delete(f"{root_of(flow)}/draining/{node}")
    except NoNodeError:
        raise Refused(f"{node} is not being drained") from None


def reinit(client: KazooClient, flow: str, shard: ShardId, node: NodeId) -> ReplicaId:
    """Ask for the replica of ``shard`` on ``node`` to be built again from a peer; which one that is."""
    layout = current_layout(client, flow)
    replica = layout.replica_on(node, shard)
    if replica is None:
        places = ", ".join(layout.nodes_of(shard)) or "nowhere; shards: " + ", ".join(
            sorted({str(replica.shard) for replica in layout.placement})
        )
        raise Refused(f"{shard} has no replica on {node}; it is on {places}")
    if not layout.full(shard) - {replica}:
        raise Refused(
            f"{replica} is the only replica of {shard}: there is no peer to build it again from. Wait until the shard "
            "is redundant again (`unbroken status`)."
        )
    _create(client, f"{root_of(flow)}/renewed/{replica}")
    return replica


def wait_drained(
    client: KazooClient,
    flow: str,
    node: NodeId,
    deadline_s: float,
    tell: Callable[[str], None],
    show: Show = _unseen,
) -> None:
    """Wait until nothing is placed on ``node``."""
    total = len(current_layout(client, flow).hosted(node))

    def done(layout: Layout) -> bool:
        left = len(layout.hosted(node))
        show(RequestStage(f"{node} has {counted(left, 'replica')} left", max(0, total - left), total))
        return node in layout.draining and not left

    watch_layout(client, flow, done, deadline_s, tell, f"{node} to be drained")


def wait_renewed(
    client: KazooClient,
    flow: str,
    replica: ReplicaId,
    deadline_s: float,
    tell: Callable[[str], None],
    show: Show = _unseen,
) -> None:
    """Wait until ``replica`` is replaced and its shard has all its replicas."""
    shard = replica.shard

    def done(layout: Layout) -> bool:
        whole = shard not in layout.short_since and not layout.joining & layout.counted(shard)
        replaced = replica not in layout.placement
        what = f"{shard} is being built again" if replaced else f"{replica} is to be replaced"
        show(RequestStage(what, int(replaced) + int(replaced and whole), 2))
        return whole and replaced

    watch_layout(client, flow, done, deadline_s, tell, f"{shard} to be redundant again")


def watch_layout(
    client: KazooClient,
    flow: str,
    done: Callable[[Layout], bool],
    deadline_s: float,
    tell: Callable[[str], None],
    what: str,
) -> None:
    """Follow the history until the layout is as wanted; what the controller reports of that is written with it."""
    news = _News(client, flow, tell)
    deadline = time.monotonic() + deadline_s
    while not done(current_layout(client, flow)):
        news.pass_on()
        if time.monotonic() > deadline:
            raise DeadlinePassed(f"waited {deadline_s:.0f} s for {what}; it stays asked for, see `unbroken history`")
        time.sleep(LOOK_S)
    news.pass_on()


class _News:
    """The entries of a history that came after this was made, each passed on once."""

    def __init__(self, client: KazooClient, flow: str, tell: Callable[[str], None]) -> None:
        self._client, self._flow, self._tell = client, flow, tell
        self._known = set(read_history(client, flow))

    def pass_on(self) -> None:
        history = read_history(self._client, self._flow)
        for entry in history:
            if entry not in self._known:
                self._tell(text_of(entry.notice))
        # Not how many: a full history loses an old entry with each that is added.
        self._known = set(history)


def current_layout(client: KazooClient, flow: str) -> Layout:
    """The layout of a flow that has one."""
    layout = read_layout(client, flow)
    if layout is None:
        raise Refused(f"flow {flow} has not begun yet; wait until all its nodes are there")
    return layout


def _create(client: KazooClient, path: str) -> None:
    try:
        client.create(path, b"", makepath=True)
    except NodeExistsError:
        return
