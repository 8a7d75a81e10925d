"""From whom a consumer replica takes a stream: from every producer at once, or from one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unbroken.errors import require
from unbroken.protocol.values.ids import NodeId

LONGEST_PATIENCE = 8
"""Factor up to which the patience with a silent producer grows: when every one of them is silent, the cause lies
further up and turning from one to the next in haste helps nobody."""


@dataclass
class Feed:
    """The subscriptions of one consumer replica to one stream.

    ``duplicate`` delivery takes the stream from all producers, and the first copy of a unit wins. ``single`` delivery
    (the way of Flux) takes it from one, and turns to another when that one is lost or keeps the consumer waiting for
    longer than ``patience_ms``; since units are numbered, turning means no more than to ask for what comes next.

    ``lapsed`` are producers whose subscription may be lost; they are asked again before another one is chosen, because
    they may go on sending.

    Invariant: with single delivery there is at most one subscription.

    ``numbered``: the producer's units are numbered by the pulses that they complete.

    ``silent`` are the producers that were turned away from because nothing came, until something does.
    """

    single: bool
    patience_ms: float
    numbered: bool = True
    turn: int = 0
    subscribed: frozenset[NodeId] = frozenset()
    lapsed: frozenset[NodeId] = frozenset()
    starving_since: float | None = None
    factor: int = 1
    silent: frozenset[NodeId] = frozenset()

    def update(self, producers: Sequence[NodeId]) -> tuple[list[NodeId], list[NodeId]]:
        """Given the producers that can be reached, the best first: whom to subscribe to, and whom to leave."""
        wanted = frozenset(producers)
        if self.single and producers:
            staying = sorted((self.subscribed or self.lapsed) & wanted)
            wanted = frozenset({staying[0] if staying else producers[self.turn % len(producers)]})
        self.lapsed = frozenset()
        joined, left = wanted - self.subscribed, self.subscribed - wanted
        self.subscribed = wanted
        return sorted(joined), sorted(left)

    def takes(self, node: NodeId) -> bool:
        """Whether ``node`` was asked for what it sends: one that was given up may not know that yet, and send
        what only its own replica would produce."""
        return node in self.subscribed

    def forget(self, node: NodeId) -> None:
        """A subscription that may be lost: the link to ``node`` broke, or another replica has begun there."""
        if node in self.subscribed:
            self.subscribed -= {node}
            self.lapsed |= {node}

    def fed(self) -> None:
        """A unit has come."""
        self.starving_since = None
        self.factor = 1
        self.silent = frozenset()

    def content(self) -> None:
        """The consumer does not wait for this stream."""
        self.starving_since = None

    def starve(self, now_ms: float) -> bool:
        """The consumer waits for this stream; True when it is time to turn to another producer."""
        if not self.single:
            return False
        if self.starving_since is None:
            self.starving_since = now_ms
        if now_ms < self.starving_since + self.patience_ms * self.factor:
            return False
        self.factor = min(LONGEST_PATIENCE, self.factor * 2)
        self.starving_since = now_ms
        return True

    def turn_away(self) -> list[NodeId]:
        """Give up the present producer; ``update`` then chooses the next one. Who has to be told."""
        left, self.subscribed = self.subscribed, frozenset()
        self.silent |= left
        self.turn += 1
        return sorted(left)

    def turn_to(self, place: int) -> list[NodeId]:
        """Give up the present producer for the one at this place of what ``update`` is given. Who has to be told."""
        left, self.subscribed = self.subscribed, frozenset()
        self.turn, self.starving_since = place, None
        return sorted(left)

    def next_turn_ms(self) -> float | None:
        return None if self.starving_since is None else self.starving_since + self.patience_ms * self.factor

    def check(self) -> None:
        require(not self.single or len(self.subscribed) <= 1, f"single delivery from {sorted(self.subscribed)}")
