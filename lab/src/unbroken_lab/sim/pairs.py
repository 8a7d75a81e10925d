"""Values by pairs of nodes, found by each of the two: a fault of one node among a thousand looks at its own alone."""

from __future__ import annotations

from typing import TypeVar

from unbroken.protocol.values.ids import NodeId

Pair = tuple[NodeId, NodeId]
T = TypeVar("T")


class ByPair(dict[Pair, T]):
    """A dictionary with pairs of nodes as keys. It is changed by ``[]`` and ``del`` alone.

    Invariant: ``of`` has a node's values in the order in which a walk through all of them would come upon them, so that
    nothing that is done to each in turn depends on how they are found.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[NodeId, dict[Pair, T]] = {}

    def __setitem__(self, pair: Pair, value: T) -> None:
        super().__setitem__(pair, value)
        for name in pair:
            self._of.setdefault(name, {})[pair] = value

    def __delitem__(self, pair: Pair) -> None:
        super().__delitem__(pair)
        for name in pair:
            del self._of[name][pair]

    def of(self, name: NodeId) -> dict[Pair, T]:
        """All that one node is part of, as it is at this moment."""
        return dict(self._of.get(name, {}))
