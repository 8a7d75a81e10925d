"""What a user says of delay: how long a segment waits for input that is missing, and what it does without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unbroken.protocol.values.consistency import DelayBound, InputHandling, Reconcile
from unbroken.quantities import milliseconds

WAIT: Final = "wait"
"""Says that a segment waits for missing input, however long, where the dataflow says otherwise."""

POLICIES = tuple(policy.value for policy in InputHandling)
RECONCILES = tuple(way.value for way in Reconcile)


@dataclass(frozen=True)
class Availability:
    """Input that can be processed is processed within ``max_delay``, whatever other input is missing.

    What is made without missing input is tentative: when that input has come, stable results take its place. Nothing
    is checked before the dataflow is, so that all problems are told together.

    Parameters
    ----------
    max_delay
        The bound on the delay of results, such as ``"3s"``.
    alpha
        The share of it that is spent waiting. A failure that is over by then causes nothing but delay.
    during_failure, during_stabilization
        What becomes of input while other input is missing, and while the results without it are being replaced:
        ``"process"``, ``"delay"`` (results are held back as long as the bound allows) or ``"suspend"``.
    reconcile
        How the state without missing input is got rid of: ``"fork"``, ``"redo"`` or ``"undo"``.
    state_horizon
        With ``"undo"``: how far back in time a row can still matter, where that cannot be seen from the segment.
    """

    max_delay: str | float
    alpha: float = 0.9
    during_failure: str = InputHandling.PROCESS.value
    during_stabilization: str = InputHandling.PROCESS.value
    reconcile: str = Reconcile.FORK.value
    state_horizon: str | float | None = None

    def protocol(self) -> DelayBound:
        """The same, once it is known to make sense."""
        return DelayBound(
            max_delay_ms=float(milliseconds(self.max_delay)),
            alpha=float(self.alpha),
            during_failure=InputHandling(self.during_failure),
            during_stabilization=InputHandling(self.during_stabilization),
            reconcile=Reconcile(self.reconcile),
            horizon_ms=0.0 if self.state_horizon is None else float(milliseconds(self.state_horizon)),
        )
