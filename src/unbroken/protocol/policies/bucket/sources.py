"""Sources that are cut each by itself, when a bucket of its event time is complete."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.policy import Policy
from unbroken.protocol.policy_set import Policies
from unbroken.protocol.surroundings import DeclaredFlow
from unbroken.protocol.values.consistency import DelayBound, InputHandling

WAITS = DelayBound(10_000, during_failure=InputHandling.SUSPEND, during_stabilization=InputHandling.SUSPEND)
"""For replicas that wait for missing input however long. They have to report it: what they lack may not even have been
asked for, as long as sources are held until all that was cut is processed. In ten seconds any input comes that is only
late."""


APART = 1 / 3
"""Share of the patience with missing input by which pulses are apart while something that was gone on without catches
up. Buckets that are closed together are processed together, which is how what is behind catches up."""


@dataclass
class Buckets(Policy):
    """Tells the kernel that sources go their own ways, and who has to report missing input because of that."""

    around: DeclaredFlow
    policies: Policies

    def separate(self) -> bool:
        return self.around.topology.bucketed

    def apart_ms(self) -> float:
        return self.policies.endured_ms() * APART if self.separate() else 0.0

    def patience(self, part: str) -> DelayBound | None:
        return WAITS if self.around.topology.bucketed else None
