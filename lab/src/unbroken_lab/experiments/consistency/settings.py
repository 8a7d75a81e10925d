"""What `unbroken bench consistency` is to measure: failures, policies, and the load of the flow meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unbroken.errors import UnbrokenError
from unbroken.flow.availability import POLICIES, RECONCILES
from unbroken.quantities import milliseconds
from unbroken_lab.experiments.consistency.figures import BEST
from unbroken_lab.experiments.consistency.reader import BoundedReader
from unbroken_lab.experiments.experiment import parted
from unbroken_lab.experiments.flows.interrupted import KEYS, SOURCES, WINDOW_MS, Stream

if TYPE_CHECKING:
    from unbroken.client import Subscription

PAIRS = (BEST[0], "process/delay", "process/suspend", "delay/process", "delay/delay", "delay/suspend")
"""What is done with new input during the failure, and while results are put right."""

WARM_S = 25.0
QUIET_S = 10.0
"""Time in which the flow becomes warm, and time without a failure before each one."""

SETTLED_BUCKETS = 4
SETTLED_MS = 2_000.0
"""Results are usual when they come within a few buckets, and short buckets are not processed one by one."""

LONGEST_S = 600.0


@dataclass(frozen=True)
class HandlingCase:
    """What is done with new input, and how the past is put right."""

    policy: str
    reconcile: str

    def __str__(self) -> str:
        return f"{self.policy}, {self.reconcile}"

    def to_json(self) -> dict[str, Any]:
        return {"policy": self.policy, "reconcile": self.reconcile}


@dataclass(frozen=True)
class ConsistencySettings:
    """What to measure. All failures of a case are caused in one run, one after the other, ``repeat`` times.

    ``keys`` and ``window_ms`` set the size of the state, ``depth`` is the number of segments in a chain.
    """

    durations: Sequence[float] = (2.0, 5.0, 15.0, 30.0)
    policies: Sequence[str] = PAIRS
    reconciles: Sequence[str] = ("fork", "redo", "undo")
    max_delay_ms: float = 3_000.0
    alpha: float = 0.9
    rate: int = 4_500
    bucket_ms: int = 500
    replicas: int = 1
    repeat: int = 1
    keys: int = KEYS
    window_ms: int = WINDOW_MS
    depth: int = 1
    warm_s: float = WARM_S
    quiet_s: float = QUIET_S

    @classmethod
    def parse(
        cls,
        durations: str,
        policies: str,
        reconciles: str,
        *,
        max_delay: str = "3s",
        alpha: float = 0.9,
        rate: int = 4_500,
        bucket: str = "500ms",
        replicas: int = 1,
        repeat: int = 1,
    ) -> ConsistencySettings:
        """Settings as they are written on the command line."""
        pairs = [f"{failure}/{later}" for failure in POLICIES for later in POLICIES]
        for name, value, least in (("rate", rate, SOURCES), ("replicas", replicas, 1), ("repeat", repeat, 1)):
            if value < least:
                raise UnbrokenError(f"{name} is {value}; give {least} or more")
        bucket_ms = _length_ms(bucket, "bucket")
        if bucket_ms != int(bucket_ms):
            raise UnbrokenError(f"a bucket of {bucket} is no whole number of milliseconds")
        return cls(
            _seconds(durations),
            parted(policies, pairs, "pair of policies"),
            parted(reconciles, RECONCILES, "way to reconcile"),
            _length_ms(max_delay, "max-delay"),
            alpha,
            rate,
            int(bucket_ms),
            replicas,
            repeat,
        )

    def cases(self) -> list[HandlingCase]:
        """The first policies with every way to reconcile, the others with the first way."""
        first = [HandlingCase(self.policies[0], reconcile) for reconcile in self.reconciles]
        return [*first, *(HandlingCase(policy, self.reconciles[0]) for policy in self.policies[1:])]

    def failures(self) -> list[float]:
        """The lengths of the failures of a run, in their order."""
        return [duration for _ in range(self.repeat) for duration in self.durations]

    def load(self, case: HandlingCase, begin_ms: int, switch: Path) -> dict[str, Any]:
        failure, later = case.policy.split("/")
        return {
            "FAILURE": failure,
            "STABILIZATION": later,
            "RECONCILE": case.reconcile,
            "MAX_DELAY_MS": self.max_delay_ms,
            "ALPHA": self.alpha,
            "RATE": self.rate // SOURCES,
            "BUCKET_MS": self.bucket_ms,
            "REPLICAS": self.replicas,
            "BEGIN_MS": begin_ms,
            "SWITCH": switch,
            "KEYS": self.keys,
            "WINDOW_MS": self.window_ms,
            "DEPTH": self.depth,
        }

    @property
    def settled_ms(self) -> float:
        """Results that are not later come as they should."""
        return max(SETTLED_MS, SETTLED_BUCKETS * self.bucket_ms) * self.depth

    def streams(self, begin_ms: int) -> tuple[Stream, ...]:
        return tuple(Stream(begin_ms, self.rate // SOURCES, number, self.keys) for number in range(SOURCES))

    def reader(self) -> Callable[[Subscription], BoundedReader]:
        return partial(BoundedReader, bucket_ms=self.bucket_ms, window_ms=self.window_ms)


# --- words on the command line ------------------------------------------------------------------------


def _seconds(text: str) -> tuple[float, ...]:
    try:
        found = [float(number) for number in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number <= LONGEST_S for number in found):
        raise UnbrokenError(f"{text!r} are no durations; write seconds up to {LONGEST_S:g} as 2,5,15")
    return tuple(dict.fromkeys(found))


def _length_ms(text: str, what: str) -> float:
    try:
        return float(milliseconds(text))
    except ValueError as error:
        raise UnbrokenError(f"{what}: {error}") from None
