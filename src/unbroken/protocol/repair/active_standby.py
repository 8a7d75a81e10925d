"""Active standby: the replicas that have everything ready, and send it when the one before them is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unbroken.protocol.instructions import Instruction, Report
from unbroken.protocol.values.ids import ReplicaId

if TYPE_CHECKING:
    from unbroken.protocol.machine import NodeProtocol


@dataclass
class Standby:
    """Keeps the outboxes of secondaries quiet.

    Whoever is mistaken about the primary sends too, and then consumers have every unit twice and take it once.

    Invariant: an outbox is quiet only while an older full replica of its shard is in reach.
    """

    node: NodeProtocol

    def tick(self) -> list[Instruction]:
        node = self.node
        out: list[Instruction] = []
        if not node.topology.standbys:
            return out
        for stream, owner in node.outboxes.owners.items():
            if owner.shard.part not in node.topology.standbys:
                continue
            box, before = node.outboxes.boxes[stream], node.outboxes.boxes[stream].quiet
            box.quiet = self.elder(owner) is not None
            if before and not box.quiet:
                out.append(Report(f"{owner} on {node.me} sends {stream} from unit {box.base + 1} on: no elder is left"))
                out += node.outboxes.sends(box)
        return out

    def elder(self, replica: ReplicaId) -> ReplicaId | None:
        """The replica that sends instead of this one."""
        node = self.node
        for other in sorted(node.layout.full(replica.shard)):
            if other.index < replica.index and node.layout.placement[other] in node.links:
                return other
        return None

    def check(self) -> None:
        for stream, box in self.node.outboxes.boxes.items():
            assert not box.quiet or self.elder(self.node.outboxes.owners[stream]) is not None, f"{stream} is held back"
