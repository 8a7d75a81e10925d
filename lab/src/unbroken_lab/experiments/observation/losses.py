"""The ways in which a measured flow loses a node: killed, frozen or cut off for a while, or stopped and restarted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from unbroken.testing.faults import Fault, Freeze, Kill, Partition, Restart
from unbroken_lab.experiments.observation.observed import LOOK_S

if TYPE_CHECKING:
    from unbroken_lab.experiments.observation.observed import Observed

AWAY_S = 12.0
"""How long a frozen node stays so, or one that is cut off: three times the session time-out, so that it is given up
before it is back."""


class Loss(Enum):
    """What is done to a node."""

    KILL = "kill -9"
    FREEZE = "freeze"
    CUT = "lost links"
    RESTART = "graceful restart"

    @property
    def away_s(self) -> float:
        """For how long the node is away while its process lives; it goes on by itself afterwards."""
        return AWAY_S if self in (Loss.FREEZE, Loss.CUT) else 0.0

    def fault(self, node: str) -> Fault:
        """What is done."""
        match self:
            case Loss.FREEZE:
                return Freeze(node, AWAY_S)
            case Loss.CUT:
                return Partition(node, for_s=AWAY_S)
            case Loss.RESTART:
                return Restart(node)
        return Kill(node)


@dataclass(frozen=True)
class NodeLoss:
    """What was lost when, and whether it was the node that decides about the layout, which costs an election."""

    node: str
    at_ms: float
    controlled: bool


def lose(run: Observed, node: str, loss: Loss, *, restart: bool) -> float:
    """Do it, and what follows: a node that is away comes back; one that was killed does if it is to ``restart``.

    Returns when it began, in ms since the epoch, as soon as nothing is left to be done.
    """
    began_ms = run.strike(loss.fault(node)).at_ms
    while run.harness.lasting and not run.reader.ended():
        time.sleep(LOOK_S)
    if restart and loss is Loss.KILL:
        run.restart(node)
    return began_ms
