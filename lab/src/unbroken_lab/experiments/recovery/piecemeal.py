"""`unbroken bench piecemeal`: a node dies; are results of shards that did not live on it later while it is replaced?

Four shards with two replicas each live on four nodes, so every node hosts two shards and spares the other two. The
node that is killed has no part in the ingress, which feeds all shards alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import ge
from typing import TYPE_CHECKING, Any, ClassVar

from unbroken.errors import UnbrokenError
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken_lab.experiments.bars import draw_bars
from unbroken_lab.experiments.experiment import (
    Experiment,
    ReportClaim,
    ReportColumn,
    Row,
    Rows,
    Size,
    aimed,
    flat,
    none_of,
    number,
    parameter,
    seen,
)
from unbroken_lab.experiments.observation.figures import STEADY_S, compare_shards
from unbroken_lab.experiments.observation.observed import END_SLACK_S, START_S, Say, observed
from unbroken_lab.experiments.parameters.rows import PAYLOAD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NODES = 4
SHARDS = 4
SEGMENT = "latest"
WARM_UP_S = 45.0
"""Time from the first result until eight queries that share a small machine are compiled."""

RESTORE_S = 90.0
"""Time for which rows come after the kill; redundancy has to be back before its end."""

QUICK_SIZE, QUICK_RATE, QUICK_WARM_UP_S = 0.1, 500, 5.0
UNAFFECTED, AFFECTED = "unaffected", "affected"


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


@dataclass(frozen=True)
class Piecemeal(Experiment):
    """One run with one kill; a row for the shards that the killed node hosted, and one for the others."""

    name = "piecemeal"
    title = "A node is killed: results of shards that it hosted, and of those that it did not"
    source = "unbroken bench piecemeal"
    columns: ClassVar = (
        ReportColumn("shards", "shards"),
        ReportColumn("latency_ms.before.p99", "p99 before", " ms", 0),
        ReportColumn("latency_ms.during.p99", "p99 during", " ms", 0),
        ReportColumn("latency_ms.before.max", "largest before", " ms", 0),
        ReportColumn("latency_ms.during.max", "largest during", " ms", 0),
        ReportColumn("pulse_ms.before", "pulse", " ms", 0),
        ReportColumn("gap_ms.during", "longest gap", " ms", 0),
        ReportColumn("restored_s", "redundant again", " s", 1),
        ReportColumn("lost", "lost", digits=0),
        ReportColumn("duplicated", "duplicated", digits=0),
    )

    size: float = parameter(10.0, "Megabytes of state in all four shards.")
    rate: int = parameter(4_000, "Rows per second.")
    pulse_ms: int = parameter(1_000, "Shortest pulse in milliseconds.")

    def scale(self, size: Size) -> str:
        return (
            f"{NODES} nodes on one machine, {SHARDS} shards with two replicas, {self.size:g} MB of state, "
            f"{self.rate:,} rows/s, pulses of at least {self.pulse_ms} ms"
        )

    def cases(self, size: Size) -> Sequence[Row]:
        return [{"state_mb": QUICK_SIZE if size.quick else self.size}]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        keys, rate = max(SHARDS, int(float(case["state_mb"] or 0) * 1e6) // PAYLOAD), self.rate
        if size.quick:
            rate = QUICK_RATE
        steady_after_s = max(size.of(WARM_UP_S, QUICK_WARM_UP_S), keys / rate)
        seconds = int(START_S + steady_after_s + STEADY_S + RESTORE_S)
        load = {"KEYS": keys, "RATE": rate, "SECONDS": seconds, "PULSE_MS": self.pulse_ms}
        with observed("stateful.py", {**load, "SHARDS": SHARDS, "NODES": NODES, "STANDBYS": 0}) as run:
            time.sleep(steady_after_s + STEADY_S)
            victim = choose_victim(run.layout())
            killed_ms = run.kill(victim.node)
            say(f"{victim.node} killed, which hosted shards {sorted(victim.affected)} of {SHARDS}")
            restored_ms = run.await_redundancy(victim.node, RESTORE_S)
            moved, story = run.state_moved(), run.story()
            say(f"redundant again after {(restored_ms - killed_ms) / 1000:.1f} s")
            run.await_end(seconds + END_SLACK_S)
        shared: dict[str, Any] = {
            "killed": victim.node,
            "restored_s": round((restored_ms - killed_ms) / 1000, 2),
            "bytes_moved": moved,
            "lost": run.reader.lost(rate * seconds),
            "duplicated": run.reader.duplicated,
            "story": story,
        }
        groups = {UNAFFECTED: victim.unaffected, AFFECTED: victim.affected}
        return [
            flat(
                {
                    "shards": name,
                    "numbers": ",".join(map(str, sorted(shards))),
                    **compare_shards(run.reader.by_shard, shards, killed_ms, restored_ms),
                    **shared,
                }
            )
            for name, shards in groups.items()
        ]

    def draw(self, rows: Rows, figure: Figure) -> None:
        phases = {"latency_ms.before.p99": "before the kill", "latency_ms.during.p99": "until redundant again"}
        draw_bars(figure.subplots(), rows, "shards", phases, "p99 of the latency in ms")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        out: list[ReportClaim] = []
        for row in rows:
            pulse_ms = number(row, "pulse_ms.before") or 0.0
            for figure, what in (("p99", "p99"), ("max", "largest latency")):
                change_ms = number(row, f"change_ms.{figure}")
                claim = f"{row['shards']} shards: growth of {what} until redundancy is back"
                if row["shards"] == UNAFFECTED:
                    aim = f"at most a pulse ({pulse_ms:.0f} ms)"
                    out.append(aimed(claim, aim, change_ms, partial(ge, pulse_ms), " ms"))
                else:
                    out.append(seen(claim, "unknown" if change_ms is None else f"{change_ms:,.1f} ms"))
        return [*out, none_of(rows[:1], "lost", "duplicated")]
