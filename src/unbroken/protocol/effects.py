"""What the shell around the protocol can do: one method per instruction, and the one place that calls them.

A node implements it with threads, sockets, files and Spark, the simulator with virtual time. An instruction without a
method here fails the type check of `carry_out`, and a method that a shell does not have fails when it is made. The
instructions of a policy are carried out by an interface of its own, which comes with its package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar, assert_never

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
    Instruction,
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
from unbroken.protocol.values.ingress_log import ProposeInSync
from unbroken.protocol.vocabulary import PolicyEffects, PolicyInstruction

Rows = TypeVar("Rows", contravariant=True)


class Effects(ABC, Generic[Rows]):
    """Carries out the instructions of one node, each at once and in the order in which the protocol gives them.

    None of them waits for anything: what takes time is handed over, and an event reports its end. The docstrings of the
    instructions are the contract of the methods. ``Rows`` is what comes with the event of a unit: its rows, in
    whatever form the shell keeps them. ``policies`` carry out what only one policy asks for.
    """

    def __init__(self, policies: Sequence[PolicyEffects]) -> None:
        self.policies = policies

    @abstractmethod
    def send(self, step: Send) -> None: ...

    @abstractmethod
    def send_unit(self, step: SendUnit) -> None: ...

    @abstractmethod
    def store_unit(self, step: StoreUnit, rows: Rows) -> None: ...

    @abstractmethod
    def repair_unit(self, step: RepairUnit, rows: Rows) -> None: ...

    @abstractmethod
    def drop_inbox(self, step: DropInbox) -> None: ...

    @abstractmethod
    def drop_outbox(self, step: DropOutbox) -> None: ...

    @abstractmethod
    def answer_gate(self, step: AnswerGate) -> None: ...

    @abstractmethod
    def refuse_gate(self, step: RefuseGate) -> None: ...

    @abstractmethod
    def deliver(self, step: Deliver) -> None: ...

    @abstractmethod
    def poll_sources(self, step: PollSources) -> None: ...

    @abstractmethod
    def persist_entry(self, step: PersistEntry) -> None: ...

    @abstractmethod
    def commit_entry(self, step: CommitEntry) -> None: ...

    @abstractmethod
    def propose_in_sync(self, step: ProposeInSync) -> None: ...

    @abstractmethod
    def note_owed(self, step: NoteOwed) -> None: ...

    @abstractmethod
    def start_replica(self, step: StartReplica) -> None: ...

    @abstractmethod
    def stop_replica(self, step: StopReplica) -> None: ...

    @abstractmethod
    def drop_replica(self, step: DropReplica) -> None: ...

    @abstractmethod
    def fetch_state(self, step: FetchState) -> None: ...

    @abstractmethod
    def abandon_fetch(self, step: AbandonFetch) -> None: ...

    @abstractmethod
    def pin_state(self, step: PinState) -> None: ...

    @abstractmethod
    def refuse_pin(self, step: RefusePin) -> None: ...

    @abstractmethod
    def report_caught_up(self, step: ReportCaughtUp) -> None: ...

    @abstractmethod
    def report_switched(self, step: ReportSwitched) -> None: ...

    @abstractmethod
    def give_up(self, step: GiveUp) -> None: ...

    @abstractmethod
    def suspect(self, step: Suspect) -> None: ...

    @abstractmethod
    def trust(self, step: Trust) -> None: ...

    @abstractmethod
    def end_node(self, step: EndNode) -> None: ...

    @abstractmethod
    def report(self, step: Report) -> None: ...


def carry_out(effects: Effects[Rows], step: Instruction, rows: Rows) -> None:
    """Do what an instruction says; ``rows`` came with the event that led to it. The frequent ones come first."""
    match step:
        case Send():
            effects.send(step)
        case SendUnit():
            effects.send_unit(step)
        case StoreUnit():
            effects.store_unit(step, rows)
        case DropInbox():
            effects.drop_inbox(step)
        case DropOutbox():
            effects.drop_outbox(step)
        case AnswerGate():
            effects.answer_gate(step)
        case Deliver():
            effects.deliver(step)
        case PersistEntry():
            effects.persist_entry(step)
        case CommitEntry():
            effects.commit_entry(step)
        case PollSources():
            effects.poll_sources(step)
        case NoteOwed():
            effects.note_owed(step)
        case Report():
            effects.report(step)
        case RepairUnit():
            effects.repair_unit(step, rows)
        case RefuseGate():
            effects.refuse_gate(step)
        case ProposeInSync():
            effects.propose_in_sync(step)
        case StartReplica():
            effects.start_replica(step)
        case StopReplica():
            effects.stop_replica(step)
        case DropReplica():
            effects.drop_replica(step)
        case FetchState():
            effects.fetch_state(step)
        case AbandonFetch():
            effects.abandon_fetch(step)
        case PinState():
            effects.pin_state(step)
        case RefusePin():
            effects.refuse_pin(step)
        case ReportCaughtUp():
            effects.report_caught_up(step)
        case ReportSwitched():
            effects.report_switched(step)
        case GiveUp():
            effects.give_up(step)
        case Suspect():
            effects.suspect(step)
        case Trust():
            effects.trust(step)
        case EndNode():
            effects.end_node(step)
        case PolicyInstruction():
            step.carry_out(effects.policies)
        case _:
            assert_never(step)
