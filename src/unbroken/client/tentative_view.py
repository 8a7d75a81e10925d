"""Stable, tentative and corrected results as a reader sees them: which are given out, and in which order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pyarrow as pa

from unbroken.data.coverage import Coverage
from unbroken.protocol.values.ids import NodeId, StreamId
from unbroken.protocol.values.units import UnitHeader

SILENCE_S = 1.0
"""How long the replica whose tentative results are read may have none while another one has; see `TentativeView`."""

HELD_UNITS = 1_024
"""Tentative units of a node that wait to be given out. A replica keeps as many for those who ask later."""


@dataclass(frozen=True)
class Result:
    """One unit of results: its header, its rows, and when it arrived here.

    A tentative one was made without part of the input. It covers the pulses after ``header.since`` up to
    ``header.pulse``, and stable ones of these pulses follow as soon as that input is there. A stable one is final;
    ``correction`` says that tentative results were given out for its pulse before.
    """

    header: UnitHeader
    table: pa.Table
    arrived_ms: float
    correction: bool = False

    @property
    def stable(self) -> bool:
        return self.header.stable

    @property
    def status(self) -> str:
        return "stable" if self.header.stable else "tentative"


@dataclass(frozen=True)
class Undo:
    """Corrections begin: stable results take the place of the tentative ones of ``stream`` after ``after_pulse``.

    Each stable result replaces the tentative ones up to its own pulse. Those beyond stand until one reaches them.
    """

    stream: StreamId
    after_pulse: int


@dataclass(frozen=True)
class Reconciled:
    """All tentative results of ``stream`` are replaced: the stable ones have reached the last of them, at ``pulse``."""

    stream: StreamId
    pulse: int


SubscriptionEvent = Result | Undo | Reconciled


@dataclass
class TentativeView:
    """One stream: what is given out of the stable units, which come in their order, and of tentative ones.

    Tentative results of different replicas need not agree. So one replica is read as long as it has something to give.
    Another one takes its place if the link to its node is lost, or if a unit of that other one has waited for
    ``silence_s`` in which the first had none; what the other one has sent meanwhile is not lost.

    The first unit of a replica may not follow what was given out, because stable units are still on their way to a
    reader that came late. It waits for them; for ``silence_s`` after the last result at most.

    Invariants
    ----------
    - A tentative unit is given out only if its pulse is above ``reach``, the highest pulse that was given out, stable
      or tentative: no pulse is completed by two of them, and none after its stable result.
    - Stable units are given out as they come, all of them.
    - `Undo` stands before the first stable result that corrects something, `Reconciled` behind the one that corrects
      the last; between the two there is no other of either.

    Time is that of the caller's clock, in seconds.
    """

    stream: StreamId
    pulse: int = 0
    silence_s: float = SILENCE_S
    covered: Coverage = field(default_factory=Coverage)
    sender: NodeId | None = None
    undone: bool = False
    ended: bool = False
    held: dict[NodeId, list[tuple[float, Result]]] = field(default_factory=dict)
    heard_s: float = -math.inf
    moved_s: float = -math.inf

    @property
    def reach(self) -> int:
        """The highest pulse that was given out."""
        return max(self.pulse, self.covered.last)

    def stable(self, result: Result, now_s: float) -> list[SubscriptionEvent]:
        """The next stable unit has come; what is given out."""
        header = result.header
        until = math.inf if header.final else header.pulse  # nothing that is tentative outlasts the end
        corrects = self.covered.meets(self.pulse, until)
        out: list[SubscriptionEvent] = []
        if corrects and not self.undone:
            self.undone = True
            out.append(Undo(self.stream, self.pulse))
        out.append(replace(result, correction=corrects))
        self.pulse = max(self.pulse, header.pulse)
        self.covered = Coverage() if header.final else self.covered.beyond(header.pulse)
        if self.undone and not self.covered.ranges:
            self.undone, self.sender = False, None
            out.append(Reconciled(self.stream, self.pulse))
        self.ended = self.ended or header.final
        self.moved_s = now_s
        return [*out, *self.tick(now_s)]

    def tentative(self, result: Result, sender: NodeId, now_s: float) -> list[SubscriptionEvent]:
        """A tentative unit has come; what is given out."""
        waiting = self.held.setdefault(sender, [])
        if not waiting or result.header.pulse > waiting[-1][1].header.pulse:
            waiting.append((now_s, result))
            del waiting[:-HELD_UNITS]
        return self.tick(now_s)

    def lost(self, sender: NodeId) -> None:
        """The link to a node is lost, so nothing more will come from it."""
        self.held.pop(sender, None)
        if sender == self.sender:
            self.sender = None

    def tick(self, now_s: float) -> list[SubscriptionEvent]:
        """What is given out because time has passed."""
        out: list[SubscriptionEvent] = []
        while (sender := self._choose(now_s)) is not None:
            _, result = self.held[sender].pop(0)
            self.sender, self.heard_s, self.moved_s = sender, now_s, now_s
            self.covered = self.covered.add(result.header.since, result.header.pulse)
            out.append(result)
        return out

    def _choose(self, now_s: float) -> NodeId | None:
        """The node whose next tentative unit is to be given out at this moment."""
        reach = math.inf if self.ended else self.reach
        for sender, waiting in list(self.held.items()):
            self.held[sender] = [unit for unit in waiting if unit[1].header.pulse > reach]
            if not self.held[sender]:
                del self.held[sender]
        # The one that is read comes first, then who has waited longest.
        order = sorted(self.held, key=lambda sender: (sender != self.sender, self.held[sender][0][0]))
        return next((sender for sender in order if self._may_give(sender, now_s)), None)

    def _may_give(self, sender: NodeId, now_s: float) -> bool:
        if sender == self.sender:
            return True
        came_s, result = self.held[sender][0]
        if self.sender is not None and now_s < max(self.heard_s, came_s) + self.silence_s:
            return False
        follows = result.header.since <= self.reach
        return follows or now_s >= max(self.moved_s, came_s) + self.silence_s
