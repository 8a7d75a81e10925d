"""`unbroken bench piecemeal`: a node dies; are results of shards that did not live on it later while it is replaced?

Four shards with two replicas each live on four nodes, so every node hosts two shards and spares the other two. The
node that is killed has no part in the ingress, which feeds all shards alike.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken_lab.experiments.figures import STEADY_S, compare_shards
from unbroken_lab.experiments.observed import END_SLACK_S, START_S, Say, observed
from unbroken_lab.experiments.rows import PAYLOAD

NODES = 4
SHARDS = 4
SEGMENT = "latest"
WARM_UP_S = 45.0
"""Time from the first result until eight queries that share a small machine are compiled."""

RESTORE_S = 90.0
"""Time for which the flow goes on after the kill; redundancy has to be back before its end."""


@dataclass(frozen=True)
class PiecemealSettings:
    """Bytes of payload in the state of all shards together, the load meanwhile, and the shortest pulse."""

    size: int = 10_000_000
    rate: int = 4_000
    pulse_ms: int = 1_000


@dataclass(frozen=True)
class Victim:
    """The node to kill, the shards of the segment that it hosts, and those that it does not."""

    node: str
    affected: frozenset[int]
    unaffected: frozenset[int]


def choose_victim(layout: Layout) -> Victim:
    """The node with most shards of the segment among those that are not part of the ingress."""
    hosted = {
        node: frozenset(replica.shard.index for replica in layout.hosted(node) if replica.shard.part == SEGMENT)
        for node in layout.nodes
        if node not in layout.nodes_of(INGRESS)
    }
    if not hosted:
        raise UnbrokenError("every node is part of the ingress; there is none to kill that is not")
    node = max(sorted(hosted), key=lambda name: len(hosted[name]))
    return Victim(node, hosted[node], frozenset(range(SHARDS)) - hosted[node])


def run_piecemeal(settings: PiecemealSettings, say: Say) -> dict[str, Any]:
    """One run with one kill."""
    keys = max(SHARDS, settings.size // PAYLOAD)
    steady_after_s = max(WARM_UP_S, keys / settings.rate)
    seconds = int(START_S + steady_after_s + STEADY_S + RESTORE_S)
    load = {"KEYS": keys, "RATE": settings.rate, "SECONDS": seconds, "PULSE_MS": settings.pulse_ms}
    say(f"starting {NODES} nodes with {SHARDS} shards")
    with observed("stateful.py", {**load, "SHARDS": SHARDS, "NODES": NODES, "STANDBYS": 0}) as run:
        time.sleep(steady_after_s + STEADY_S)
        victim = choose_victim(run.layout())
        killed_ms = run.kill(victim.node)
        say(f"{victim.node} killed, which hosted shards {sorted(victim.affected)} of {SHARDS}")
        restored_ms = run.await_redundancy(victim.node, RESTORE_S)
        moved, story = run.state_moved(), run.story()
        say(f"redundant again after {(restored_ms - killed_ms) / 1000:.1f} s")
        run.await_end(seconds + END_SLACK_S)
    by_shard = run.reader.by_shard
    return {
        "rate_per_s": settings.rate,
        "state_bytes": settings.size,
        "cores": os.cpu_count(),
        "nodes": NODES,
        "killed": victim.node,
        "restored_s": round((restored_ms - killed_ms) / 1000, 2),
        "bytes_moved": moved,
        "unaffected": compare_shards(by_shard, victim.unaffected, killed_ms, restored_ms),
        "affected": compare_shards(by_shard, victim.affected, killed_ms, restored_ms),
        "lost": run.reader.lost(settings.rate * seconds),
        "duplicated": run.reader.duplicated,
        "story": story,
    }
