"""What a node does with the instructions of its protocol: threads, sockets, files and Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unbroken.node.gate import GateClient
from unbroken.node.in_sync_proposals import InSyncProposals
from unbroken.node.ingress.service import IngressService
from unbroken.node.replicas.hosting import ReplicaHost
from unbroken.node.replicas.outlets import SinkOutlets
from unbroken.node.replicas.transfers import Transfers
from unbroken.node.unit_files import UnitFiles, UnitRows
from unbroken.protocol.effects import Effects
from unbroken.protocol.events import Event, Received, UnitArrived
from unbroken.protocol.ingress.log import ProposeInSync
from unbroken.protocol.instructions import (
    AbandonFetch,
    AnswerGate,
    CommitEntry,
    Deliver,
    DropInbox,
    DropOutbox,
    DropReplica,
    EndNode,
    FetchState,
    GiveUp,
    NoteOwed,
    PersistEntry,
    PinState,
    PollSources,
    RefuseGate,
    RefusePin,
    RepairUnit,
    Report,
    ReportCaughtUp,
    ReportSwitched,
    Send,
    SendUnit,
    StartReplica,
    StopReplica,
    StoreUnit,
    Suspect,
    Trust,
)
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import Message
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.units import UnitHeader
from unbroken.protocol.vocabulary import PolicyEffects


class SelfPoster(Protocol):
    """The queue of the loop, into which it puts what is for this node itself."""

    def __call__(self, event: Event, rows: UnitRows = None) -> None: ...


@dataclass(frozen=True)
class EffectParts:
    """The parts of a node that carry its instructions out."""

    name: NodeId
    post: SelfPoster
    tell: Callable[[Notice], None]
    fail: Callable[[Notice], None]
    send: Callable[[NodeId, Message], None]
    send_unit: Callable[[NodeId, ReplicaId, UnitHeader], None]
    files: UnitFiles
    gate: GateClient
    outlets: SinkOutlets
    hosting: ReplicaHost[IngressService]
    transfers: Transfers[Any, Any]
    proposals: InSyncProposals
    policies: Sequence[PolicyEffects]


class NodeEffects(Effects[UnitRows]):
    """Hands every instruction to the part of the node that carries it out; nothing here waits."""

    def __init__(self, parts: EffectParts, protocol: NodeProtocol) -> None:
        super().__init__(parts.policies)
        self._parts = parts
        self._protocol = protocol

    # --- messages and units -----------------------------------------------------------------------------

    def send(self, step: Send) -> None:
        if step.to == self._parts.name:
            self._parts.post(Received(self._parts.name, step.message))
        else:
            self._parts.send(step.to, step.message)

    def send_unit(self, step: SendUnit) -> None:
        if step.to == self._parts.name:
            self._parts.post(UnitArrived(step.header, self._parts.name), step.replica)
        else:
            self._parts.send_unit(step.to, step.replica, step.header)

    def store_unit(self, step: StoreUnit, rows: UnitRows) -> None:
        self._parts.files.keep(step, rows)

    def repair_unit(self, step: RepairUnit, rows: UnitRows) -> None:
        self._parts.files.repair(step, rows)

    def drop_inbox(self, step: DropInbox) -> None:
        self._parts.files.drop_inbox(step)

    def drop_outbox(self, step: DropOutbox) -> None:
        self._parts.files.drop_outbox(step)
        ingress = self._parts.hosting.ingress
        if ingress is not None and step.replica == ingress.replica:
            units: dict[str, int] = {}
            for box in self._protocol.outboxes.of(step.replica):
                source = box.stream.producer.part
                units[source] = min(box.base, units.get(source, box.base))
            ingress.trim(units)

    def note_owed(self, step: NoteOwed) -> None:
        self._parts.files.note_owed(step)

    def answer_gate(self, step: AnswerGate) -> None:
        self._parts.gate.answer(step)

    def refuse_gate(self, step: RefuseGate) -> None:
        self._parts.gate.refuse(step)

    def deliver(self, step: Deliver) -> None:
        self._parts.outlets.deliver(step)

    # --- the ingress ------------------------------------------------------------------------------------

    def poll_sources(self, step: PollSources) -> None:
        self._ingress().poll(step)

    def persist_entry(self, step: PersistEntry) -> None:
        self._ingress().persist(step)

    def commit_entry(self, step: CommitEntry) -> None:
        self._ingress().commit(step.entry)

    def propose_in_sync(self, step: ProposeInSync) -> None:
        self._parts.proposals.propose(step, self._protocol.sync, self._protocol.ingress)

    def _ingress(self) -> IngressService:
        ingress = self._parts.hosting.ingress
        assert ingress is not None
        return ingress

    # --- replicas ---------------------------------------------------------------------------------------

    def start_replica(self, step: StartReplica) -> None:
        self._parts.hosting.start(step.replica)

    def stop_replica(self, step: StopReplica) -> None:
        self._parts.hosting.stop(step)

    def drop_replica(self, step: DropReplica) -> None:
        self._parts.hosting.drop(step.replica)

    def fetch_state(self, step: FetchState) -> None:
        self._parts.transfers.fetch(step)

    def abandon_fetch(self, step: AbandonFetch) -> None:
        self._parts.transfers.abandon(step.replica)

    def pin_state(self, step: PinState) -> None:
        self._parts.transfers.pin(step)

    def refuse_pin(self, step: RefusePin) -> None:
        self._parts.transfers.refuse(step)

    # --- the controller, the history --------------------------------------------------------------------

    def report_caught_up(self, step: ReportCaughtUp) -> None:
        self._parts.hosting.caught_up(step)

    def report_switched(self, step: ReportSwitched) -> None:
        self._parts.hosting.switched(step)

    def give_up(self, step: GiveUp) -> None:
        self._parts.hosting.give_up(step)

    def suspect(self, step: Suspect) -> None:
        self._parts.hosting.suspect(step)

    def trust(self, step: Trust) -> None:
        self._parts.hosting.trust(step)

    def end_node(self, step: EndNode) -> None:
        self._parts.fail(step.notice)

    def report(self, step: Report) -> None:
        self._parts.tell(step.notice)
