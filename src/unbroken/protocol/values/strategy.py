"""How a segment is kept available: what its backups do while all is well, and what it takes to go on without it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from unbroken.errors import require


class Ha(Enum):
    """The ways of Hwang et al., and none."""

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
    def running(self) -> int:
        """Replicas that process."""
        return 1 + self.backups if self.ha in (Ha.ACTIVE, Ha.ACTIVE_STANDBY) else 1

    @property
    def holding(self) -> int:
        """Replicas that only hold a copy of the state."""
        return self.backups if self.ha is Ha.PASSIVE else 0

    @property
    def nodes(self) -> int:
        """Nodes without which the segment could not be made as safe as it should be."""
        return 1 if self.ha is Ha.NONE else 1 + self.backups

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ha": self.ha.value}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Strategy:
        return cls(**{**value, "ha": Ha(value["ha"])})
