"""The replicas at work on a node."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.protocol.ingress.seat import Seat
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.ids import ReplicaId


@dataclass
class Roster:
    """The segments' replicas that work here, and the node's seat in the ingress. Hosting alone changes it.

    Invariant: a replica that the layout does not place here is not at work here.
    """

    seat: Seat
    replicas: dict[ReplicaId, SegmentReplica] = field(default_factory=dict)

    def hosted(self) -> list[ReplicaId]:
        """The replicas at work here, with that of the ingress."""
        return sorted([*self.replicas, *([] if self.seat.replica is None else [self.seat.replica])])

    def check(self) -> None:
        for replica in self.replicas.values():
            replica.check()
        self.seat.check()
