"""What nodes tell each other, what happens to a node, and what it is to do.

Messages travel between nodes; events enter ``NodeProtocol.handle`` and instructions come out of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.ids import NodeId, ReplicaId, StreamId
from unbroken.protocol.ingress import Append, AppendAck, Entry, InSync, ProposeInSync
from unbroken.protocol.layout import Layout
from unbroken.protocol.units import Digest, UnitHeader

# --- messages between nodes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subscribe:
    """Send me this stream from unit ``after + 1`` on."""

    stream: StreamId
    subscriber: str
    after: int


@dataclass(frozen=True)
class Ack:
    """Units up to ``through`` are part of my committed state; you may drop them on my account."""

    stream: StreamId
    subscriber: str
    through: int


@dataclass(frozen=True)
class DigestNote:
    """My replica produced this unit with this digest; compare it with yours."""

    replica: ReplicaId
    stream: StreamId
    number: int
    digest: Digest


@dataclass(frozen=True)
class Delivered:
    """Units up to ``through`` of a stream to a sink are delivered."""

    stream: StreamId
    through: int


@dataclass(frozen=True)
class Progress:
    """My replica has produced its units up to pulse ``pulse``."""

    replica: ReplicaId
    pulse: int


Message = Subscribe | Ack | DigestNote | Delivered | Progress | Append | AppendAck

# --- events -----------------------------------------------------------------------------------------------


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
    header: UnitHeader
    sender: NodeId


@dataclass(frozen=True)
class GateAsked:
    """Spark asks for the next offset after ``start``; the answer goes to ``ticket``."""

    replica: ReplicaId
    instance: str
    start: int
    ticket: int
    deadline_ms: float


@dataclass(frozen=True)
class Produced:
    """A replica has written the units of micro-batch (or pulse) ``number``, one per output stream."""

    replica: ReplicaId
    number: int
    headers: tuple[UnitHeader, ...]


@dataclass(frozen=True)
class SinkDelivered:
    stream: StreamId
    number: int


@dataclass(frozen=True)
class SourcesPolled:
    """The sources said how far pulse ``pulse`` reaches; ``body`` is the entry for the ingress log."""

    pulse: int
    body: bytes
    final: bool


@dataclass(frozen=True)
class PushArrived:
    """A producer pushed rows; they are acknowledged to ``ticket`` when the entry is committed."""

    body: bytes


@dataclass(frozen=True)
class InSyncChanged:
    sync: InSync


@dataclass(frozen=True)
class LayoutChanged:
    layout: Layout


@dataclass(frozen=True)
class ReplicaStopped:
    """A replica hosted here does not run any more."""

    replica: ReplicaId
    reason: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Received
    | LinkUp
    | LinkLost
    | SubscriberGone
    | UnitArrived
    | GateAsked
    | Produced
    | SinkDelivered
    | SourcesPolled
    | PushArrived
    | InSyncChanged
    | LayoutChanged
    | ReplicaStopped
    | Tick
)

# --- instructions -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    to: NodeId
    message: Message


@dataclass(frozen=True)
class SendUnit:
    """Send a unit of an outbox here to a subscriber on ``to``."""

    to: NodeId
    header: UnitHeader


@dataclass(frozen=True)
class StoreUnit:
    """Keep the rows of the unit that has just arrived; later instructions rely on them being on disk."""

    header: UnitHeader


@dataclass(frozen=True)
class DropInbox:
    stream: StreamId
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class DropOutbox:
    stream: StreamId
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class AnswerGate:
    ticket: int
    offset: int


@dataclass(frozen=True)
class Deliver:
    """Hand this unit to its sink and report back by ``SinkDelivered``."""

    header: UnitHeader


@dataclass(frozen=True)
class PollSources:
    """Ask every source how far it can be read; report back by ``SourcesPolled``."""

    pulse: int


@dataclass(frozen=True)
class PersistEntry:
    entry: Entry


@dataclass(frozen=True)
class CommitEntry:
    """Agreed: produce the units of this pulse, or acknowledge these pushed rows."""

    entry: Entry


@dataclass(frozen=True)
class StopReplica:
    replica: ReplicaId
    reason: str


@dataclass(frozen=True)
class Report:
    """One sentence for the log and the history."""

    sentence: str


Instruction = (
    Send
    | SendUnit
    | StoreUnit
    | DropInbox
    | DropOutbox
    | AnswerGate
    | Deliver
    | PollSources
    | PersistEntry
    | CommitEntry
    | ProposeInSync
    | StopReplica
    | Report
)
