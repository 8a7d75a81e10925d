"""Where a shard is not to be placed for a while."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from unbroken.protocol.values.ids import NodeId, ShardId

AVOID_S = 5.0
"""How long a shard that has failed twice on a node is not placed there again; doubled with each further failure."""

LONGEST_AVOID_S = 300.0

DOUBT_S = 8.0
"""How long the ingress is not placed on a node that it has just gone on without."""

Place = tuple[ShardId, NodeId]


@dataclass
class Avoidance:
    """Remembers where shards have failed; forgotten with the controller that saw it, which costs one more attempt."""

    failures: Counter[Place] = field(default_factory=Counter)
    until_s: dict[Place, float] = field(default_factory=dict)

    def failed(self, place: Place, now_s: float) -> None:
        """A replica stopped there. Once may be chance; from the second time on it is tried later and later."""
        self.failures[place] += 1
        if self.failures[place] > 1:
            pause = min(LONGEST_AVOID_S, AVOID_S * 2.0 ** (self.failures[place] - 2))
            self.until_s[place] = now_s + pause

    def doubted(self, place: Place, now_s: float) -> None:
        """The node is probably dying, which its session will show in a while."""
        self.until_s.setdefault(place, now_s + DOUBT_S)

    def places(self, now_s: float) -> set[Place]:
        """What to avoid at this moment."""
        self.until_s = {place: until for place, until in self.until_s.items() if now_s < until}
        return set(self.until_s)
