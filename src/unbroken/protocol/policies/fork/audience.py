"""Who sees tentative results: subscribers and sinks, each pulse at most once from here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from unbroken.protocol.instructions import Deliver, Instruction, SendUnit
from unbroken.protocol.messages import Subscribe
from unbroken.protocol.output.sinks import Sinks
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import UnitHeader


@dataclass
class TentativeReader:
    """A subscriber of a stream that wants tentative units beyond pulse ``heard``."""

    node: NodeId
    heard: int


@dataclass
class Audience:
    """Sends tentative units to subscribers and hands them to sinks.

    A sink is handed one at a time. The replicas of a shard take their turn one after the other, ``hedge_ms`` apart, and
    a sink knows by the pulse what it has.

    Invariant: nobody is sent two units that reach the same pulse.
    """

    around: Surroundings
    sinks: Sinks
    readers: dict[tuple[StreamId, str], TentativeReader] = field(default_factory=dict)
    queues: dict[StreamId, list[tuple[float, ReplicaId, UnitHeader]]] = field(default_factory=dict)
    under_way: dict[StreamId, UnitHeader] = field(default_factory=dict)

    def subscribe(self, sender: NodeId, message: Subscribe) -> None:
        key = (message.stream, message.subscriber)
        if message.heard >= 0:
            self.readers[key] = TentativeReader(sender, message.heard)
        else:
            self.readers.pop(key, None)

    def unsubscribe(self, stream: StreamId, subscriber: str) -> None:
        self.readers.pop((stream, subscriber), None)

    def gone(self, node: NodeId) -> None:
        self.readers = {key: reader for key, reader in self.readers.items() if reader.node != node}

    def show(self, fork: ReplicaId, headers: tuple[UnitHeader, ...], now_ms: float) -> list[Instruction]:
        """Give these results of a fork to everybody who wants them."""
        for header in headers:
            if self._for_sink(header):
                at = now_ms + self._rank(header.stream.home.producer) * self.around.settings.hedge_ms
                self.queues.setdefault(header.stream, []).append((at, fork, header))
        return self.send(fork, headers)

    def send(self, fork: ReplicaId, headers: Iterable[UnitHeader]) -> list[Instruction]:
        out: list[Instruction] = []
        for header in headers:
            for (stream, _), reader in self.readers.items():
                if stream == header.stream.home and header.pulse > reader.heard:
                    reader.heard = header.pulse
                    out.append(SendUnit(reader.node, fork, header))
        return out

    def tick(self, now_ms: float) -> list[Instruction]:
        out: list[Instruction] = []
        for stream, waiting in self.queues.items():
            if stream in self.under_way:
                continue
            while waiting and waiting[0][0] <= now_ms:
                _, fork, header = waiting.pop(0)
                if header.pulse > self._delivered(stream.home):
                    self.under_way[stream] = header
                    out.append(Deliver(fork, header))
                    break
        return out

    def delivered(self, stream: StreamId) -> None:
        self.under_way.pop(stream, None)

    def withdraw(self, header: UnitHeader) -> bool:
        """A unit is not worth showing any more; whether a sink is being handed it all the same."""
        waiting = self.queues.get(header.stream, [])
        self.queues[header.stream] = [entry for entry in waiting if entry[2] != header]
        return self.under_way.get(header.stream) == header

    def forget(self, fork: ReplicaId) -> None:
        """A fork is gone, with all that it has not given out."""
        for stream, waiting in self.queues.items():
            self.queues[stream] = [entry for entry in waiting if entry[1] != fork]

    def close(self, shard: ShardId) -> None:
        """Nothing of this shard is produced here any more."""
        self.readers = {key: reader for key, reader in self.readers.items() if key[0].producer != shard}
        for stream in [stream for stream in self.queues if stream.home.producer == shard]:
            del self.queues[stream]
            self.under_way.pop(stream, None)

    def wake_times_ms(self) -> list[float]:
        return [waiting[0][0] for stream, waiting in self.queues.items() if waiting and stream not in self.under_way]

    def _for_sink(self, header: UnitHeader) -> bool:
        """Whether a sink takes a unit: a tentative one, of the generation of code whose results count for it."""
        stream, topology = header.stream.home, self.around.topology
        takes = stream.consumer.part in topology.tentative_sinks - topology.client_sinks
        return takes and topology.counts(stream.producer.part, header.generation)

    def _rank(self, shard: ShardId) -> int:
        """How many replicas of a shard deliver before the one that is here."""
        full = sorted(self.around.layout.full(shard))
        here = self.around.layout.replica_on(self.around.me, shard)
        return full.index(here) if here in full else len(full)

    def _delivered(self, stream: StreamId) -> int:
        """The last stable unit that the sink has of a stream; units are numbered by pulses where this matters."""
        delivery = self.sinks.deliveries.get(stream)
        return 0 if delivery is None else delivery.delivered
