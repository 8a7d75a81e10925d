"""What a state is worth that is rebuilt from kept input, and what the states further down are worth that rely on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unbroken.protocol.values.ids import ShardId


@dataclass(frozen=True)
class Rebuilt:
    """A shard that is rebuilt from what its producers keep has the right results after its own unit ``valid``.

    ``consumers`` says the same of the shards that rely on its results (upstream backup): one of them that is rebuilt
    from nothing but the units after ``valid`` has the right results after a unit of its own, and so on. So many levels
    of them are known as shards in a row may be lost together, less the shard itself.

    Invariant: a larger ``valid`` needs later input only. So what is true of a consumer stays true with less of its
    input if its own ``valid`` is larger as well (``merged``).
    """

    valid: int = 0
    consumers: tuple[tuple[ShardId, Rebuilt], ...] = ()

    def of(self, consumer: ShardId) -> Rebuilt | None:
        """What a consumer is worth that is rebuilt from the units after ``valid``; None if too little is known."""
        return dict(self.consumers).get(consumer)

    def merged(self, other: Rebuilt) -> Rebuilt:
        """Both are true of a shard: what is true if it begins with the later one of their first units."""
        if other is self or other == self:
            return self
        later, earlier = (self, other) if self.valid >= other.valid else (other, self)
        found, more = dict(later.consumers), dict(earlier.consumers)
        if later.valid == earlier.valid:
            found = {**more, **found}
        # Nothing follows from the earlier one alone about a consumer that begins later.
        both = {shard: known.merged(more[shard]) if shard in more else known for shard, known in found.items()}
        return Rebuilt(later.valid, tuple(sorted(both.items(), key=lambda item: item[0])))


FROM_THE_FIRST = Rebuilt()
"""What a state is worth that is rebuilt from the very first unit on."""


def merged(known: Iterable[Rebuilt]) -> Rebuilt:
    """What all of them say together."""
    out = FROM_THE_FIRST
    for one in known:
        out = out.merged(one)
    return out
