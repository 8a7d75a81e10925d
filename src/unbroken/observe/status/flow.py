"""The status of a flow: what its nodes report, and what that amounts to. `unbroken status --json` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from unbroken.observe.status.node import SCHEMA, NodeState, NodeStatus, PauseStatus
from unbroken.observe.status.shape import FlowShape


class ShortShard(Struct, frozen=True, kw_only=True):
    """A shard with fewer replicas than it should have."""

    shard: str
    """The shard."""
    wanted: int
    """Replicas that it should have."""
    there: int
    """Replicas that count and can be reached."""
    joining: int
    """Replicas that are being rebuilt."""
    missing: int
    """Replicas that have no place yet."""
    since_ms: int | None = None
    """Time of day since when it is short, as far as the controller knows."""


class PartKind(StrEnum):
    """A part of a node that works for the flow as a whole."""

    INGRESS = "ingress"
    INGRESS_LOG = "ingress-log"
    SOURCE = "source"
    SINK = "sink"


class StuckPart(Struct, frozen=True, kw_only=True):
    """A part of a node that makes no progress."""

    kind: PartKind
    """The ingress or its log, a source or a sink."""
    name: str = ""
    """The source, or the stream that is delivered to the sink; empty for the ingress."""
    node: str
    """The node."""
    why: str
    """The reason, for a person."""


class FlowSummary(Struct, frozen=True, kw_only=True):
    """A flow at a glance; null where no node knows."""

    well: bool
    """Whether an operator has nothing to do; a pause is no trouble."""
    redundant: bool
    """Whether every shard has all its replicas."""
    known: bool
    """Whether any node has reported how the flow is."""
    nodes: int
    """Nodes that are known."""
    running: int
    """Nodes that run."""
    leader: str | None = None
    """The node that leads the ingress."""
    in_sync: tuple[str, ...] = ()
    """The nodes of the in-sync set of the ingress."""
    controller: str | None = None
    """The node that is the controller."""
    layout: int | None = None
    """The version of the newest layout."""
    generation: int | None = None
    """The generation of the code."""
    pause: PauseStatus | None = None
    """The pause of the flow; null while there is none."""
    period_ms: float | None = None
    """The time between pulses."""
    in_flight: int | None = None
    """Pulses that are cut and not processed."""
    ended: bool = False
    """Whether all sources have ended."""
    short: tuple[ShortShard, ...] = ()
    """The shards that are short of replicas."""
    lag_ms: float | None = None
    """Age of the oldest input that is in no result: the best replica of each shard, the worst shard."""
    latency_ms: float | None = None
    """From the cut at the sources to the newest result, of the same replicas."""
    gap_ms: float | None = None
    """Time without a result, of the same replicas, for shards that feed a sink."""
    tentative: Mapping[str, tuple[str, ...]] = {}
    """The shards with tentative results that are not replaced, and the parts whose input they lack."""
    stopped: Mapping[str, str] = {}
    """The replicas that have stopped, and why."""
    stuck: tuple[StuckPart, ...] = ()
    """The ingress, sources and sinks that make no progress."""
    divergences: int = 0
    """Units that differ between replicas."""


class FlowStatus(Struct, frozen=True, kw_only=True):
    """A flow at one moment."""

    schema: int = SCHEMA
    """The version of this schema."""
    flow: str
    """The name of the flow."""
    time_ms: int
    """Time of day at which the nodes were asked."""
    zookeeper_away: bool
    """Whether ZooKeeper does not answer; the nodes are those that were known last."""
    summary: FlowSummary
    """The flow at a glance."""
    nodes: tuple[NodeStatus, ...]
    """The status of every node."""


class PlaceState(StrEnum):
    """The work of a replica at its place; the ingress is led or followed, a replica works, or it has yet to."""

    LEADS = "leads"
    FOLLOWS = "follows"
    ACTIVE = "active"
    STANDS_BY = "stands by"
    STOPPED = "stopped"
    STARTING = "starting"
    JOINS = "joins"
    HOLDS_COPY = "holds a copy"
    UNAVAILABLE = "unavailable"


class ReplicaPlace(Struct, frozen=True, kw_only=True):
    """A replica on its node."""

    replica: str
    """The replica."""
    node: str
    """The node that hosts it."""
    node_state: NodeState
    """The state of that node."""
    state: PlaceState
    """Its work; unavailable while its node does not run."""


class FlowTopology(Struct, frozen=True, kw_only=True):
    """The parts of a flow, and where its replicas are; `unbroken topology --json` prints it."""

    schema: int = SCHEMA
    """The version of this schema."""
    flow: FlowShape
    """The parts of the flow and their connections."""
    running: bool
    """Whether it runs; a file only declares it."""
    pause: PauseStatus | None = None
    """The pause of the flow; null while there is none."""
    replicas: Mapping[str, tuple[ReplicaPlace, ...]] = {}
    """The replicas of every shard, if it runs."""
