"""The sinks that a node's replicas deliver to."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.protocol.instructions import Deliver, Instruction, Report
from unbroken.protocol.output.at_most_once import Verdict
from unbroken.protocol.output.generation_switch import Handover
from unbroken.protocol.output.hedged_delivery import HedgedDelivery
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.values.ids import NodeId, ReplicaId, StreamId
from unbroken.protocol.values.layout import Layout


@dataclass
class SinkSide:
    """The deliveries of the streams to sinks that are produced here: hedged, or in turns where that is to be at most
    once.

    A process that begins with what an earlier one has left does not know what that one handed to a sink: it never hands
    over units up to ``tried`` itself. ``given_up`` are the first and the last unit that were not delivered for such a
    reason and are still to be told of. A stream that is ``stopped`` has a sink that takes no unit from that one on:
    what is produced for it is dropped, so that it neither fills the disk nor holds up the flow.

    Invariants: what is delivered comes out of an outbox here, and is dropped from it only when it is delivered or given
    up. In turns, a unit is handed over only by the replica that has the turn for it, and only once.
    """

    me: NodeId
    outboxes: Outboxes
    handover: Handover
    hedge_ms: float
    layout: Layout | None = None
    deliveries: dict[StreamId, HedgedDelivery] = field(default_factory=dict)
    tried: dict[StreamId, int] = field(default_factory=dict)
    given_up: dict[StreamId, tuple[int, int]] = field(default_factory=dict)
    stopped: dict[StreamId, int] = field(default_factory=dict)

    def open(self, stream: StreamId, replica: ReplicaId, layout: Layout, tried: int = 0) -> None:
        """Begin with what the outbox holds: what is not in it any more has been delivered."""
        box = self.outboxes.boxes[stream]
        delivery = HedgedDelivery(0, self.hedge_ms, delivered=box.base)
        self.deliveries[stream] = delivery
        self.tried[stream] = tried
        self.rank(layout)
        self.handover.delivered(stream, box.base)
        for number in box.headers:
            delivery.unit_ready(number, 0.0)

    def close(self, replica: ReplicaId) -> None:
        for stream in [stream for stream in self.deliveries if stream.producer == replica.shard]:
            del self.deliveries[stream]
            self.given_up.pop(stream, None)
            self.tried.pop(stream, None)

    def rank(self, layout: Layout) -> None:
        """The oldest replica delivers at once, the others a hedge delay later each; in turns nobody waits for time."""
        self.layout = layout
        if self._in_turns:
            return
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

    def stop(self, stream: StreamId, number: int) -> None:
        """The sink of a stream takes no unit from ``number`` on."""
        self.stopped[stream] = min(number, self.stopped.get(stream, number))

    def give_up(self, stream: StreamId) -> tuple[int, list[Instruction]]:
        """Pass over the units that come next and that nobody may deliver; how many, and what follows."""
        out: list[Instruction] = []
        delivery, count = self.deliveries[stream], 0
        while (verdict := self._verdict(stream)) is Verdict.GIVE_UP:
            number = delivery.delivered + 1
            final = self.outboxes.boxes[stream].headers[number].final
            delivery.pass_over(number)
            first, _ = self.given_up.get(stream, (number, number))
            self.given_up[stream] = (first, number)
            count += 1
            out += self._tell(stream) if final else []
        if verdict is Verdict.DELIVER:
            out += self._tell(stream)
        return count, [*(self.delivered(stream, delivery.delivered) if count else []), *out]

    def _tell(self, stream: StreamId) -> list[Instruction]:
        """The sentence about the units that were given up, once the last of them is known."""
        found = self.given_up.pop(stream, None)
        if found is None:
            return []
        first, last = found
        units = f"unit {first} of {stream} was" if first == last else f"units {first} to {last} of {stream} were"
        return [Report(f"{units} under way and may have been delivered; given up: at-most-once")]

    def _verdict(self, stream: StreamId) -> Verdict:
        """What to do with the next unit at this moment, by whose turn it is."""
        delivery, layout = self.deliveries[stream], self.layout
        turn = None if layout is None else layout.turns.get(stream.producer)
        header = self.outboxes.boxes[stream].headers.get(delivery.delivered + 1)
        if not self._in_turns or layout is None or turn is None or header is None:
            return Verdict.WAIT
        if delivery.delivering is not None or not self.handover.may_deliver(stream):
            return Verdict.WAIT
        verdict = turn.verdict(self.outboxes.owners[stream], header, layout.version)
        return Verdict.GIVE_UP if verdict is Verdict.DELIVER and header.number <= self.tried[stream] else verdict

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
                out.append(Deliver(self.outboxes.owners[stream], header, once=self._in_turns))
        return out

    def wake_times_ms(self) -> list[float]:
        if self._in_turns:
            return []  # whoever has the turn delivers at once, and for the others time changes nothing
        return [
            due
            for stream, delivery in self.deliveries.items()
            if self._may_deliver(stream) and (due := delivery.next_due_ms()) is not None
        ]

    @property
    def _in_turns(self) -> bool:
        return self.outboxes.topology.at_most_once

    def _may_deliver(self, stream: StreamId) -> bool:
        if self._in_turns:
            return self._verdict(stream) is Verdict.DELIVER
        return self.handover.may_deliver(stream) and not self.outboxes.boxes[stream].quiet

    def check(self) -> None:
        for delivery in self.deliveries.values():
            delivery.check()
