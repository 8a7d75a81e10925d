"""The source side of an ingress node: when to cut a pulse, what goes into the log, who is waited for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from unbroken.protocol.events import EntriesPersisted, PushArrived, SourcesPolled
from unbroken.protocol.ingress.log import Admission, IngressLog, IngressMessage, InSync
from unbroken.protocol.ingress.pause import REST_MS, Rest
from unbroken.protocol.ingress.pulse import AdaptivePulse
from unbroken.protocol.instructions import Instruction, PollSources, Report
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices.ingress import IngressLed, PushMisdirected


@dataclass
class SourceSide:
    """A member of the ingress: its log, and the pulse if it leads.

    A link that breaks is usually up again after a moment, and a member once out of the in-sync set does not come
    back by itself; so a lost peer is given ``grace_ms`` to return before the store is asked to go on without it.

    ``rest`` is what the layout says of the sources: it is to be set before ``tick``. ``led``: whether it was reported
    that this member leads.

    Invariants: at most one pulse is being cut at a time, and only by the leader. No source is asked for rows unless it
    is to be read.
    """

    me: NodeId
    log: IngressLog
    pulse: AdaptivePulse
    grace_ms: float
    polling: bool = False
    suspects: dict[NodeId, float] = field(default_factory=dict)
    displaced: set[NodeId] = field(default_factory=set)
    rest: Rest = Rest.READING
    led: bool = False

    @property
    def may_cut(self) -> bool:
        return self.log.leading and not self.log.ended and not self.polling and self.rest is not Rest.STILL

    def idle(self, now_ms: float) -> bool:
        """Whether ``tick`` could do nothing, whatever the flow is like."""
        return not self.suspects and (now_ms < self.pulse.soonest_ms() or not self.may_cut)

    def tick(
        self,
        now_ms: float,
        in_flight: int,
        generation: int = 1,
        catching_up: bool = False,
        layout: int = 0,
        steady: bool = False,
        least_ms: float = 0.0,
    ) -> list[Instruction]:
        """Cut a pulse if it is time, and give up peers whose grace is over."""
        out: list[Instruction] = []
        paused = self.rest is Rest.EMPTY
        self.pulse.ease(now_ms, catching_up, least_ms)
        if paused:
            self.pulse.least_ms = max(self.pulse.least_ms, REST_MS)
        for peer in sorted(peer for peer, until in self.suspects.items() if now_ms >= until):
            del self.suspects[peer]
            out += self._told(self.log.lost(peer))
        # What a flow carries without rows says nothing about what it carries with them.
        if self.may_cut and self.pulse.due(now_ms, in_flight, steady or paused):
            self.polling = True
            out.append(PollSources(self.log.last_pulse + 1, generation, layout, paused))
        return out

    def wake_times_ms(self) -> list[float]:
        """When ``tick`` is worth calling; a held pulse waits for progress, not for time."""
        times = list(self.suspects.values())
        if self.may_cut and not self.pulse.held:
            times.append(self.pulse.next_due_ms())
        return times

    def polled(self, event: SourcesPolled) -> list[Instruction]:
        self.polling = False
        if not self.log.leading or event.pulse != self.log.last_pulse + 1:
            return []
        return self._told(self.log.append(event.body, event.pulse, event.final))

    def pushed(self, event: PushArrived) -> list[Instruction]:
        if not self.log.leading:
            return [Report(PushMisdirected(self.me))]
        return self._told(self.log.append(event.body))

    def persisted(self, event: EntriesPersisted) -> list[Instruction]:
        """Entries are on disk, if they are of this log."""
        return self._told(self.log.persisted(event.count)) if event.life == self.log.life else []

    def begin(self) -> list[Instruction]:
        """The first step, for which everything has to be ready."""
        return self._told(self.log.begin())

    def learn(self, peer: NodeId) -> tuple[Admission | None, list[Instruction]]:
        """A newcomer on ``peer`` is given a copy of the log as it is at this moment."""
        admission, steps = self.log.learn(peer)
        return admission, self._told(steps)

    def received(self, sender: NodeId, message: IngressMessage) -> list[Instruction]:
        return self._told(self.log.receive(sender, message))

    def connected(self, peer: NodeId) -> list[Instruction]:
        self.suspects.pop(peer, None)
        return self._told(self.log.connected(peer))

    def link_lost(self, peer: NodeId, now_ms: float) -> None:
        self.suspects.setdefault(peer, now_ms + self.grace_ms)

    def given_up(self, peer: NodeId) -> list[Instruction]:
        """``peer`` has no log any more, or the layout has given it up: nothing is left to wait for."""
        self.suspects.pop(peer, None)
        return self._told(self.log.lost(peer))

    def placed(self, nodes: Collection[NodeId], links: Collection[NodeId]) -> list[Instruction]:
        """These nodes have a replica of the ingress. A member or learner without one is not waited for.

        It may have died before any link to it stood, or live on without a log, or without knowing that it was replaced.
        """
        out: list[Instruction] = []
        for peer in sorted(self.displaced & set(nodes)):
            self.displaced.discard(peer)
            out += self._told(self.log.connected(peer)) if peer in links else []
        awaited = (self.log.sync.members - self.log.unreachable) | self.log.learners.known.keys()
        for peer in sorted(awaited - set(nodes) - {self.me}):
            self.displaced.add(peer)
            out += self.given_up(peer)
        return out

    def in_sync(self, sync: InSync) -> list[Instruction]:
        return self._told(self.log.in_sync(sync))

    def check(self) -> None:
        self.log.check()
        self.pulse.check()

    def _told(self, steps: list[Instruction]) -> list[Instruction]:
        """What the log wants; with a report if this member has come to lead by it."""
        out = list(steps)
        if self.log.leading and not self.led:
            out.append(Report(IngressLed(self.me, self.log.sync.term)))
        self.led = self.log.leading
        return out
