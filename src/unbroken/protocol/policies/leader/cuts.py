"""The cuts of a leader-ordered replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unbroken.protocol.policies.leader.orders import Order
from unbroken.protocol.replica.cuts import reach_of
from unbroken.protocol.replica.inbox import Inbox
from unbroken.protocol.values.cuts import BatchCut
from unbroken.protocol.values.ids import StreamId


@dataclass
class LeaderCuts:
    """Micro-batch b takes what order b says, once all of it is here.

    Invariant: ``orders`` are those after the last committed micro-batch, without a hole.
    """

    inboxes: Mapping[StreamId, Inbox]
    orders: dict[int, Order] = field(default_factory=dict)
    generation: int = 1
    joined: int = 0

    def cut(self, number: int) -> BatchCut | None:
        order = self.orders.get(number)
        if order is None or self.lacking(number):
            return None
        return {
            stream: reach_of(inbox, order.cut.get(stream, inbox.consumed)) for stream, inbox in self.inboxes.items()
        }

    def next(self, start: int) -> int | None:
        return None if self.cut(start + 1) is None else start + 1

    def lacking(self, number: int) -> list[StreamId]:
        order = self.orders.get(number)
        if order is None:
            return []
        return [stream for stream, inbox in self.inboxes.items() if inbox.available < order.cut.get(stream, 0)]

    def forget(self, through: int) -> None:
        self.orders = {number: order for number, order in self.orders.items() if number > through}

    @property
    def numbered(self) -> bool:
        return False

    def completes(self, cut: BatchCut, number: int) -> int:
        """What is complete on all inputs."""
        return min((reach.pulse for reach in cut.values()), default=number)

    def awaited(self, start: int) -> list[StreamId]:
        """While nobody has ordered what comes next, the streams that nothing has come of: a leader orders nothing that
        it does not have, so it would wait for a silent producer for ever."""
        if start + 1 in self.orders:
            return self.lacking(start + 1)
        inboxes = self.inboxes.items()
        return [stream for stream, inbox in inboxes if inbox.available == inbox.consumed and not inbox.ended]

    def folds(self, start: int, number: int) -> bool:
        return False
