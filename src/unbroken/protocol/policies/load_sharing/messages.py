"""What the shards of a segment that share its load tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unbroken.protocol.plausibility import Plausibility, check_counter, check_rebuilt
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.protocol.vocabulary import PolicyMessage


@dataclass(frozen=True)
class Record(PolicyMessage):
    """My replica is done with its input up to ``purged`` and has the rest up to ``pending`` under way.

    Its state can be rebuilt from what follows ``purged``; ``rebuilt`` says what it is worth then.
    """

    acknowledges: ClassVar[bool] = True
    replica: ReplicaId
    purged: int
    rebuilt: Rebuilt
    pending: int


def check_record(names: Plausibility, sender: NodeId, message: Record) -> None:
    """Raises `Implausible` if no node would send this."""
    names.own(sender, message.replica)
    check_counter(message.purged)
    check_counter(message.pending)
    check_rebuilt(message.rebuilt)
