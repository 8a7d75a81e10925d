"""From the code that goes to the code that comes: at which unit the results of the one end and the other's begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from unbroken.errors import require
from unbroken.protocol.instructions import Instruction, ReportSwitched
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId, generation_of
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.units import UnitHeader

LINGER_UNITS = 16
"""Units that a part with new code has to have for the clients of a sink before its predecessor may go: those who read
are a few units behind, and what they lack is kept by the predecessor."""


@dataclass
class GenerationSwitch:
    """The streams to sinks of parts whose predecessor still runs.

    The sources agree on the pulse from which on the results of a generation count, and every unit says so. A part
    whose time has not come leaves its units out, a part whose time is over does the same; between the two nothing is
    left out, because both see the same generation in unit n. What remains is order: the first unit of the successor
    goes to a sink only after the last one of the predecessor.

    ``since`` is the last unit that does not count of each such stream, ``reported`` how far streams of predecessors
    are delivered. ``listeners`` are called when a successor may have become free to deliver.

    Invariant: a sink is never handed a unit of a successor while it lacks one of the predecessor.
    """

    topology: Topology
    outboxes: Outboxes
    since: dict[StreamId, int] = field(default_factory=dict)
    reported: dict[StreamId, int] = field(default_factory=dict)
    told: set[ShardId] = field(default_factory=set)
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def on_change(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    def open(self, stream: StreamId) -> None:
        """A replica begins to produce a stream to a sink; what its outbox does not hold any more was for nobody, or is
        delivered, and then the predecessor had come that far, too."""
        if self._earlier(stream) is not None:
            self.since[stream] = self.outboxes.boxes[stream].base

    def close(self, replica: ReplicaId) -> None:
        self.since = {stream: number for stream, number in self.since.items() if stream.producer != replica.shard}
        self.told.discard(replica.shard)

    def topology_changed(self, topology: Topology) -> None:
        self.topology = topology
        self.since = {stream: number for stream, number in self.since.items() if self._earlier(stream) is not None}
        self.reported = {
            stream: through
            for stream, through in self.reported.items()
            if topology.successor(stream.producer.part) is not None
        }
        self.told = {shard for shard in self.told if topology.predecessor(shard) is not None}

    def passed_over(self, header: UnitHeader) -> bool:
        """A unit was produced here and does not count; whether it is the next one before those that will."""
        stream = header.stream
        early = header.generation < generation_of(stream.producer.part)
        if not early or header.number <= self.since.get(stream, header.number):
            return False
        self.since[stream] = header.number
        return True

    def delivered(self, stream: StreamId, through: int) -> None:
        """A stream, of whichever part, is in its sink up to this unit."""
        if self.topology.successor(stream.producer.part) is None or through <= self.reported.get(stream, 0):
            return
        self.reported[stream] = through
        for listener in self.listeners:
            listener()

    def may_deliver(self, stream: StreamId) -> bool:
        if not self.topology.replaces:
            return True
        earlier = self._earlier(stream)
        return earlier is None or self.reported.get(earlier, 0) >= self.since.get(stream, 0)

    def busy(self) -> bool:
        """Whether a shard here waits for its predecessor to be done, which every unit of either may change."""
        return any(stream.producer not in self.told for stream in self.since)

    def check(self) -> None:
        for stream in self.since:
            require(self._earlier(stream) is not None, f"{stream} waits for a predecessor that it does not have")
        for stream in self.reported:
            successor = self.topology.successor(stream.producer.part)
            require(successor is not None, f"the end of {stream} is recorded for a successor that it does not have")
        left = self.told - {stream.producer for stream in self.since}
        require(not left, f"{sorted(map(str, left))} have taken over without a stream that would show it")

    def tick(self, _now_ms: float) -> list[Instruction]:
        """Say of each shard here, once, that its predecessor is not needed any more."""
        out: list[Instruction] = []
        if not self.since:
            return out
        for shard in sorted({stream.producer for stream in self.since} - self.told):
            if all(self._taken_over(stream) for stream in self.since if stream.producer == shard):
                self.told.add(shard)
                out.append(ReportSwitched(shard))
        return out

    def _taken_over(self, stream: StreamId) -> bool:
        box = self.outboxes.boxes[stream]
        if stream.consumer.part in self.topology.client_sinks:
            newest = box.headers.get(box.last)
            return box.last >= self.since[stream] + LINGER_UNITS or (newest is not None and newest.final)
        return box.last > self.since[stream] and self.may_deliver(stream)

    def _earlier(self, stream: StreamId) -> StreamId | None:
        producer = self.topology.predecessor(stream.producer)
        return None if producer is None else StreamId(producer, stream.consumer)
