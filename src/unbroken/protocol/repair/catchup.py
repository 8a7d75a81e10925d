"""How a joining replica comes to count as redundancy: claims first, then the state, then the lag."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from unbroken.errors import require
from unbroken.protocol.values.ids import NodeId, ReplicaId, StreamId
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.replicas import ReplicaResumed, StateRebuilt, StateTaken
from unbroken.protocol.values.rebuilt_state import Rebuilt, merged

RETRY_MS = 500.0
"""Pause before a donor that failed is asked again: what fails a transfer is usually over within a second."""


class Phase(Enum):
    CLAIMING = "claiming"
    FETCHING = "fetching"
    CATCHING_UP = "catching up"
    CAUGHT_UP = "caught up"


@dataclass(frozen=True)
class Promise:
    """A producer keeps every unit after ``base`` for the newcomer; ``last`` was its newest when it said so.

    ``rebuilt`` says what a state is worth that is rebuilt from these units; None if they are too few for that.
    """

    base: int
    last: int
    rebuilt: Rebuilt | None = None


@dataclass
class CatchUp:
    """The way of one joining replica; its node walks it, everybody else only answers.

    The order is what makes it safe. Producers first promise to keep what the newcomer will need; a donor that pins its
    state after that has committed at least as much as any producer had dropped, so what follows the pinned version is
    kept. Whoever dies on the way, the newcomer goes back to the last step that still holds.

    A producer that could not be reached at first has to promise before the newcomer counts as redundancy: if it were
    the only one left afterwards, it would have dropped what it kept for nobody.

    Invariant: state is fetched only while every producer that can be reached has promised, and for each stream one has.
    """

    replica: ReplicaId
    inputs: tuple[StreamId, ...]
    since_ms: float
    phase: Phase = Phase.CLAIMING
    promised: dict[tuple[StreamId, NodeId], Promise] = field(default_factory=dict)
    donor: NodeId | None = None
    retry_ms: dict[NodeId | None, float] = field(default_factory=dict)
    size: int = 0
    fetched_ms: float = 0.0
    version: int = 0
    resumed: bool = False
    anew: bool = False
    complained: bool = False

    def claims(self, producers: Mapping[StreamId, Collection[NodeId]]) -> list[tuple[StreamId, NodeId]]:
        """The promises that are still to be asked for, given the producers that can be reached."""
        wanted = [(stream, node) for stream in self.inputs for node in sorted(producers[stream])]
        return [claim for claim in wanted if claim not in self.promised]

    def claimed(self, stream: StreamId, node: NodeId, promise: Promise) -> None:
        self.promised[stream, node] = promise

    @property
    def least(self) -> int:
        """The first version that is of use: what follows an earlier one is not kept by everybody who has promised."""
        return max([promise.base for promise in self.promised.values()], default=0)

    @property
    def needs(self) -> tuple[tuple[StreamId, int], ...]:
        """The same for each input, where versions and units are numbered differently."""
        streams = sorted({stream for stream, _ in self.promised})
        bases = {stream: [p.base for (s, _), p in self.promised.items() if s == stream] for stream in streams}
        return tuple((stream, max(bases[stream])) for stream in streams)

    def provided(self, keepers: Mapping[StreamId, Collection[NodeId]], available: Mapping[StreamId, int]) -> bool:
        """Whether each of these producers keeps all that the newcomer, which has come so far, may still ask it for."""
        return all(
            (promise := self.promised.get((stream, node))) is not None and promise.base <= available[stream]
            for stream in self.inputs
            for node in keepers[stream]
        )

    def next_donor(
        self, producers: Mapping[StreamId, Collection[NodeId]], donors: Sequence[NodeId | None], now_ms: float
    ) -> tuple[NodeId | None] | None:
        """Whom to ask for the state at this moment, in a tuple; None while there is something to wait for.

        A promise outlives the link and the process it came by, because it follows from the layout.
        """
        self.retry_ms = {donor: due for donor, due in self.retry_ms.items() if now_ms < due}
        if not self._promised_by(producers):
            return None
        for donor in donors:
            if donor not in self.retry_ms:
                self.phase, self.donor = Phase.FETCHING, donor
                return (donor,)
        return None

    def begin_anew(self, producers: Mapping[StreamId, Collection[NodeId]], now_ms: float) -> tuple[int, Rebuilt] | None:
        """Begin with nothing but what producers have kept: after which unit, and what the state is worth then.

        It is fetched from no donor: its directory has to be made.
        """
        self.retry_ms = {donor: due for donor, due in self.retry_ms.items() if now_ms < due}
        if self.retry_ms or not self._promised_by(producers) or self.lacking():
            return None
        enough = [(kept.base, kept.rebuilt) for kept in self.promised.values() if kept.rebuilt is not None]
        self.phase, self.anew, self.donor = Phase.FETCHING, True, None
        return max([base for base, _ in enough], default=0), merged(rebuilt for _, rebuilt in enough)

    def lacking(self) -> list[StreamId]:
        """Streams of which those that have promised keep too little to begin anew."""
        enough = {stream for (stream, _), promise in self.promised.items() if promise.rebuilt is not None}
        short = {stream for stream, _ in self.promised} - enough
        return sorted(short)

    def _promised_by(self, producers: Mapping[StreamId, Collection[NodeId]]) -> bool:
        """Whether every producer that can be reached has promised, and there is one for each stream."""
        if self.phase is not Phase.CLAIMING or self.claims(producers):
            return False
        return all(producers[stream] for stream in self.inputs)

    def failed(self, now_ms: float) -> None:
        """The transfer failed: another donor, or the same one a little later."""
        self.retry_ms[self.donor] = now_ms + RETRY_MS
        self.phase, self.donor, self.anew = Phase.CLAIMING, None, False

    def arrived(self, version: int, size: int, now_ms: float) -> None:
        require(self.phase is Phase.FETCHING, f"{self.replica}: state has come that was not asked for", self.replica)
        self.phase = Phase.CATCHING_UP
        self.version, self.size, self.fetched_ms = version, size, now_ms

    def resume(self, version: int, now_ms: float) -> None:
        """The state had come before this process started."""
        self.phase, self.resumed = Phase.CATCHING_UP, True
        self.version, self.fetched_ms = version, now_ms

    def within(
        self,
        lag: int,
        committed: int,
        taken: Mapping[StreamId, int],
        available: Mapping[StreamId, int],
        tried: bool = False,
    ) -> bool:
        """Whether the replica, which has ``taken`` its inputs so far, is within ``lag`` units of what it could have.

        ``tried``: it must have processed a unit itself even if there is none to process at the moment. Code that fails
        on the state it was given shows that with its first unit, not before.
        """
        newest = dict(available)
        for (stream, _), promise in self.promised.items():
            newest[stream] = max(newest[stream], promise.last)
        behind = max((newest[stream] - taken[stream] for stream in newest), default=0)
        has_worked = self.version < committed or (behind <= 0 and not tried)
        return self.phase is Phase.CATCHING_UP and has_worked and behind <= lag

    def finish(self, now_ms: float) -> Notice:
        """It has caught up; the notice about it."""
        self.phase = Phase.CAUGHT_UP
        fetch_s, run_s = (self.fetched_ms - self.since_ms) / 1000, (now_ms - self.fetched_ms) / 1000
        if self.resumed:
            return ReplicaResumed(self.replica, self.version, run_s)
        if self.anew:
            return StateRebuilt(self.replica, self.version + 1, run_s)
        return StateTaken(self.replica, self.donor, self.size, self.version, fetch_s, run_s)

    def next_retry_ms(self) -> float | None:
        return min(self.retry_ms.values(), default=None) if self.phase is Phase.CLAIMING else None

    def check(self) -> None:
        if self.phase is Phase.FETCHING:
            kept = {stream for stream, _ in self.promised}
            require(
                kept >= set(self.inputs),
                f"{self.replica} fetches a state whose sequel nobody has promised",
                self.replica,
            )
