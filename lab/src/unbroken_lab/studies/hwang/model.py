"""What it costs to keep a node available, and how long recovery takes, by formula: Hwang et al. (2003), section 5.

The setting is theirs: a node behind another one, each with one operator; sources that send tuples one by one; the
downstream node fails and another one takes its place. Tuples are what units are here, and the *interval* is the time
between two checkpoints of passive standby, or two messages by which active standby and upstream backup trim queues.

Formulas (1) to (4) are the paper's, with its letters in the text. What the paper says in words only (the overhead of
active standby, how long it takes to be back to the usual delay) is written as a formula here and says so. Amnesia, to
go on with an empty state and without what was under way, is not in that paper; it is the lower bound of every cost.

The numbers that the paper states, to compare with, are in ``paper``, its experiments in ``study``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from unbroken.errors import UnbrokenError

INTERVALS_MS = (10.0, 20.0, 40.0, 60.0, 80.0, 100.0)
SELECTIVITIES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""The values of Table 3."""


class Approach(StrEnum):
    """A way to keep a node available."""

    PASSIVE = "passive standby"
    ACTIVE = "active standby"
    UPSTREAM = "upstream backup"
    AMNESIA = "amnesia"


class Measure(StrEnum):
    """What is measured: Table 2, and the bandwidth of Figure 12."""

    OVERHEAD = "overhead"
    """Bytes for availability per byte of tuples."""
    PARTIAL_RECOVERY = "partial recovery"
    """Milliseconds from the detection of a failure to the first tuple behind it that is no duplicate."""
    FULL_RECOVERY = "full recovery"
    """Milliseconds from the detection of a failure until tuples are as late as before it."""
    DELAY = "delay"
    """Milliseconds from the making of a tuple to its arrival."""
    BANDWIDTH = "bandwidth"
    """Bytes of all kinds, relative to upstream backup on the fewest nodes."""


@dataclass(frozen=True)
class Parameters:
    """Table 1 of the paper, with the defaults of Table 3 where it says "variable"."""

    rate_per_s: float = 500.0
    """Tuples that a source makes per second: lambda."""
    processing_us: float = 10.0
    """Time in which an operator processes a tuple."""
    tuple_bytes: float = 50.0
    """c."""
    identifier_bytes: float = 8.0
    """What names a tuple, in acknowledgements and checkpoints: x."""
    selectivity: float = 1.0
    """Tuples out of an operator per tuple into it."""
    delay_ms: float = 5.0
    """Latency of the link between any two nodes: d."""
    bandwidth_mbps: float = 8.0
    """Bandwidth between any two nodes: B."""
    detection_ms: float = 100.0
    """Time until a failure is detected: D."""
    failure_s: float = 100.0
    """Time until a failed node is back."""
    interval_ms: float = 10.0
    """Time between checkpoints, or between messages that trim queues: M_s."""

    def __post_init__(self) -> None:
        for name in ("rate_per_s", "tuple_bytes", "bandwidth_mbps", "interval_ms"):
            if not getattr(self, name) > 0:
                raise UnbrokenError(f"{name} is {getattr(self, name)}: it has to be more than nothing")
        for name in ("processing_us", "identifier_bytes", "delay_ms", "detection_ms", "failure_s"):
            if not getattr(self, name) >= 0:
                raise UnbrokenError(f"{name} is {getattr(self, name)}: it cannot be negative")
        if not 0 <= self.selectivity <= 1:
            raise UnbrokenError(f"the selectivity is {self.selectivity}: give the share of tuples that pass, 0 to 1")
        if self.drain_per_ms <= self.arrivals_per_ms:
            raise UnbrokenError(
                f"{self.rate_per_s} tuples/s of {self.tuple_bytes} bytes fill a link of {self.bandwidth_mbps} Mbit/s:"
                " nothing could ever be caught up; give more bandwidth or fewer tuples"
            )

    @property
    def arrivals_per_ms(self) -> float:
        return self.rate_per_s / 1000

    @property
    def drain_per_ms(self) -> float:
        """Tuples that a link carries in a millisecond: B / c."""
        return self.bandwidth_mbps * 1000 / 8 / self.tuple_bytes

    @property
    def identifier_share(self) -> float:
        """One identifier per interval, relative to the tuples of an interval: x / (lambda c M_s)."""
        return self.identifier_bytes / (self.arrivals_per_ms * self.tuple_bytes * self.interval_ms)


@dataclass(frozen=True)
class CaseRange:
    """A value that depends on chance: between the best and the worst case. Both are the same where it does not."""

    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> CaseRange:
        return cls(value, value)

    def plus(self, value: float) -> CaseRange:
        return CaseRange(self.low + value, self.high + value)


