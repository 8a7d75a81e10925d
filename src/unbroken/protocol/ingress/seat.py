"""A node's seat in the ingress, and how far the replicas of the flow have come, as far as it has heard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from unbroken.protocol.ingress.sources import SourceSide
from unbroken.protocol.values.ids import ReplicaId


@dataclass
class Seat:
    """The replica of the ingress that works on a node, with its sources; empty where there is none.

    Hosting takes and leaves it. ``lives`` counts the logs that this process has had: what an earlier one has under way
    to the disk is not for the present one.

    Invariant: there is a replica exactly if there are sources.
    """

    replica: ReplicaId | None = None
    sources: SourceSide | None = None
    lives: int = 0

    def leave(self) -> None:
        self.replica = self.sources = None

    def check(self) -> None:
        assert (self.replica is None) == (self.sources is None), "a seat in the ingress is half taken"
        if self.sources is not None:
            self.sources.check()


@dataclass
class Advance:
    """How far replicas have come: the pulse that is ``reached``, when they ``moved`` last, and up to which pulse one
    that lacks input is ``ahead`` with the rest of it.

    Invariant: what is reached only grows.
    """

    reached: dict[ReplicaId, int] = field(default_factory=dict)
    ahead: dict[ReplicaId, int] = field(default_factory=dict)
    moved: dict[ReplicaId, float] = field(default_factory=dict)
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when a replica has come further, or lacks input, or has all of it again."""
        self.listeners.append(listener)

    def _changed(self) -> None:
        for listener in self.listeners:
            listener()

    def reaches(self, replica: ReplicaId, pulse: int, now_ms: float) -> bool:
        """Whether a replica has come further than was known."""
        if pulse <= self.reached.get(replica, 0):
            return False
        self.reached[replica] = pulse
        self.moved[replica] = now_ms
        self._changed()
        return True

    def goes_ahead(self, replica: ReplicaId, pulse: int) -> None:
        """The pulse up to which a replica has what it can have of its input; 0 if it lacks nothing."""
        if self.ahead.get(replica, 0) != pulse:
            self._changed()
        if pulse:
            self.ahead[replica] = pulse
        else:
            self.ahead.pop(replica, None)

    def forget(self, replica: ReplicaId) -> None:
        """A replica is not at work here any more."""
        self.reached.pop(replica, None)
        self.ahead.pop(replica, None)

    def keep(self, may_count: Callable[[ReplicaId], bool]) -> None:
        """Forget what does not count any more."""
        self.reached = {replica: pulse for replica, pulse in self.reached.items() if may_count(replica)}
        self.ahead = {replica: pulse for replica, pulse in self.ahead.items() if may_count(replica)}
        self.moved = {replica: ms for replica, ms in self.moved.items() if may_count(replica)}
