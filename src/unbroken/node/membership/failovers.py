"""Counting what a flow has gone on without, by cause, and how long it took to be redundant again.

Each loss is counted once in the whole flow: a lost replica by the controller that takes it out of the layout, the lead
of the ingress by the node that takes it over. What was asked for (draining, building a replica again, an upgrade) is no
loss. The return of redundancy is counted by the controller that finds it, with the time since it was lost.
"""

from __future__ import annotations

import threading
from collections import Counter

from unbroken.observe.status.node import RecoveryCounts
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.placement.controller import Situation
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import INGRESS, Layout

NODE_LOST = "node_lost"
DISK_LOST = "disk_lost"
REPLICA_STOPPED = "replica_stopped"
OUT_OF_SYNC = "out_of_sync"
SUSPECTED = "suspected"
LEADER_LOST = "ingress_leader_lost"
CAUSES = (NODE_LOST, DISK_LOST, REPLICA_STOPPED, OUT_OF_SYNC, SUSPECTED, LEADER_LOST)


def losses(before: Layout, after: Layout, situation: Situation) -> Counter[str]:
    """Why replicas that counted are not in the layout any more."""
    out: Counter[str] = Counter()
    for replica in set(before.placement) - set(after.placement) - before.joining:
        cause = _cause(replica, before, situation)
        if cause is not None:
            out[cause] += 1
    return out


def _cause(replica: ReplicaId, before: Layout, situation: Situation) -> str | None:
    node = before.placement[replica]
    if node not in situation.present:
        return NODE_LOST
    if situation.present[node] != before.nodes.get(node):
        return DISK_LOST
    if replica in situation.stopped:
        return REPLICA_STOPPED
    if node in situation.draining or replica in situation.renewed:
        return None
    if replica.shard == INGRESS and situation.in_sync and node not in situation.in_sync:
        return OUT_OF_SYNC
    return SUSPECTED if node in situation.suspected else None


def recoveries_ms(before: Layout, after: Layout, now_ms: int) -> list[int]:
    """For how long each shard was short of replicas that is not any more; one that was taken away is no recovery."""
    whole = set(before.short_since) - set(after.short_since)
    there = {replica.shard for replica in after.placement}
    return [max(0, now_ms - before.short_since[shard]) for shard in sorted(whole & there)]


class Failovers:
    """The counts of one node, since it was started; safe to use from several threads."""

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._recoveries = 0
        self._recovering_ms = 0
        self._draining: frozenset[NodeId] = frozenset()
        self._sync: InSync | None = None

    def decided(self, before: Layout, after: Layout, situation: Situation) -> None:
        """This node has published a layout."""
        found, took_ms = losses(before, after, situation), recoveries_ms(before, after, situation.now_ms)
        with self._lock:
            self._counts.update(found)
            self._recoveries += len(took_ms)
            self._recovering_ms += sum(took_ms)

    def layout_changed(self, layout: Layout) -> None:
        with self._lock:
            self._draining = layout.draining

    def in_sync_changed(self, sync: InSync) -> None:
        """The in-sync set is read, perhaps again."""
        with self._lock:
            before = self._sync
            if before is not None and sync.version <= before.version:
                return
            self._sync = sync
            if before is None or sync.leader != self._me or before.leader == self._me:
                return
            if before.leader not in sync.members and before.leader not in self._draining:
                self._counts[LEADER_LOST] += 1

    def counts(self) -> dict[str, int]:
        """All causes, also those that have not occurred: a counter that begins with 1 is no increase to anybody."""
        with self._lock:
            return {cause: self._counts[cause] for cause in CAUSES}

    def recovered(self) -> RecoveryCounts:
        """How often a shard was redundant again, and the seconds for which it had not been, all together."""
        with self._lock:
            return RecoveryCounts(count=self._recoveries, seconds=self._recovering_ms / 1000)
