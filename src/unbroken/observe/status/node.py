"""The status of a node: everything that it reports about itself, as types.

The command line, the page, metrics, the test kit and the laboratory read nothing else of a running node. Times of day
are in ms since the epoch. A part that a node does not have, or does not know yet, is null or empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from unbroken.observe.status.shape import FlowShape
from unbroken.protocol.repair.catchup import Phase
from unbroken.protocol.values.consistency import Consistency
from unbroken.protocol.values.notices import Effect, Severity

SCHEMA = 1
"""The version of the schema.

A field that is added has a default, so that it changes no version: readers pass over fields that they do not know, and
take the default of those that a node does not send. A field that is removed, renamed, or that changes its type or its
meaning is a new version.
"""


class NodeState(StrEnum):
    """How a node is. It reports the first three itself; the others are found out by the reader."""

    STARTING = "starting"
    RUNNING = "running"
    UNADOPTED = "unadopted"
    SILENT = "silent"
    LOST = "lost"
    DEAD = "dead"
    UNREADABLE = "unreadable"


class ReplicaState(StrEnum):
    """The work of a replica: it sends its results, it keeps them for the case that they are needed, or it has ended."""

    ACTIVE = "active"
    STANDS_BY = "stands by"
    STOPPED = "stopped"


NoticeValue = str | int | float | bool | tuple[str, ...] | None


class DivergedUnit(Struct, frozen=True, kw_only=True, order=True):
    """A unit that two replicas of a shard have produced differently."""

    replica: str
    """The replica that stops."""
    sibling: str
    """The replica whose unit counts."""
    stream: str
    """The stream of the unit."""
    unit: int
    """The number of the unit."""
    rows: int
    """Rows of the replica that stops."""
    digest: str
    """The digest of its rows."""
    sibling_rows: int
    """Rows of the sibling."""
    sibling_digest: str
    """The digest of the rows of the sibling."""


class NoticeStatus(Struct, frozen=True, kw_only=True):
    """A notice that a node has reported."""

    time_ms: int
    """Time of day of the report."""
    kind: str
    """The kind of the notice, see the [handbook](handbook.md#notices)."""
    severity: Severity
    """How much it asks of an operator."""
    fields: Mapping[str, NoticeValue]
    """The facts; they depend on the kind."""
    text: str
    """The notice in words."""


class ReportedNotice(NoticeStatus, frozen=True, kw_only=True):
    """A notice of the history of a flow; `unbroken history --json` prints one per line."""

    node: str
    """The node that has reported it."""
    effect: Effect
    """The meaning of the notice for the flow."""


class TraceCounts(Struct, frozen=True, kw_only=True):
    """Spans of traces since the node was started."""

    exported: int
    """Spans that the receiver has taken."""
    dropped: int
    """Spans that did not fit into the queue."""
    failed: int
    """Spans that the receiver did not take."""


class RecoveryCounts(Struct, frozen=True, kw_only=True):
    """Shards whose redundancy was restored, counted by the controller."""

    count: int = 0
    """Times that a shard was redundant again."""
    seconds: float = 0.0
    """Time for which those shards were short of replicas, all together."""


class CoordinationStatus(Struct, frozen=True, kw_only=True):
    """A node's session with ZooKeeper, and its work as a controller."""

    connected: bool
    """Whether the session is connected."""
    controller: bool
    """Whether this node is the controller."""
    failovers: Mapping[str, int] = {}
    """Failovers that were decided here, by cause."""
    recoveries: RecoveryCounts = RecoveryCounts()
    """Shards whose redundancy was restored."""


class PauseStatus(Struct, frozen=True, kw_only=True):
    """A pause that an operator has asked for."""

    since_ms: int
    """Time of day since when no source is read."""
    reason: str = ""
    """The reason that the operator gave."""


class CodeStatus(Struct, frozen=True, kw_only=True):
    """The newest code of the flow that a node runs."""

    generation: int
    """1 for the code that the flow began with; an upgrade increments it."""
    file: str
    """The file that declares it."""
    as_given: bool
    """Whether it is the file that the node was started with."""


class JoinStatus(Struct, frozen=True, kw_only=True):
    """A replica that is being rebuilt on a node."""

    phase: Phase
    """Its step on the way to count as a replica."""
    fetched_bytes: int | None = None
    """Bytes of its state that have arrived; null while no copy is under way."""
    total_bytes: int | None = None
    """Bytes of its state in all."""


class BatchStatus(Struct, frozen=True, kw_only=True):
    """The last micro-batch of a replica's query, as Spark reports it."""

    number: int
    """Spark's number of the micro-batch."""
    cut: int | None = None
    """The unit that it made; null if Spark asked for input in vain."""
    duration_ms: Mapping[str, float] = {}
    """Time of each step by Spark's name of it; `triggerExecution` is the whole."""
    input_rows: int | None = None
    """Rows of its input."""
    state_rows_updated: int | None = None
    """Rows of state that it has changed."""
    state_memory_bytes: int | None = None
    """Memory of the state stores after it."""
    state_file_bytes: int | None = None
    """Size of the files of the state stores after it."""


class ForkStatus(Struct, frozen=True, kw_only=True):
    """The fork of a replica, which continues without the missing input."""

    replica: str
    """Its name."""
    pulse: int
    """The last pulse that it has processed."""


class ConsistencyStatus(Struct, frozen=True, kw_only=True):
    """How final the results of a replica are that continues without missing input."""

    state: Consistency
    """`stable`, `up-failure` while input is missing, `stabilization` while tentative results are replaced."""
    lacking: tuple[str, ...] = ()
    """The parts whose input is missing."""
    tentative: int = 0
    """The last pulse of tentative results that were given out; 0 if all results are stable."""
    tentative_units: int = 0
    """Tentative units that stable ones have yet to replace."""
    fork: ForkStatus | None = None
    """The fork, if one is at work."""


class ReplicaStatus(Struct, frozen=True, kw_only=True):
    """A replica at work on a node."""

    replica: str
    """Its name: `SEGMENT.SHARD#INDEX`."""
    state: ReplicaState
    """Its work."""
    reason: str | None = None
    """The reason that it has stopped; null while it has not."""
    committed: int
    """The last unit that is in its checkpoint."""
    produced: int
    """The last unit that it has produced."""
    final: int | None = None
    """The last unit of a flow that has ended; null while it is not produced."""
    inputs: Mapping[str, int] = {}
    """The last unit of each input stream that has arrived without a gap."""
    lag_units: int
    """Pulses between the newest input on this node and its results."""
    lag_ms: float | None = None
    """Age of the oldest input that has arrived and is in no result."""
    gap_ms: float | None = None
    """Time since its last progress; null unless it feeds a sink and input is to be expected."""
    latency_ms: float | None = None
    """From the cut at the sources to the newest result, by the clocks of the two nodes."""
    consistency: ConsistencyStatus | None = None
    """How final its results are; null unless it may continue without missing input."""
    feeds: Mapping[str, tuple[str, ...]] = {}
    """The nodes that each input stream is requested from."""
    batch: BatchStatus | None = None
    """Its last micro-batch; null before the first."""


class ShardRedundancy(Struct, frozen=True, kw_only=True):
    """The replicas of a shard, as one node knows them."""

    wanted: int
    """Replicas and copies of state that the shard should have."""
    full: int
    """Replicas that count."""
    reachable: int
    """Replicas that count and that this node can reach."""
    joining: int
    """Replicas that are being rebuilt."""
    degraded: bool
    """Whether the shard is short of replicas."""
    short_since_ms: int | None = None
    """Time of day since when the controller has found it short; null while it has not."""


class SinkStatus(Struct, frozen=True, kw_only=True):
    """The stream of a shard to a sink."""

    delivered: int
    """The last unit that the sink has, whichever replica brought it."""
    written_here: int = 0
    """Units that this node has written since it was started."""
    waits_ms: float = 0.0
    """How long the oldest unit that the sink lacks has been ready."""
    busy_ms: float = 0.0
    """How long the sink has been at one attempt to take a unit."""
    stopped: int | None = None
    """The unit that the sink refuses and has stopped at; null while it has not."""


class OutboxStatus(Struct, frozen=True, kw_only=True):
    """The units of a stream that a node keeps for consumers."""

    kept: int
    """Units that are kept."""
    last: int
    """The last unit that was produced."""
    readers: Mapping[str, int] = {}
    """The last unit that each subscriber of a client sink has acknowledged."""


class StuckSource(Struct, frozen=True, kw_only=True):
    """A pulse of a source that is committed and not read yet."""

    pulse: int
    """The pulse."""
    seconds: float
    """For how long it has been tried."""
    trouble: str = ""
    """The last error."""
    held: int = 0
    """The entry of the log by which an operator holds the rows; 0 if none does."""
    hangs: bool = False
    """Whether the call to the source has not returned."""


class IngressStatus(Struct, frozen=True, kw_only=True):
    """A member of the ingress: its log, the pulse, and its sources."""

    leading: bool
    """Whether it decides the pulses."""
    term: int
    """The term of the in-sync set."""
    members: tuple[str, ...]
    """The nodes of the in-sync set."""
    pulse: int
    """The last pulse in its log."""
    ended: bool
    """Whether all sources have ended."""
    reading: bool = True
    """Whether sources are read; not during a pause."""
    period_ms: float
    """The time between pulses; of the leader."""
    in_flight: int
    """Pulses that are cut and not processed by a replica of every shard; of the leader."""
    rows: int
    """Rows that were read since the flow began."""
    bad_rows: int = 0
    """Rows that were set aside because they do not fit the schema."""
    late_rows: int = 0
    """Rows that came after the bucket of their event time was closed."""
    unreached_ms: Mapping[str, float] = {}
    """For how long sources could not be asked, by source."""
    asking_s: Mapping[str, float] = {}
    """For how long sources have not answered how far they can be read, by source."""
    busy_ms: float = 0.0
    """How long its thread has been at one job."""
    log_busy_ms: float = 0.0
    """How long the disk has been at its last entries."""
    set_aside: int = 0
    """Entries and jobs that could not be carried out because of their data."""
    jobs: int = 0
    """Jobs that wait for its thread."""
    stuck: Mapping[str, StuckSource] = {}
    """Sources with a committed pulse that is not read yet."""
    left_behind: tuple[str, ...] = ()
    """Segments that the pulses do not wait for, because they lack the rows of a source that cannot be read."""
    clock_offset_ms: float = 0.0
    """How far the clock of this machine is ahead of the time of the pulses."""


class DeadLetterCounts(Struct, frozen=True, kw_only=True):
    """Dead letters of a node since it was started."""

    lost: int = 0
    """Rows for which there was no room."""
    removed: int = 0
    """Rows that were removed to make room."""


class NodeStatus(Struct, frozen=True, kw_only=True):
    """Everything that a node reports about itself."""

    schema: int = SCHEMA
    """The version of this schema."""
    node: str
    """The name of the node."""
    state: NodeState
    """How the node is."""
    reason: str | None = None
    """Why the node is in this state, unless it runs or starts."""
    pid: int | None = None
    """Its process."""
    address: str | None = None
    """The host and port of its Flight server."""
    push: str | None = None
    """The host and port that takes pushed rows."""
    metrics: str | None = None
    """The host and port of its metrics."""
    run: str | None = None
    """The run that its disk belongs to."""
    notices: tuple[NoticeStatus, ...] = ()
    """The latest notices that it has reported."""
    traces: TraceCounts | None = None
    """Spans of traces; null if nothing is traced."""
    coordination: CoordinationStatus | None = None
    """Its session with ZooKeeper."""
    time_ms: int | None = None
    """Time of day of the fields below: before the question if the node's loop is busy. Null until it has its place."""
    layout_version: int | None = None
    """The layout that it goes by; null until it has its place in the flow, and so are or empty all fields below."""
    flow: FlowShape | None = None
    """The parts of the flow and their connections."""
    code: CodeStatus | None = None
    """The code that it runs."""
    pause: PauseStatus | None = None
    """The pause of the flow; null while there is none."""
    links: tuple[str, ...] = ()
    """The other nodes that it is connected to."""
    replicas: tuple[ReplicaStatus, ...] = ()
    """The replicas at work."""
    joining: Mapping[str, JoinStatus] = {}
    """The replicas that are being rebuilt."""
    held: Mapping[str, int] = {}
    """The copies of state that it holds for passive standby, with the last unit in each."""
    redundancy: Mapping[str, ShardRedundancy] = {}
    """The replicas of every shard of the flow."""
    sinks: Mapping[str, SinkStatus] = {}
    """The streams that it delivers to sinks: `SEGMENT.SHARD>SINK.0`."""
    outboxes: Mapping[str, OutboxStatus] = {}
    """The streams whose units it keeps."""
    ingress: IngressStatus | None = None
    """Its part of the ingress; null if it has none."""
    counters: Mapping[str, int] = {}
    """Units and messages since it was started, by what became of them."""
    divergences: tuple[DivergedUnit, ...] = ()
    """Units that differ between replicas."""
    received: Mapping[str, int] = {}
    """Bytes that it has received, by purpose."""
    sent: Mapping[str, int] = {}
    """Bytes that it has sent, by purpose."""
    traffic: Mapping[str, int] = {}
    """Both together."""
    overhead: float | None = None
    """Bytes for availability per byte of data; null without data."""
    dead_letters: DeadLetterCounts = DeadLetterCounts()
    """Rows that were set aside, as far as they are not kept."""

    @property
    def placed(self) -> bool:
        """Whether the node has its place in the flow."""
        return self.layout_version is not None

    @property
    def running(self) -> bool:
        return self.state is NodeState.RUNNING

    @property
    def leading(self) -> bool:
        """Whether the node leads the ingress."""
        return self.ingress is not None and self.ingress.leading

    @property
    def controls(self) -> bool:
        """Whether the node is the controller."""
        return self.coordination is not None and self.coordination.controller
