"""What replicas tell those who hold copies of their state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unbroken.protocol.plausibility import Plausibility, check_counter
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.vocabulary import PolicyMessage


@dataclass(frozen=True)
class Offer(PolicyMessage):
    """My replica's state of ``version`` is worth a copy to those that hold one."""

    acknowledges: ClassVar[bool] = True
    replica: ReplicaId
    version: int


def check_offer(names: Plausibility, sender: NodeId, message: Offer) -> None:
    """Raises `Implausible` if no node would send this."""
    names.own(sender, message.replica)
    check_counter(message.version)
