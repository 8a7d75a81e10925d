"""Consistency against availability: how long to wait for input that is missing, and what to do without it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from unbroken.errors import require
from unbroken.protocol.registry import registered
from unbroken.protocol.values.ids import ReplicaId


class Consistency(Enum):
    """How a replica's results stand.

    STABLE: they are final as they come. UP_FAILURE: part of the input is missing, and what follows without it is
    tentative. STABILIZATION: the missing input has come, and the results without it are being replaced.
    """

    STABLE = "stable"
    UP_FAILURE = "up-failure"
    STABILIZATION = "stabilization"


@dataclass(frozen=True)
class Outlook:
    """How the results of a replica stand that is watched for missing input.

    ``blocked``: input has come that waits for other input. Tentative results up to pulse ``given`` are not replaced yet
    (0: there are none), stable ones are there up to ``stable``. ``fork`` makes the tentative ones and has come to
    ``fork_pulse``. ``settled``: nothing is tentative, and no fork is needed.
    """

    state: Consistency
    blocked: bool
    given: int
    stable: int
    fork: ReplicaId | None
    fork_pulse: int
    settled: bool


class InputHandling(Enum):
    """What becomes of input that has come while other input is missing, or while the past is put right.

    PROCESS: it is processed as it comes. DELAY: its results are held back as long as the bound allows, so that fewer
    of them have to be taken back. SUSPEND: it waits, and nothing tentative is given out.
    """

    PROCESS = "process"
    DELAY = "delay"
    SUSPEND = "suspend"


class Reconcile(Enum):
    """How a replica gets back to the state it would have without the failure.

    FORK: its query waits untouched while a copy of it goes on without the missing input. REDO: its query itself goes
    on, from a state that is kept, and is set back to that. UNDO: no state is kept; the oldest input that still matters
    is processed again.
    """

    FORK = "fork"
    REDO = "redo"
    UNDO = "undo"


@dataclass(frozen=True)
class DelayBound:
    """Input that can be processed is processed within ``max_delay_ms``, whatever other input is missing.

    A replica waits for missing input ``alpha`` times that long; a failure that is over by then shows in nothing but
    delay. ``horizon_ms`` is how far back input matters to the state, for UNDO alone; ``timed`` says that it is counted
    in event time, and ``foldable`` that it may be processed again with a few large micro-batches.
    """

    max_delay_ms: float
    alpha: float = 0.9
    during_failure: InputHandling = InputHandling.PROCESS
    during_stabilization: InputHandling = InputHandling.PROCESS
    reconcile: Reconcile = Reconcile.FORK
    horizon_ms: float = 0.0
    timed: bool = True
    foldable: bool = False

    def __post_init__(self) -> None:
        require(self.max_delay_ms > 0 and 0 < self.alpha < 1, f"no bound on the delay: {self}")

    @property
    def rebuilt(self) -> bool:
        """Whether the way back rebuilds state from recent input, which ``horizon_ms`` is about."""
        return registered(self.reconcile.value).rebuilds

    @property
    def patience_ms(self) -> float:
        """How long missing input is waited for."""
        return self.max_delay_ms * self.alpha
