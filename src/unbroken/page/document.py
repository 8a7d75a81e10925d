"""The document that a browser gets, as types: a flow as the page shows it.

Parts of a status that are shown as they are have its types. A field that is not known is left out where that is nearly
everything, as for a dead replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Raw, Struct

from unbroken.observe.status.flow import ShortShard
from unbroken.observe.status.node import CodeStatus, NodeState, PauseStatus, ReportedNotice
from unbroken.protocol.values.notices import Effect


class Look(StrEnum):
    """What a replica is shown as. Each has a colour, a shape and a word of its own.

    ACTIVE works; STANDBY is as good, or holds a copy of the state, and does not send; JOINING is being built or started
    and does not count yet; WAITING lacks input and gives out nothing; TENTATIVE goes on without missing input, or puts
    right what it gave out meanwhile; SUSPECTED is on a node that somebody does not hear; DEAD is lost or has stopped,
    and MISSING has no place at all.
    """

    ACTIVE = "active"
    STANDBY = "standby"
    JOINING = "joining"
    WAITING = "waiting"
    TENTATIVE = "tentative"
    SUSPECTED = "suspected"
    DEAD = "dead"
    MISSING = "missing"


class ReplicaView(Struct, frozen=True, omit_defaults=True):
    """One replica: where it is, how it is and why, and what it has done. What is not known is left out."""

    replica: str
    shard: str
    node: str
    look: Look
    why: str = ""
    units: int | None = None
    behind: int | None = None
    lag_ms: float | None = None
    gap_ms: float | None = None
    latency_ms: float | None = None
    batch_ms: float | None = None
    split: Mapping[str, float] = {}
    rows: int | None = None
    state_bytes: int | None = None
    copied: float | None = None


class NodeView(Struct, frozen=True, kw_only=True):
    """One node."""

    node: str
    look: Look
    state: NodeState
    why: str
    replicas: int
    roles: tuple[str, ...]
    draining: bool
    local: bool
    frozen: bool
    pid: int | None
    address: str | None
    metrics: str | None
    push: str | None
    links: int | None
    overhead: float | None


class ShardView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A shard in the box of its segment; ``missing`` is given if it is short of replicas."""

    shard: str
    replicas: tuple[str, ...]
    missing: int | None = None
    since_ms: int | None = None


class PartView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A box of the picture: the ingress with all sources, a segment, or a sink."""

    name: str
    kind: str
    column: int
    row: int
    shards: tuple[ShardView, ...]
    sources: tuple[str, ...] | None = None
    ha: str | None = None
    client: bool | None = None
    units: int | None = None


class LaneView(Struct, frozen=True, kw_only=True, rename={"start": "from", "end": "to"}):
    """A place by which an edge passes a column between its ends."""

    start: str
    end: str
    column: int
    row: int


class PulseView(Struct, frozen=True, kw_only=True):
    """The pulse, as the leader of the ingress reports it."""

    number: int
    leader: str | None
    period_ms: float | None
    in_flight: int | None
    rows: int
    bad_rows: int
    late_rows: int
    ended: bool
    unreached_ms: Mapping[str, float]


class RedundancyView(Struct, frozen=True, kw_only=True):
    """How redundant the flow is; ``whole`` is None while it is not known."""

    whole: bool | None
    since_ms: int | None
    sentence: str
    needed: tuple[str, ...]
    shards: tuple[ShortShard, ...]


class HistoryEntry(ReportedNotice, frozen=True, kw_only=True):
    """A notice in the history of a page; ``named`` says that its sentence needs no word on the node that reports it:
    the node is in its fields, or it is the page itself."""

    named: bool


class TimelineMark(Struct, frozen=True):
    """Something on the time axis: one or several notices of an effect, in words."""

    time_ms: int
    effect: Effect
    texts: tuple[str, ...]


class PageFacts(Struct, frozen=True, kw_only=True):
    """What does not change while a page is served: the actions that it offers, and how to get their token."""

    actions: tuple[str, ...] = ()
    simulated: bool = False
    token_hint: str = ""
    version: str = ""


class PageUpdate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that a browser gets at once. Parts that are the same for every viewer are encoded once: ``view`` is a
    `FlowView`, ``page`` `PageFacts`, ``marks`` a list of `TimelineMark` and ``history`` a list of `HistoryEntry`. The
    last two are left out if the viewer has them. ``samples`` begin anew if they are ``whole``."""

    number: int
    whole: bool
    samples: Mapping[str, Sequence[float | int | None]]
    view: Raw
    page: Raw
    marks: Raw | None = None
    history: Raw | None = None


class FlowView(Struct, frozen=True, kw_only=True):
    """All that a page shows of a flow at one moment, apart from charts and history."""

    flow: str
    time_ms: int
    trouble: str
    zookeeper_away: bool
    redundancy: RedundancyView
    pulse: PulseView | None
    pause: PauseStatus | None
    code: CodeStatus | None
    overhead: float | None
    divergences: tuple[str, ...]
    counts: Mapping[str, int]
    prefix: str
    parts: tuple[PartView, ...] = ()
    edges: tuple[tuple[str, str, str], ...] = ()
    """Box of the producer, consumer, and the producer itself, which may be one of the sources in the ingress."""
    lanes: tuple[LaneView, ...] = ()
    replicas: tuple[ReplicaView, ...]
    nodes: tuple[NodeView, ...]
