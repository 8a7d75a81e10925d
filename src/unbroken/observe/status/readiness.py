"""Whether a node does its share: its replicas are there and keep up.

For load balancers, rolling restarts and whoever waits for a node. That a node is not ready does not mean that results
wait: siblings of its replicas may well be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from unbroken.observe.status.flow import PartKind, StuckPart
from unbroken.observe.status.node import IngressStatus, JoinStatus, NodeStatus, ReplicaStatus, SinkStatus
from unbroken.protocol.repair.catchup import Phase
from unbroken.quantities import milliseconds

MAX_LAG_MS = 5_000.0
"""Lag up to which a replica counts as caught up, unless the question says otherwise: more than any pulse that a flow
with room settles at, and less than anybody would call an outage."""

STUCK_MS = 30_000.0
"""How long the ingress, a source or a sink may be at one piece of work. Systems that fail over are back before that."""


@dataclass(frozen=True)
class Lack:
    """One thing that is missing."""

    what: str
    why: str


@dataclass(frozen=True)
class Readiness:
    node: str
    max_lag_ms: float
    missing: tuple[Lack, ...] = ()

    @property
    def ready(self) -> bool:
        return not self.missing

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "ready": self.ready,
            "max_lag_seconds": self.max_lag_ms / 1000,
            "missing": [{"what": lack.what, "why": lack.why} for lack in self.missing],
        }


def max_lag_of(query: str) -> float:
    """The lag in ms that a question allows, as in ``max_lag=500ms``; ValueError if it cannot be understood."""
    allowed = MAX_LAG_MS
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "max_lag":
            raise ValueError(f"there is no parameter {name!r}; write for example /ready?max_lag=5s")
        allowed = float(milliseconds(value))
    return allowed


def readiness(status: NodeStatus, max_lag_ms: float = MAX_LAG_MS) -> Readiness:
    """Judge a node by its status."""
    node = status.node
    missing: list[Lack] = []
    if not status.running:
        missing.append(Lack(node, f"it is {status.state}: not all of its queries are started"))
    # One that has caught up is as good as the others, even if the controller has yet to say so.
    joining = {name: join for name, join in status.joining.items() if join.phase is not Phase.CAUGHT_UP}
    missing += [Lack(replica, _joins(join)) for replica, join in joining.items()]
    for replica in status.replicas:
        if replica.replica not in joining:
            missing += _lacks(replica, max_lag_ms)
    ingress = status.ingress
    if ingress is not None and node not in ingress.members and not any(r.startswith("ingress.") for r in joining):
        missing.append(Lack("ingress", "this node's part of the ingress is not in sync with the others"))
    missing += [Lack(part_name(part), part.why) for part in stuck_parts(status)]
    return Readiness(node, max_lag_ms, tuple(missing))


def stuck_parts(status: NodeStatus) -> list[StuckPart]:
    """The ingress, sources and sinks of a node that make no progress; sinks that have stopped are among them."""
    found = [*([] if status.ingress is None else _stuck_ingress(status.ingress)), *_stuck_sinks(status.sinks)]
    return [StuckPart(kind=kind, name=name, node=status.node, why=why) for kind, name, why in found]


def part_name(part: StuckPart) -> str:
    """A part for a person, such as ``source clicks``."""
    kind = "ingress log" if part.kind is PartKind.INGRESS_LOG else part.kind.value
    return f"{kind} {part.name}" if part.name else kind


def _stuck_ingress(ingress: IngressStatus) -> list[tuple[PartKind, str, str]]:
    out: list[tuple[PartKind, str, str]] = []
    if ingress.busy_ms > STUCK_MS:
        out.append((PartKind.INGRESS, "", f"its thread has been at one job for {ingress.busy_ms / 1000:.0f} s"))
    if ingress.log_busy_ms > STUCK_MS:
        age_s = ingress.log_busy_ms / 1000
        out.append((PartKind.INGRESS_LOG, "", f"the disk has been at its last entries for {age_s:.0f} s"))
    for source, stuck in ingress.stuck.items():
        if stuck.seconds * 1000 > STUCK_MS:
            why = f": {stuck.trouble}" if stuck.trouble else ""
            waits = f"its rows of pulse {stuck.pulse} have not been read for {stuck.seconds:.0f} s{why}"
            out.append((PartKind.SOURCE, source, waits))
    for source, asking_s in ingress.asking_s.items():
        if asking_s * 1000 > STUCK_MS:
            out.append((PartKind.SOURCE, source, f"it has not said for {asking_s:.0f} s how far it can be read"))
    return out


def _stuck_sinks(sinks: Mapping[str, SinkStatus]) -> list[tuple[PartKind, str, str]]:
    out: list[tuple[PartKind, str, str]] = []
    for stream, sink in sinks.items():
        age_ms = max(sink.waits_ms, sink.busy_ms)
        if sink.stopped is not None:
            out.append((PartKind.SINK, stream, f"it has stopped at unit {sink.stopped}, which it refuses"))
        elif age_ms > STUCK_MS:
            out.append((PartKind.SINK, stream, f"it has not taken its next unit for {age_ms / 1000:.0f} s"))
    return out


def _joins(join: JoinStatus) -> str:
    why = f"it has yet to catch up ({join.phase.value})"
    if join.total_bytes is not None:
        why += f"; {join.fetched_bytes} of {join.total_bytes} bytes of its state are here"
    return why


def _lacks(replica: ReplicaStatus, max_lag_ms: float) -> list[Lack]:
    if replica.reason:
        return [Lack(replica.replica, f"it has stopped: {replica.reason}")]
    lag_ms = replica.lag_ms or 0.0
    if lag_ms <= max_lag_ms:
        return []
    units = "1 unit" if replica.lag_units == 1 else f"{replica.lag_units} units"
    behind = f"{lag_ms / 1000:.1f} s and {units} behind its input"
    return [Lack(replica.replica, f"it is {behind}; {max_lag_ms / 1000:g} s are allowed")]
