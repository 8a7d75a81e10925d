"""Damaged units of outboxes, and the copies of other replicas that take their place."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.errors import require
from unbroken.protocol.events import OutboxDamaged, ReplicaStopped, UnitArrived
from unbroken.protocol.instructions import EndNode, Instruction, RepairUnit, Report, Send, SendUnit
from unbroken.protocol.messages import AskUnit, LacksUnit
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.replica.hosting import Hosting
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import NodeId, ReplicaId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.notices.replicas import IngressUnitLost, UnitRepaired, UnitWithheld

AGAIN_MS = 2_000.0
"""Pause before other replicas are asked once more; longer than a large unit takes over an ordinary network."""

HOPE_MS = 5_000.0
"""How long a unit that no other replica keeps is waited for. They drop what all consumers have acknowledged, and the
acknowledgements may still be on their way here: then the unit is not needed."""


@dataclass
class Repair:
    """A unit that other replicas are asked for, and those of them that have said that they do not have it any more."""

    finding: str
    since_ms: float
    ask_ms: float
    lacking: set[NodeId] = field(default_factory=set)


@dataclass
class DamagedUnits:
    """The damaged units in the outboxes of a node.

    Invariant: a damaged unit is offered to no consumer; its place is taken by a copy with the same digest, or the
    replica stops when no other one has a copy. The ingress need not stop for good: a restart recomputes its units from
    the log.
    """

    around: Surroundings
    outboxes: Outboxes
    hosting: Hosting
    under_way: dict[tuple[StreamId, int], Repair] = field(default_factory=dict)

    def damaged(self, event: OutboxDamaged, now_ms: float) -> list[Instruction]:
        """A unit in an outbox here is not as it was written."""
        outboxes, stream, number = self.outboxes, event.stream, event.number
        if outboxes.owners.get(stream) != event.replica:
            return self.hosting.stopped(ReplicaStopped(event.replica, event.finding), now_ms)
        if not outboxes.boxes[stream].lose(number):
            return []
        self.under_way[stream, number] = Repair(event.finding, now_ms, now_ms)
        return [Report(UnitWithheld(event.replica, stream, number, event.finding))]

    def asked(self, sender: NodeId, message: AskUnit) -> list[Instruction]:
        """Another node asks for a unit that is damaged there."""
        box = self.outboxes.boxes.get(message.stream)
        if box is not None and box.offers(message.number):
            owner = self.outboxes.owners[message.stream]
            return [SendUnit(sender, owner, box.headers[message.number])]
        # One that is yet to be produced will be there when it is asked for once more.
        gone = box is not None and message.number <= box.last
        return [Send(sender, LacksUnit(message.stream, message.number, gone))]

    def lacks(self, sender: NodeId, message: LacksUnit) -> list[Instruction]:
        repair = self.under_way.get((message.stream, message.number))
        if repair is not None and message.gone:
            repair.lacking.add(sender)
        return []

    def arrived(self, event: UnitArrived) -> list[Instruction]:
        """Any copy of a unit that comes from another node takes the place of a damaged one."""
        header, outboxes = event.header, self.outboxes
        if event.sender == self.around.me or (header.stream, header.number) not in self.under_way:
            return []
        box, owner = outboxes.boxes.get(header.stream), outboxes.owners.get(header.stream)
        if box is None or owner is None or not box.repair(header):
            return []
        del self.under_way[header.stream, header.number]
        repaired = UnitRepaired(owner, header.stream, header.number, event.sender)
        return [RepairUnit(owner, header), Report(repaired), *outboxes.sends(box)]

    def tick(self, now_ms: float) -> list[Instruction]:
        out: list[Instruction] = []
        for (stream, number), repair in list(self.under_way.items()):
            box = self.outboxes.boxes.get(stream)
            if box is None or number not in box.damaged:
                del self.under_way[stream, number]  # every consumer has it, or it is not produced here any more
            elif self._hopeless(stream, repair, now_ms):
                del self.under_way[stream, number]
                out += self._give_up(self.outboxes.owners[stream], stream, number, repair, now_ms)
            elif now_ms >= repair.ask_ms:
                repair.ask_ms = now_ms + AGAIN_MS
                out += [
                    Send(node, AskUnit(stream, number)) for node in sorted(self._others(stream) & self.around.links)
                ]
        return out

    def wake_times_ms(self) -> list[float]:
        ends = [repair.since_ms + HOPE_MS for repair in self.under_way.values()]
        return [repair.ask_ms for repair in self.under_way.values()] + [
            end for end in ends if end > self.around.seen_ms
        ]

    def check(self) -> None:
        for stream, number in self.under_way:
            box = self.outboxes.boxes.get(stream)
            require(
                box is None or not box.offers(number),
                f"{stream}: unit {number} is offered while it is repaired",
                stream,
                unit=number,
            )

    def _others(self, stream: StreamId) -> set[NodeId]:
        return self.around.producers(stream) - {self.around.me}

    def _hopeless(self, stream: StreamId, repair: Repair, now_ms: float) -> bool:
        others = self._others(stream)
        if not others:
            return True
        if now_ms < repair.since_ms + HOPE_MS:
            return False
        # A restart of this node helps the ingress at once, and nobody knows when another node returns.
        possible = others & self.around.links if self._of_ingress(stream) else others
        return possible <= repair.lacking

    def _of_ingress(self, stream: StreamId) -> bool:
        return self.around.topology.host_shard(stream.producer) == INGRESS

    def _give_up(
        self, owner: ReplicaId, stream: StreamId, number: int, repair: Repair, now_ms: float
    ) -> list[Instruction]:
        if self._of_ingress(stream):
            return [EndNode(IngressUnitLost(stream, number, repair.finding))]
        nowhere = f"{repair.finding}, and no other replica has unit {number} of {stream}."
        how = "Restart the node: it recomputes the unit, or restores the shard from its last snapshot."
        return self.hosting.stopped(ReplicaStopped(owner, f"{nowhere} {how}"), now_ms)
