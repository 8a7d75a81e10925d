"""The sinks that a node's replicas deliver to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from unbroken.protocol.instructions import Deliver, Instruction
from unbroken.protocol.output.generation_switch import GenerationSwitch
from unbroken.protocol.output.hedged_delivery import HedgedDelivery
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.values.ids import NodeId, ReplicaId, StreamId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.turns import Verdict


class DeliveryRule(Protocol):
    """Decides what becomes of the next unit of a stream; None: the oldest replica delivers it, then the others."""

    def verdict(self, stream: StreamId) -> Verdict | None: ...


class Hedged:
    """The rule that leaves everything to hedged delivery."""

    def verdict(self, stream: StreamId) -> Verdict | None:
        return None


@dataclass
class Sinks:
    """The deliveries of the streams to sinks that are produced here: hedged, unless a rule says otherwise.

    A process that begins with what an earlier one has left does not know what that one handed to a sink: ``tried`` is
    the last unit that it may have been. A stream that is ``stopped`` has a sink that takes no unit from that one on:
    what is produced for it is dropped, so that it neither fills the disk nor holds up the flow. ``listeners`` are
    called when there may be something to deliver.

    Invariant: what is delivered comes out of an outbox here, and is dropped from it only when it is done with.
    """

    me: NodeId
    outboxes: Outboxes
    generation_switch: GenerationSwitch
    hedge_ms: float
    rule: DeliveryRule = field(default_factory=Hedged)
    deliveries: dict[StreamId, HedgedDelivery] = field(default_factory=dict)
    tried: dict[StreamId, int] = field(default_factory=dict)
    stopped: dict[StreamId, int] = field(default_factory=dict)
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def open(self, stream: StreamId, replica: ReplicaId, layout: Layout, tried: int = 0) -> None:
        """Begin with what the outbox holds: what is not in it any more has been delivered."""
        box = self.outboxes.boxes[stream]
        delivery = HedgedDelivery(0, self.hedge_ms, delivered=box.base)
        self.deliveries[stream] = delivery
        self.tried[stream] = tried
        self.rank(layout)
        self.generation_switch.delivered(stream, box.base)
        for number in box.headers:
            delivery.unit_ready(number, 0.0)

    def on_change(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    def changed(self) -> None:
        for listener in self.listeners:
            listener()

    def close(self, replica: ReplicaId) -> None:
        for stream in [stream for stream in self.deliveries if stream.producer == replica.shard]:
            del self.deliveries[stream]
            self.tried.pop(stream, None)

    def rank(self, layout: Layout) -> None:
        """The oldest replica delivers at once, the others a hedge delay later each; by a rule nobody waits for time."""
        self.changed()
        for stream, delivery in self.deliveries.items():
            if self.rule.verdict(stream) is not None:
                continue
            counted = sorted(layout.working(stream.producer))
            mine = next((replica for replica in counted if layout.placement[replica] == self.me), None)
            if mine is not None:
                delivery.rank = counted.index(mine)

    def ready(self, stream: StreamId, number: int, now_ms: float) -> None:
        if stream in self.deliveries:
            self.deliveries[stream].unit_ready(number, now_ms)
            self.changed()

    def passed_over(self, stream: StreamId, number: int) -> bool:
        """A unit was produced that is not for the sink; whether this counts as progress."""
        delivery = self.deliveries.get(stream)
        if delivery is None:
            return False
        before = delivery.delivered
        delivery.pass_over(number)
        self.changed()
        return delivery.delivered > before

    def finished(self, stream: StreamId, number: int) -> list[Instruction]:
        """A sink came back with a unit that was handed to it here."""
        if stream in self.deliveries:
            self.deliveries[stream].finish(number)
        return self.delivered(stream, number)

    def delivered(self, stream: StreamId, through: int) -> list[Instruction]:
        """Units up to ``through`` are in the sink, whoever put them there."""
        delivery = self.deliveries.get(stream)
        if delivery is None:
            return []
        delivery.mark_delivered(through)
        self.changed()
        box = self.outboxes.boxes[stream]
        for consumer in box.counted:
            box.ack(str(consumer), delivery.done_with)
        return self.outboxes.trim(box)

    def stop(self, stream: StreamId, number: int) -> None:
        """The sink of a stream takes no unit from ``number`` on."""
        self.stopped[stream] = min(number, self.stopped.get(stream, number))
        self.changed()

    def tick(self, now_ms: float) -> list[Instruction]:
        out: list[Instruction] = []
        for stream in self.stopped.keys() & self.deliveries.keys():
            last = self.outboxes.boxes[stream].last
            if self.deliveries[stream].delivering is None and last > self.deliveries[stream].delivered:
                out += self.delivered(stream, last)
        for stream, delivery in self.deliveries.items():
            number = delivery.next_delivery(now_ms) if self._may_deliver(stream) else None
            if number is not None:
                header = self.outboxes.boxes[stream].headers[number]
                once = self.rule.verdict(stream) is not None
                out.append(Deliver(self.outboxes.owners[stream], header, once=once))
        return out

    def wake_times_ms(self) -> list[float]:
        return [
            due
            for stream, delivery in self.deliveries.items()
            if self._may_deliver(stream) and (due := delivery.next_due_ms()) is not None
        ]

    def _may_deliver(self, stream: StreamId) -> bool:
        verdict = self.rule.verdict(stream)
        if verdict is not None:
            return verdict is Verdict.DELIVER
        return self.generation_switch.may_deliver(stream) and not self.outboxes.boxes[stream].quiet

    def check(self) -> None:
        for delivery in self.deliveries.values():
            delivery.check()
