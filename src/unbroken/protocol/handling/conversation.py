"""What nodes tell each other, and to whom each message goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unbroken.protocol.agenda import Errand
from unbroken.protocol.events import LinkLost, LinkUp, Received, SubscriberGone
from unbroken.protocol.ingress.log import Append, AppendAck, Held, IngressMessage, JoinLog, JoinRefused, Recall
from unbroken.protocol.ingress.seat import Advance
from unbroken.protocol.instructions import Instruction, Send
from unbroken.protocol.messages import (
    Ack,
    AskUnit,
    Claim,
    Claimed,
    Delivered,
    DigestNote,
    LacksUnit,
    Missing,
    Ping,
    Pong,
    Progress,
    Serving,
    Subscribe,
    Unsubscribe,
)
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.placement.ring import Ring
from unbroken.protocol.policy import EventHandler, MessageHandler
from unbroken.protocol.policy_set import Policies
from unbroken.protocol.repair.damaged_units import DamagedUnits
from unbroken.protocol.repair.newcomers import Newcomers
from unbroken.protocol.replica.hosting import Hosting
from unbroken.protocol.replica.reports import Reports
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.replica.subscriptions import Subscriptions
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import NodeId, ReplicaId, generation_of


@dataclass
class Conversation:
    """Knows whom this node can reach, and hands every message to the part that it concerns.

    ``cutting`` is the errand of the ingress, which what is said about its log may make due.
    """

    around: Surroundings
    roster: Roster
    advance: Advance
    outboxes: Outboxes
    subscriptions: Subscriptions
    reports: Reports
    hosting: Hosting
    newcomers: Newcomers
    damaged_units: DamagedUnits
    ring: Ring
    policies: Policies
    cutting: Errand

    def __post_init__(self) -> None:
        self.handlers = self._handlers()

    def events(self) -> dict[type[Any], EventHandler]:
        return {
            Received: self.received,
            LinkUp: self.link_up,
            LinkLost: self.link_lost,
            SubscriberGone: self.subscriber_gone,
        }

    def _handlers(self) -> dict[type[Any], MessageHandler]:
        handlers: dict[type[Any], MessageHandler] = {
            Subscribe: self._subscribed,
            Unsubscribe: self._unsubscribed,
            Missing: lambda sender, message, _now_ms: self.subscriptions.missing(sender, message),
            AskUnit: lambda sender, message, _now_ms: self.damaged_units.asked(sender, message),
            LacksUnit: lambda sender, message, _now_ms: self.damaged_units.lacks(sender, message),
            Ack: lambda _sender, message, _now_ms: self.outboxes.ack(message),
            Claim: lambda sender, message, _now_ms: self.outboxes.claim(sender, message, self.around.layout),
            Claimed: self._claimed,
            Serving: lambda sender, message, _now_ms: self._sees_serving(sender, message.replica),
            DigestNote: self._digest_noted,
            Delivered: lambda _sender, message, _now_ms: self.reports.mark_delivered(
                message.stream, message.through, message.stopped
            ),
            Progress: self._hears_progress,
            Ping: lambda sender, message, _now_ms: [Send(sender, Pong(message.number))],
            Pong: lambda sender, message, _now_ms: self.ring.answered(sender, message.number),
        }
        handlers |= dict.fromkeys((Append, AppendAck, JoinLog, JoinRefused, Recall, Held), self._log_message)
        for policy in self.policies:
            handlers.update(policy.messages())
        return handlers

    def link_up(self, event: LinkUp, _now_ms: float) -> list[Instruction]:
        self.around.links.add(event.node)
        self.ring.link_up(event.node)
        out = self.reports.greet(event.node)
        if event.node != self.around.me:
            out += [Send(event.node, Serving(replica)) for replica in self.roster.hosted()]
        if self.roster.seat.sources is not None:
            out += self.roster.seat.sources.connected(event.node)
        return [*out, *self.newcomers.link_up(event.node), *self.policies.link_up(event.node)]

    def link_lost(self, event: LinkLost, now_ms: float) -> list[Instruction]:
        self.around.links.discard(event.node)
        placement = self.around.layout.placement
        self.around.serving -= {r for r in self.around.serving if placement.get(r) == event.node}
        if self.roster.seat.sources is not None:
            self.roster.seat.sources.link_lost(event.node, now_ms)
        self.policies.link_lost(event.node)
        return [*self.ring.link_lost(event.node), *self.subscriptions.update_all()]

    def subscriber_gone(self, event: SubscriberGone, _now_ms: float) -> list[Instruction]:
        self.outboxes.subscriber_gone(event.node)
        self.policies.subscriber_gone(event.node)
        return []

    def received(self, event: Received, now_ms: float) -> list[Instruction]:
        return self.handlers[type(event.message)](event.sender, event.message, now_ms)

    def _subscribed(self, sender: NodeId, message: Subscribe, _now_ms: float) -> list[Instruction]:
        return [*self.outboxes.subscribe(sender, message), *self.policies.subscribed(sender, message)]

    def _unsubscribed(self, _sender: NodeId, message: Unsubscribe, _now_ms: float) -> list[Instruction]:
        self.outboxes.unsubscribe(message)
        self.policies.unsubscribed(message)
        return []

    def _claimed(self, sender: NodeId, message: Claimed, _now_ms: float) -> list[Instruction]:
        return [] if self.policies.claimed(sender, message) else self.newcomers.claimed(sender, message)

    def _digest_noted(self, _sender: NodeId, message: DigestNote, _now_ms: float) -> list[Instruction]:
        # Code that was given up while it came may have begun with another state than what is in its place.
        first = generation_of(message.replica.shard.part) == 1
        return self.hosting.compare(message) if first or self.around.may_count(message.replica) else []

    def _log_message(self, sender: NodeId, message: IngressMessage, _now_ms: float) -> list[Instruction]:
        self.cutting.mark()
        return [] if self.roster.seat.sources is None else self.roster.seat.sources.received(sender, message)

    def _hears_progress(self, sender: NodeId, message: Progress, now_ms: float) -> list[Instruction]:
        """How far a replica is. Whoever cuts the sources hears it from another member of the ingress as well: it may be
        out of reach of the replica, and must not wait for it for ever."""
        replica, host = message.replica, self.around.layout.placement.get(message.replica)
        self.advance.reaches(replica, message.pulse, now_ms)
        if sender == host or host not in self.around.links:
            # This one may go back, and what comes first hand is newer.
            self.advance.goes_ahead(replica, message.ahead)
        passes_on = (
            sender == host
            and self.roster.seat.sources is not None
            and self.around.sync.leader not in (self.around.me, sender)
        )
        return [Send(self.around.sync.leader, message)] if passes_on else []

    def _sees_serving(self, sender: NodeId, replica: ReplicaId) -> list[Instruction]:
        self.around.serving.add(replica)
        return [*self.reports.greet(sender), *self.newcomers.link_up(sender), *self.policies.link_up(sender)]
