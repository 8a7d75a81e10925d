"""Which of the things that a node does are worth a place in the queue of its traces.

Looked at on the node's loop, so by type and by number only.
"""

from __future__ import annotations

from collections.abc import Iterable

from unbroken.observe.tracing.ids import Sampling
from unbroken.protocol.events import (
    Event,
    FetchFailed,
    GateAsked,
    InSyncChanged,
    LayoutChanged,
    LinkLost,
    LinkUp,
    PinAsked,
    Produced,
    QueryFailed,
    SinkDelivered,
    SinkFailed,
    SinkRefused,
    SourcesPolled,
    StateArrived,
    UnitArrived,
)
from unbroken.protocol.instructions import (
    AnswerGate,
    CommitEntry,
    Deliver,
    DropReplica,
    FetchState,
    Instruction,
    PinState,
    ReportCaughtUp,
    SendUnit,
    StopReplica,
    StoreUnit,
    Suspect,
    Trust,
)

EVENTS = frozenset(
    {
        *(GateAsked, SourcesPolled, SinkDelivered, SinkFailed, SinkRefused),
        *(LinkUp, LinkLost, InSyncChanged, LayoutChanged),
        *(QueryFailed, PinAsked, StateArrived, FetchFailed),
    }
)
"""Events that are rare, or say when something ends that may be traced: which pulse it belongs to is not in them."""

STEPS = frozenset(
    {
        *(AnswerGate, CommitEntry),
        *(Suspect, Trust, StopReplica, DropReplica, FetchState, PinState, ReportCaughtUp),
    }
)


def notable(event: Event, steps: Iterable[Instruction], sampling: Sampling) -> tuple[Instruction, ...] | None:
    """The instructions that matter; None if neither they nor the event do."""
    found = tuple(step for step in steps if _matters(step, sampling))
    if found or type(event) in EVENTS:
        return found
    if isinstance(event, UnitArrived):
        return found if sampling.takes(event.header.pulse) else None
    if isinstance(event, Produced):
        return found if any(sampling.takes(header.pulse) for header in event.headers) else None
    return None


def _matters(step: Instruction, sampling: Sampling) -> bool:
    if isinstance(step, StoreUnit | SendUnit | Deliver):
        return sampling.takes(step.header.pulse)
    return type(step) in STEPS
