"""How a segment is kept available: what its backups do while all is well, and what it takes to go on without it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from unbroken.errors import require
from unbroken.protocol.registry import Backups, registered


class Ha(Enum):
    """The ways of Hwang et al., and none: names only, what is true of each is in the registry."""

    ACTIVE = "active"
    ACTIVE_STANDBY = "active-standby"
    PASSIVE = "passive"
    UPSTREAM = "upstream"
    NONE = "none"


STATELESS = 0.0
"""The horizon of a segment whose results depend on nothing but the unit they are made from."""


@dataclass(frozen=True)
class Strategy:
    """What a segment's ``backups`` do.

    - ``active``: they process everything and send their results; the first copy wins.
    - ``active-standby``: they process everything and keep their results; one sends them when the primary is lost.
    - ``passive``: they hold a copy of the primary's state, brought up to date every ``every`` units.
    - ``upstream``: there are none; producers keep what a spare needs to build the state again, which is what reaches
      back ``horizon_ms`` of event time (of cut time, if ``timed`` is false) from what consumers have acknowledged.
    - ``none``: there are none; the segment waits for its node to return.

    A segment that ``shares`` its load has shards that stand in for each other: the next in their ring takes the place
    of one that is lost, until its node returns.

    With ``upstream``, ``backups`` is the number of nodes that may fail at once: producers keep a unit until the effects
    of its effects are safe beyond what so many nodes host (``levels``). ``foldable``: its state comes out the same
    however its input is divided into units, so that it may be built again with a few large ones.
    """

    ha: Ha = Ha.ACTIVE
    backups: int = 1
    every: int = 1
    horizon_ms: float = STATELESS
    timed: bool = True
    shares: bool = False
    foldable: bool = False

    def __post_init__(self) -> None:
        require(self.backups >= 0 and self.every >= 1 and self.horizon_ms >= 0, f"no strategy: {self}")

    @property
    def kept_by(self) -> Backups:
        """What its backups do while all is well."""
        return registered(self.ha.value).backups

    @property
    def rebuilt(self) -> bool:
        """Whether its state is rebuilt from recent input, which ``horizon_ms`` is about."""
        return registered(self.ha.value).rebuilds

    @property
    def running(self) -> int:
        """Replicas that process."""
        return 1 + self.backups if self.kept_by is Backups.PROCESS else 1

    @property
    def holding(self) -> int:
        """Replicas that only hold a copy of the state."""
        return self.backups if self.kept_by is Backups.HOLD else 0

    @property
    def nodes(self) -> int:
        """Nodes without which the segment could not be made as safe as it should be."""
        return 1 if self.kept_by is Backups.NONE else 1 + self.backups
