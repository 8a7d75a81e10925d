"""What has come of the streams of a sink from all its nodes, and what of it can be given to a reader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from unbroken.client.tentative_view import Result, SubscriptionEvent, TentativeView
from unbroken.data.unit_store import decode_unit
from unbroken.protocol.replica.inbox import Arrival, Inbox
from unbroken.protocol.values.ids import NodeId, ShardId, StreamId, segment_of
from unbroken.protocol.values.units import UnitHeader

StreamAtNode = tuple[StreamId, NodeId]
"""A stream by the name it has at a node that has it, and the node."""


class Arrivals:
    """Takes the first copy of each stable unit, in order, and tentative ones by the rules of `TentativeView`.

    Streams are known by the name of their segment, whichever generation of its code, or fork of it, has made a unit.
    Not safe to use from several threads.
    """

    def __init__(self, streams: Iterable[StreamId], after: int, *, stable_only: bool, silence_s: float) -> None:
        self.inboxes = {stream: Inbox(stream, consumed=after, available=after) for stream in streams}
        # Units are numbered by pulses wherever there are tentative ones.
        self.views = {stream: TentativeView(stream, after, silence_s) for stream in self.inboxes}
        self._stable_only = stable_only
        self._after = after
        self._begun: set[StreamId] = set()
        self._held: dict[tuple[StreamId, int], Result] = {}
        self._final: set[StreamId] = set()
        self._passed: dict[StreamAtNode, int] = {}

    @property
    def ended(self) -> bool:
        """Whether the final unit of every stream has come."""
        return bool(self.inboxes) and self._final == set(self.inboxes)

    @property
    def duplicates(self) -> int:
        return sum(inbox.duplicates for inbox in self.inboxes.values())

    def wanted(self, stream: StreamId) -> tuple[int, int]:
        """The last stable unit that is here, and the pulse up to which tentative ones are not needed; -1 for none."""
        return self.inboxes[stream].available, -1 if self._stable_only else self.views[stream].reach

    def consumed(self, stream: StreamId) -> int | None:
        """The last unit of a stream, by whatever name, that was given out; None if it is none of these streams."""
        inbox = self.inboxes.get(at_home(stream))
        return None if inbox is None else inbox.consumed

    def unit(
        self, node: NodeId, header: UnitHeader, data: pa.Buffer, arrived_ms: float, now_s: float
    ) -> list[SubscriptionEvent]:
        """A unit has come; what can be given out."""
        there, stream = header.stream, at_home(header.stream)
        if stream not in self.inboxes:
            return []
        if there != stream:
            header = replace(header, stream=stream)
        if not header.stable:
            if self._stable_only or header.pulse <= self.views[stream].reach:
                return self.tick(now_s)
            result = Result(header, decode_unit(data)[1], arrived_ms)
            return [*self.views[stream].tentative(result, node, now_s), *self.tick(now_s)]
        self._passed[there, node] = header.number
        if stream not in self._begun:
            self._begun.add(stream)
            if self._after == 0 and header.number > 1:
                # Older units are dropped: this is the oldest one there is.
                self.inboxes[stream] = Inbox(stream, header.number - 1, header.number - 1)
        inbox = self.inboxes[stream]
        if inbox.arrive(header) is Arrival.ACCEPTED:
            self._held[stream, header.number] = Result(header, decode_unit(data)[1], arrived_ms)
        ready = [event for result in self._take(inbox) for event in self.views[stream].stable(result, now_s)]
        return [*ready, *self.tick(now_s)]

    def tick(self, now_s: float) -> list[SubscriptionEvent]:
        """What can be given out because time has passed."""
        return [event for view in self.views.values() if view.held for event in view.tick(now_s)]

    def lost(self, node: NodeId) -> None:
        for view in self.views.values():
            view.lost(node)

    def begins_anew(self, origin: StreamAtNode) -> None:
        """Another replica sends a stream from there, from the units it has."""
        self._passed.pop(origin, None)

    def gap(self, stream: StreamId, linked: Iterable[StreamAtNode]) -> int | None:
        """The next unit of a stream, if everybody who could send it has passed it over.

        A node sends the units of a stream in order: once it has sent a later one, it has dropped what is missing.
        """
        wanted = self.inboxes[stream].available + 1
        heard = [self._passed.get(origin, 0) for origin in linked]
        return wanted if heard and min(heard) > wanted and stream not in self._final else None

    def kept(self, stream: StreamId, wanted: int) -> int:
        """The oldest unit behind a gap that somebody has sent."""
        return min(n for (there, _), n in self._passed.items() if at_home(there) == stream and n > wanted)

    def _take(self, inbox: Inbox) -> list[Result]:
        """The stable results that are next in order."""
        numbers = range(inbox.consumed + 1, inbox.available + 1)
        ready = [self._held.pop((inbox.stream, number)) for number in numbers]
        inbox.consume(inbox.available)
        self._final |= {result.header.stream for result in ready if result.header.final}
        return ready


def of_segment(shard: ShardId) -> ShardId:
    """The shard by the name of its segment, whatever generation of its code it runs."""
    return ShardId(segment_of(shard.part), shard.index)


def at_home(stream: StreamId) -> StreamId:
    """A stream as subscribers know it."""
    return StreamId(of_segment(stream.producer), stream.consumer)
