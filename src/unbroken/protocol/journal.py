"""The journal of a node: the events that its protocol object has handled, so that its decisions can be repeated.

The protocol is a function of its beginning and of the events with their times. So a journal that begins with what a
`NodeProtocol` is made from, or with a checkpoint of one, and has every event since, gives the same instructions
anywhere. What follows a gap without a checkpoint can be shown, but not repeated, and `replay` does not try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from unbroken.protocol.events import Event
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.recovery import StoredReplica

InstructionDigest = Callable[[Sequence[Instruction]], str]
"""A short digest of instructions in their order."""


@dataclass(frozen=True)
class Beginning:
    """What the protocol object of a node is made from when the node takes its place."""

    node: NodeId
    topology: Topology
    layout: Layout
    sync: InSync
    recovered: Mapping[ReplicaId, StoredReplica] = field(default_factory=dict)
    settings: ProtocolSettings = field(default_factory=ProtocolSettings)
    disk: str = ""

    def protocol(self) -> NodeProtocol:
        return NodeProtocol(self.node, self.topology, self.layout, self.sync, self.recovered, self.settings, self.disk)


@dataclass(frozen=True)
class JournalStep:
    """One event as it was handled.

    ``mark`` is the digest of the instructions that it led to; empty if the event holds a secret, which the journal does
    not, so that its instructions cannot be compared. ``failure`` says that it was not handled, but raised this.
    """

    at_ms: float
    event: Event
    mark: str
    failure: str = ""


@dataclass(frozen=True)
class JournalPart:
    """Steps that follow each other, the first of which has the number ``first``.

    ``restored`` makes a protocol object in the state before the first step; None if that state is not known.
    """

    first: int
    steps: Sequence[JournalStep]
    restored: Callable[[], NodeProtocol] | None = None


@dataclass(frozen=True)
class Replayed:
    """A step, the instructions that it leads to now, and whether they are those of then, in their order.

    ``same`` is None if there is no telling. A step that is not ``repeated`` follows a gap in the journal.
    """

    number: int
    step: JournalStep
    instructions: tuple[Instruction, ...] = ()
    same: bool | None = None
    failure: str = ""
    repeated: bool = True


def replay(parts: Sequence[JournalPart], mark: InstructionDigest) -> Iterator[Replayed]:
    """Repeat the steps of a journal, as far as the state that they were handled in is known.

    It ends with the first step that raises: after that, a protocol object is in no state that anything follows from.
    """
    protocol: NodeProtocol | None = None
    following = 1
    for part in parts:
        if protocol is None or part.first != following:
            protocol = None if part.restored is None else part.restored()
        following = part.first + len(part.steps)
        for number, step in enumerate(part.steps, part.first):
            done = Replayed(number, step, repeated=False) if protocol is None else _repeat(protocol, number, step, mark)
            yield done
            if done.failure:
                return


def _repeat(protocol: NodeProtocol, number: int, step: JournalStep, mark: InstructionDigest) -> Replayed:
    try:
        found = tuple(protocol.handle(step.event, step.at_ms))
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        return Replayed(number, step, same=failure == step.failure, failure=failure)
    same = None if not step.mark and not step.failure else mark(found) == step.mark
    return Replayed(number, step, found, same)
