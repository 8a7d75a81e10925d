"""The ways in which a measured flow loses a node: killed, frozen or cut off for a while, or stopped and restarted."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from unbroken_lab.experiments.observed import LOOK_S

if TYPE_CHECKING:
    from unbroken_lab.experiments.observed import Observed

AWAY_S = 12.0
"""How long a frozen node stays so, or one that is cut off: three times the session time-out, so that it is given up
before it is back."""

STOP_S = 20.0
"""How long a node may take to end when it is asked to; then it is killed."""


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


def lose(run: Observed, node: str, loss: Loss, *, restart: bool) -> float:
    """Do it, and what follows: a node that is away comes back; one that was killed does if it is to ``restart``.

    Returns when it began, in ms since the epoch, as soon as nothing is left to be done.
    """
    process, began_ms = run.cluster.nodes[node], time.time() * 1000
    if loss is Loss.FREEZE:
        process.freeze()
        try:
            _wait(loss.away_s, run.reader.ended)
        finally:
            process.thaw()
    elif loss is Loss.CUT:
        run.links.isolate(node)
        try:
            _wait(loss.away_s, run.reader.ended)
        finally:
            run.links.heal_all()
    elif loss is Loss.RESTART:
        process.stop(STOP_S)
        run.cluster.start_node(node)
    else:
        run.kill(node)
        if restart:
            run.restart(node)
    return began_ms


def _wait(seconds: float, ended: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not ended():
        time.sleep(LOOK_S)
