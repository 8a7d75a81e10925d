"""Which events leave nothing to look after: most of those of a flow in which all is well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unbroken.protocol.events import Event, GateAsked, Produced, Received, UnitArrived
from unbroken.protocol.instructions import (
    AnswerGate,
    DropInbox,
    DropOutbox,
    Instruction,
    NoteOwed,
    Send,
    SendUnit,
    StoreUnit,
)
from unbroken.protocol.messages import Ack, DigestNote, Ping, Pong, Progress

if TYPE_CHECKING:
    from unbroken.protocol.machine import NodeProtocol

PLAIN_MESSAGES = frozenset({Ack, DigestNote, Ping, Pong, Progress})
PLAIN_STEPS = frozenset({AnswerGate, DropInbox, DropOutbox, NoteOwed, Send, SendUnit, StoreUnit})
"""What comes of an event that changes nothing but where units are."""


@dataclass
class Calm:
    """Tells when a node need not look at everything it is responsible for after an event.

    That look (``NodeProtocol`` calls it a tick) costs more than the event itself, and almost always finds nothing. It
    is left out only where it could not: nobody joins, holds a copy, gives orders, goes on without input or counts on
    its producers here, no pulse waits for progress, no sink for a unit, and nothing is due by time. Whatever is not
    known to be harmless is looked after.

    Invariant: a tick right after an event that was left out would give no instruction.
    """

    node: NodeProtocol

    def after(self, event: Event, steps: Sequence[Instruction]) -> bool:
        """Whether nothing is left to do after an event and the steps that follow from it."""
        if not self._plain(event):
            return False
        for step in steps:
            if type(step) not in PLAIN_STEPS:
                return False
        return self._ordinary()

    def _plain(self, event: Event) -> bool:
        """Whether it is one of those that only move units, and concerns nobody but replicas at work."""
        if isinstance(event, Received):
            return type(event.message) in PLAIN_MESSAGES
        if isinstance(event, Produced):
            return not self._hands_over()
        return type(event) is UnitArrived or (type(event) is GateAsked and event.replica in self.node.replicas)

    def _ordinary(self) -> bool:
        """Whether there is nothing here but replicas at work by pulses, and sources that wait for nobody."""
        node = self.node
        if (
            node.repairs.under_way
            or node.joining.joins
            or node.joining.asked
            or node.holding.copies
            or node.upstream.causes
        ):
            return False
        if node.leading.led or node.forking.watches or node.forking.orphans or node.settings.single_delivery:
            return False
        return node.sources is None or not (node.sources.pulse.held or node.sources.copy_again)

    def _hands_over(self) -> bool:
        """Whether a unit produced here may be for a sink, or change who sends."""
        node = self.node
        return bool(node.sinks.deliveries or node.handover.since or node.topology.standbys)
