"""What a node is to do: the output of ``NodeProtocol.handle``."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.protocol.messages import Message
from unbroken.protocol.values.cuts import BatchCut
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.ingress_log import Admission, Entry, ProposeInSync
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.protocol.values.units import UnitHeader
from unbroken.protocol.vocabulary import PolicyInstruction


@dataclass(frozen=True)
class Send:
    to: NodeId
    message: Message


@dataclass(frozen=True)
class SendUnit:
    """Send a unit of ``replica``'s outbox to a subscriber on ``to``."""

    to: NodeId
    replica: ReplicaId
    header: UnitHeader


@dataclass(frozen=True)
class StoreUnit:
    """Keep the rows of the unit that has just arrived for ``replica``; what follows relies on them being on disk.

    ``number`` is what they are kept under, if that is not the unit's own.
    """

    replica: ReplicaId
    header: UnitHeader
    number: int | None = None


@dataclass(frozen=True)
class RepairUnit:
    """Put the rows of the unit that has just arrived into the outbox of ``replica``, in the place of damaged ones."""

    replica: ReplicaId
    header: UnitHeader


@dataclass(frozen=True)
class DropInbox:
    replica: ReplicaId
    stream: StreamId
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class DropOutbox:
    replica: ReplicaId
    stream: StreamId
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class AnswerGate:
    """Tell Spark how far the next micro-batch goes; ``cut`` is for it to note, where the number does not tell."""

    ticket: int
    offset: int
    cut: BatchCut = field(default_factory=dict)


@dataclass(frozen=True)
class RefuseGate:
    """Tell whoever asked the gate that no query of this node can have asked that."""

    ticket: int
    reason: str


@dataclass(frozen=True)
class Deliver:
    """Hand this unit of ``replica``'s outbox to its sink and report back by ``SinkDelivered``.

    A sink that fails is asked again until it takes the unit; with ``once`` it is never asked again, as it may have the
    unit all the same, and ``SinkFailed`` reports that.
    """

    replica: ReplicaId
    header: UnitHeader
    once: bool = False


@dataclass(frozen=True)
class PollSources:
    """Ask every source how far it can be read; report back by ``SourcesPolled``.

    The results of ``generation`` count for this pulse, unless an earlier one has asked for a later generation. Those
    deliver them whose turn it is by the ``layout`` of this version, where turns are taken. With ``paused`` no source is
    asked: the pulse has no rows, and is not the last.
    """

    pulse: int
    generation: int = 1
    layout: int = 0
    paused: bool = False


@dataclass(frozen=True)
class PersistEntry:
    """Write an entry of the ingress log after those before it, and report by ``EntriesPersisted`` when it is on disk.

    Nothing may wait for that. ``life`` is to be given back: it tells logs of the same node apart.
    """

    entry: Entry
    life: int = 1


@dataclass(frozen=True)
class CommitEntry:
    """Agreed: produce the units of this pulse, or acknowledge these pushed rows."""

    entry: Entry


@dataclass(frozen=True)
class NoteOwed:
    """Note with a replica's outbox that its consumer's state can be rebuilt from what follows unit ``owed`` of a
    stream, and what it is worth then; report by ``OwedNoted`` when a later process would find the note.

    Notes of a stream replace each other in the order in which they are given. Nothing may wait for them.
    """

    replica: ReplicaId
    stream: StreamId
    owed: int
    rebuilt: Rebuilt


@dataclass(frozen=True)
class StartReplica:
    """Start what a replica runs (a query, the ingress) on what its directory holds."""

    replica: ReplicaId


@dataclass(frozen=True)
class StopReplica:
    """End a replica's query and let the controller know why; its directory stays."""

    replica: ReplicaId
    reason: str


@dataclass(frozen=True)
class DropReplica:
    """The layout does not count on this replica here: end it and remove its directory."""

    replica: ReplicaId


@dataclass(frozen=True)
class FetchState:
    """Copy the state of ``replica``'s shard from ``donor``; report back by ``StateArrived`` or ``FetchFailed``.

    Without a donor the shard's last snapshot is taken. What begins with the state of its predecessor names that
    ``shard``. A state before version ``least``, or without these units of its inputs, is of no use: what
    follows it is not kept. A ``held`` copy is brought up
    to date: most of it is there already, and what was there stays whole until the rest has come. From this very node
    means to open the copy that it holds.
    """

    replica: ReplicaId
    donor: NodeId | None
    shard: ShardId
    least: int = 0
    needs: tuple[tuple[StreamId, int], ...] = ()
    held: bool = False


@dataclass(frozen=True)
class AbandonFetch:
    replica: ReplicaId


@dataclass(frozen=True)
class PinState:
    """Keep the state of ``replica`` at ``version`` and these units (stream, base, last) for the holder of ``ticket``.

    The ingress also gives the newcomer its admission as a learner.
    """

    ticket: int
    replica: ReplicaId
    version: int
    units: tuple[tuple[StreamId, int, int], ...]
    admission: Admission | None = None


@dataclass(frozen=True)
class RefusePin:
    ticket: int
    reason: str


@dataclass(frozen=True)
class ReportCaughtUp:
    """Let the controller know that a joining replica keeps up and may count as redundancy."""

    replica: ReplicaId
    notice: Notice


@dataclass(frozen=True)
class ReportSwitched:
    """Tell the controller that the results of a shard have taken the place of its predecessor's."""

    shard: ShardId


@dataclass(frozen=True)
class GiveUp:
    """Let the controller know that a replica elsewhere is too far behind for what is kept for it: so many ``units``."""

    replica: ReplicaId
    stream: StreamId
    units: int

    @property
    def reason(self) -> str:
        return f"it is {self.units} units of {self.stream} behind its peer"


@dataclass(frozen=True)
class Suspect:
    """Let the controller and the history know that ``node`` does not answer this one."""

    node: NodeId
    reason: str


@dataclass(frozen=True)
class Trust:
    """Take a suspicion back: ``node`` was heard again, or, if not ``heard``, it is not asked any more."""

    node: NodeId
    heard: bool = True


@dataclass(frozen=True)
class EndNode:
    """End this node: it can continue only as a process that starts from its disk."""

    notice: Notice


@dataclass(frozen=True)
class Report:
    """Something for the log and the history."""

    notice: Notice


Instruction = (
    Send
    | SendUnit
    | StoreUnit
    | RepairUnit
    | DropInbox
    | DropOutbox
    | AnswerGate
    | RefuseGate
    | Deliver
    | PollSources
    | PersistEntry
    | CommitEntry
    | ProposeInSync
    | NoteOwed
    | StartReplica
    | StopReplica
    | DropReplica
    | FetchState
    | AbandonFetch
    | PinState
    | RefusePin
    | ReportCaughtUp
    | ReportSwitched
    | GiveUp
    | Suspect
    | Trust
    | EndNode
    | Report
    | PolicyInstruction
)