def passive_overhead(parameters: Parameters) -> float:
    """(1) for selectivity 1: 1 + 2x / (lambda c M_s).

    A checkpoint holds the tuples made since the last one and the place in the output queue; each goes with an
    acknowledgement to the node before. An operator that lets fewer tuples through has fewer of them in its checkpoints,
    which the paper says in words.
    """
    return parameters.selectivity + 2 * parameters.identifier_share


def active_overhead(parameters: Parameters) -> float:
    """1 + 3x / (lambda c M_s): (1) and one more identifier per interval, as the paper says in words.

    The input goes to both nodes; both acknowledge it, and the primary tells the other what may be trimmed.
    """
    return 1 + 3 * parameters.identifier_share


def upstream_overhead(parameters: Parameters) -> float:
    """(2): 2x / (lambda c M_s). One acknowledgement of level 0 and one of level 1 per interval."""
    return 2 * parameters.identifier_share


def overhead(approach: Approach, parameters: Parameters) -> float:
    """Bytes for availability per byte of tuples, while nothing fails."""
    if approach is Approach.PASSIVE:
        return passive_overhead(parameters)
    if approach is Approach.ACTIVE:
        return active_overhead(parameters)
    return upstream_overhead(parameters) if approach is Approach.UPSTREAM else 0.0


def duplicates(approach: Approach, parameters: Parameters) -> float:
    """(4): Q, the tuples that are sent again although they had arrived: M_s lambda / 2 + 2 d lambda.

    On average half an interval of tuples is not acknowledged, and what is on its way there and back. With passive
    standby only what followed the last checkpoint is sent again; with amnesia nothing is.
    """
    since_last = parameters.interval_ms * parameters.arrivals_per_ms / 2
    if approach is Approach.AMNESIA:
        return 0.0
    if approach is Approach.PASSIVE:
        return since_last
    return since_last + 2 * parameters.delay_ms * parameters.arrivals_per_ms


def first_tuple_ms(approach: Approach, parameters: Parameters) -> CaseRange:
    """K: from the detection of a failure to the arrival of the first tuple behind it.

    With active standby a tuple that is ready has one link to pass. With upstream backup (and amnesia) it comes from the
    node before, through the new node. With passive standby it is the one or the other, depending on whether the last
    checkpoint holds output that the primary had not sent.
    """
    ready = parameters.delay_ms
    remade = 2 * parameters.delay_ms + parameters.processing_us / 1000
    if approach is Approach.PASSIVE:
        return CaseRange(ready, remade)
    return CaseRange.exactly(ready if approach is Approach.ACTIVE else remade)


def partial_recovery_ms(approach: Approach, parameters: Parameters) -> CaseRange:
    """(3): P = K + Q c / B. Duplicates have to be sent before the first tuple that is none."""
    duplicates_ms = duplicates(approach, parameters) / parameters.drain_per_ms
    return first_tuple_ms(approach, parameters).plus(duplicates_ms)


def full_recovery_ms(approach: Approach, parameters: Parameters) -> CaseRange:
    """From the detection of a failure until tuples are as late as usual: K + (Q + lambda D) / (B / c - lambda).

    The paper gives the reason and no formula: what had piled up while the failure was not detected, and the duplicates
    before it, leave at the speed of the link while tuples go on arriving. With passive standby K is its worst case,
    because what piled up is with the node before, whatever the checkpoint holds. Amnesia has nothing to catch up with.
    """
    first_ms = first_tuple_ms(approach, parameters).high
    if approach is Approach.AMNESIA:
        return CaseRange.exactly(first_ms)
    piled_up = duplicates(approach, parameters) + parameters.arrivals_per_ms * parameters.detection_ms
    return CaseRange.exactly(first_ms + piled_up / (parameters.drain_per_ms - parameters.arrivals_per_ms))


def lost_tuples(approach: Approach, parameters: Parameters) -> float:
    """Tuples that are never processed: with amnesia those sent until the failure was detected, otherwise none."""
    if approach is not Approach.AMNESIA:
        return 0.0
    return parameters.arrivals_per_ms * (parameters.detection_ms + parameters.delay_ms)


def analytic(measure: Measure, approach: Approach, parameters: Parameters) -> CaseRange | None:
    """The value of a measure by formula, for one operator per node, or None if there is no formula for it."""
    if measure is Measure.OVERHEAD:
        return CaseRange.exactly(overhead(approach, parameters))
    if measure is Measure.PARTIAL_RECOVERY:
        return partial_recovery_ms(approach, parameters)
    if measure is Measure.FULL_RECOVERY:
        return full_recovery_ms(approach, parameters)
    return None
