"""What replicas tell each other while input is missing."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.plausibility import Plausibility, check_counter
from unbroken.protocol.values.consistency import Consistency
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.vocabulary import PolicyMessage


@dataclass(frozen=True)
class Health(PolicyMessage):
    """How the results of my replica stand, for its siblings and for those who read them."""

    replica: ReplicaId
    state: Consistency
    tentative: int = 0


def check_health(names: Plausibility, sender: NodeId, message: Health) -> None:
    """Raises `Implausible` if no node would send this."""
    names.own(sender, message.replica)
    check_counter(message.tentative)
