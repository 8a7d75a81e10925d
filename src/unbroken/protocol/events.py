"""What happens to a node: the input of ``NodeProtocol.handle``."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.protocol.messages import Message
from unbroken.protocol.values.cuts import BatchCut
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.ingress_log import InSync
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.recovery import StoredReplica
from unbroken.protocol.values.units import UnitHeader
from unbroken.protocol.vocabulary import PolicyEvent


@dataclass(frozen=True)
class Started:
    """The node is ready to carry out instructions; always the first event."""


@dataclass(frozen=True)
class Received:
    sender: NodeId
    message: Message


@dataclass(frozen=True)
class LinkUp:
    """Messages can be sent to ``node``; what was sent over an earlier link to it may be lost."""

    node: NodeId


@dataclass(frozen=True)
class LinkLost:
    """Nothing is heard from ``node`` any more."""

    node: NodeId


@dataclass(frozen=True)
class SubscriberGone:
    """The link by which ``node`` was sent units has ended."""

    node: NodeId


@dataclass(frozen=True)
class UnitArrived:
    """A unit has come from ``sender`` and took ``size`` bytes on the wire."""

    header: UnitHeader
    sender: NodeId
    size: int = 0


@dataclass(frozen=True)
class GateAsked:
    """Spark asks for the next offset after ``start``, for which it had noted ``cut``; the answer goes to ``ticket``."""

    replica: ReplicaId
    instance: str
    start: int
    ticket: int
    deadline_ms: float
    cut: BatchCut = field(default_factory=dict)


@dataclass(frozen=True)
class Produced:
    """A replica has written the units of micro-batch (or pulse) ``number``, one per output stream.

    ``watermark_ms`` was in force while it was processed.
    """

    replica: ReplicaId
    number: int
    headers: tuple[UnitHeader, ...]
    watermark_ms: float = 0.0

    @property
    def folded(self) -> tuple[int, ...]:
        """The numbers of the units that were processed together, if not one alone."""
        return tuple(sorted({header.number for header in self.headers if header.fold == self.number}))


@dataclass(frozen=True)
class SinkDelivered:
    """A sink has a unit; ``written`` says whether this delivery brought it, which is nobody's business but traces'."""

    stream: StreamId
    number: int
    written: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class SinkFailed:
    """A sink failed with a unit that was to be handed to it once: it may have it or not.

    It answers ``Deliver``, which every shell knows; only a policy that asks for ``once`` has to handle it.
    """

    stream: StreamId
    number: int
    reason: str


@dataclass(frozen=True)
class SinkRefused:
    """A sink will never take a unit, for a reason that lies in its rows; they are among the dead letters.

    With ``stops``, the sink takes no unit from this one on: it was declared to stop rather than to leave one out.
    """

    stream: StreamId
    number: int
    reason: str
    stops: bool = False


@dataclass(frozen=True)
class SourcesPolled:
    """The sources said how far pulse ``pulse`` reaches; ``body`` is the entry for the ingress log."""

    pulse: int
    body: bytes
    final: bool


@dataclass(frozen=True)
class UnitDamaged:
    """A unit in the inbox of ``replica`` is not on disk as it was written, and of no use."""

    replica: ReplicaId
    stream: StreamId
    number: int
    reason: str


@dataclass(frozen=True)
class OutboxDamaged:
    """A unit in the outbox of ``replica`` is not on disk as it was written; ``finding`` names the file."""

    replica: ReplicaId
    stream: StreamId
    number: int
    finding: str


@dataclass(frozen=True)
class PushArrived:
    """A producer pushed rows; they are acknowledged to ``ticket`` when the entry is committed."""

    body: bytes


@dataclass(frozen=True)
class EntriesPersisted:
    """The next ``count`` entries that were to be written to the ingress log of ``life`` are on disk, in their order."""

    life: int
    count: int


@dataclass(frozen=True)
class OwedNoted:
    """A later process would find that the consumer of a stream is owed what follows unit ``owed``, see `NoteOwed`."""

    replica: ReplicaId
    stream: StreamId
    owed: int


@dataclass(frozen=True)
class InSyncChanged:
    sync: InSync


@dataclass(frozen=True)
class LayoutChanged:
    """There is another layout; ``topology`` is that of the generations it names, None if these are as before."""

    layout: Layout
    topology: Topology | None = None


@dataclass(frozen=True)
class ReplicaStopped:
    """A replica hosted here does not run any more."""

    replica: ReplicaId
    reason: str


@dataclass(frozen=True)
class QueryFailed:
    """The query of a replica hosted here has ended by itself."""

    replica: ReplicaId
    reason: str


@dataclass(frozen=True)
class PinAsked:
    """``node``, which is building a replica of ``shard`` or of its successor, wants its state.

    A version before ``least``, or without the units that it ``needs``, is of no use to it. The answer goes to
    ``ticket``.
    """

    shard: ShardId
    node: NodeId
    ticket: int
    least: int = 0
    needs: tuple[tuple[StreamId, int], ...] = ()


@dataclass(frozen=True)
class StateArrived:
    """What a joining replica needs is in its directory, whole and verified; one that begins with nothing has no
    ``donor``."""

    replica: ReplicaId
    state: StoredReplica
    donor: NodeId | None
    size: int


@dataclass(frozen=True)
class FetchFailed:
    replica: ReplicaId
    donor: NodeId | None
    reason: str


@dataclass(frozen=True)
class SnapshotTaken:
    """The state of ``shard`` at ``version`` is kept where it outlives all its replicas."""

    shard: ShardId
    version: int


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Started
    | Received
    | LinkUp
    | LinkLost
    | SubscriberGone
    | UnitArrived
    | GateAsked
    | Produced
    | SinkDelivered
    | SinkFailed
    | SinkRefused
    | SourcesPolled
    | UnitDamaged
    | OutboxDamaged
    | PushArrived
    | EntriesPersisted
    | OwedNoted
    | InSyncChanged
    | LayoutChanged
    | ReplicaStopped
    | QueryFailed
    | PinAsked
    | StateArrived
    | FetchFailed
    | SnapshotTaken
    | Tick
    | PolicyEvent
)
