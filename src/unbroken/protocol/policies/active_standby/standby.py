"""Active standby: the replicas that have everything ready, and send it when the one before them is lost."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.instructions import Instruction, Report
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.policy import Policy
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.notices.replicas import StandbyPromoted
from unbroken.protocol.values.strategy import Ha


@dataclass
class ActiveStandby(Policy):
    """Keeps the outboxes of secondaries quiet.

    Whoever is mistaken about the primary sends too, and then consumers have every unit twice and take it once.

    Invariant: an outbox is quiet only while an older full replica of its shard is in reach.
    """

    around: Surroundings
    outboxes: Outboxes

    def tick(self, _now_ms: float) -> list[Instruction]:
        around, outboxes = self.around, self.outboxes
        out: list[Instruction] = []
        for stream, owner in outboxes.owners.items():
            if around.topology.strategy(owner.shard.part).ha is not Ha.ACTIVE_STANDBY:
                continue
            box, before = outboxes.boxes[stream], outboxes.boxes[stream].quiet
            box.quiet = self.elder(owner) is not None
            if before and not box.quiet:
                out.append(Report(StandbyPromoted(owner, around.me, stream, box.base + 1)))
                out += outboxes.sends(box)
        return out

    def elder(self, replica: ReplicaId) -> ReplicaId | None:
        """The replica that sends instead of this one."""
        layout = self.around.layout
        for other in sorted(layout.full(replica.shard)):
            if other.index < replica.index and layout.placement[other] in self.around.links:
                return other
        return None

    def check(self) -> None:
        for stream, box in self.outboxes.boxes.items():
            assert not box.quiet or self.elder(self.outboxes.owners[stream]) is not None, f"{stream} is held back"
