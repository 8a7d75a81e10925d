"""The sinks that a node's replicas deliver to."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.protocol.delivery import HedgedDelivery
from unbroken.protocol.handover import Handover
from unbroken.protocol.ids import NodeId, ReplicaId, StreamId
from unbroken.protocol.instructions import Deliver, Instruction
from unbroken.protocol.layout import Layout
from unbroken.protocol.outboxes import Outboxes


@dataclass
class SinkSide:
    """The hedged deliveries of the streams to sinks that are produced here.

    Invariant: what is delivered comes out of an outbox here, and is dropped from it only when it is delivered.
    """

    me: NodeId
    outboxes: Outboxes
    handover: Handover
    hedge_ms: float
    deliveries: dict[StreamId, HedgedDelivery] = field(default_factory=dict)

    def open(self, stream: StreamId, replica: ReplicaId, layout: Layout) -> None:
        """Begin with what the outbox holds: what is not in it any more has been delivered."""
        box = self.outboxes.boxes[stream]
        delivery = HedgedDelivery(0, self.hedge_ms, delivered=box.base)
        self.deliveries[stream] = delivery
        self.rank(layout)
        self.handover.delivered(stream, box.base)
        for number in box.headers:
            delivery.unit_ready(number, 0.0)

    def close(self, replica: ReplicaId) -> None:
        for stream in [stream for stream in self.deliveries if stream.producer == replica.shard]:
            del self.deliveries[stream]

    def rank(self, layout: Layout) -> None:
        """The oldest replica delivers at once, the others a hedge delay later each."""
        for stream, delivery in self.deliveries.items():
            counted = sorted(layout.working(stream.producer))
            mine = next((replica for replica in counted if layout.placement[replica] == self.me), None)
            if mine is not None:
                delivery.rank = counted.index(mine)

    def ready(self, stream: StreamId, number: int, now_ms: float) -> None:
        if stream in self.deliveries:
            self.deliveries[stream].unit_ready(number, now_ms)

    def passed_over(self, stream: StreamId, number: int) -> bool:
        """A unit was produced that is not for the sink; whether this counts as progress."""
        delivery = self.deliveries.get(stream)
        if delivery is None:
            return False
        before = delivery.delivered
        delivery.pass_over(number)
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
        box = self.outboxes.boxes[stream]
        for consumer in box.counted:
            box.ack(str(consumer), delivery.done_with)
        return self.outboxes.trim(box)

    def tick(self, now_ms: float) -> list[Instruction]:
        out: list[Instruction] = []
        for stream, delivery in self.deliveries.items():
            number = delivery.next_delivery(now_ms) if self._may_deliver(stream) else None
            if number is not None:
                out.append(Deliver(self.outboxes.owners[stream], self.outboxes.boxes[stream].headers[number]))
        return out

    def wake_times_ms(self) -> list[float]:
        return [
            due
            for stream, delivery in self.deliveries.items()
            if self._may_deliver(stream) and (due := delivery.next_due_ms()) is not None
        ]

    def _may_deliver(self, stream: StreamId) -> bool:
        return self.handover.may_deliver(stream) and not self.outboxes.boxes[stream].quiet

    def check(self) -> None:
        for delivery in self.deliveries.values():
            delivery.check()
