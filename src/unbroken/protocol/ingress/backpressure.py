"""How many pulses are on their way through the flow: what sources cut by."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from unbroken.protocol.ingress.pause import rest_of
from unbroken.protocol.ingress.seat import Advance, Seat
from unbroken.protocol.ingress.sources import SourceSide
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import Layout, Topology

BEHIND = 2_000
"""Pulses by which a shard may be behind whose consumers go on without it; what it has yet to take is kept all the time.
"""

LEFT_MS = 2_000.0
"""How long a segment that lacks the rows of a source must have stood still before the other sources are cut without
waiting for it. Long enough for a read that is slow and not stuck, short enough that few notice."""


class CutRule(Protocol):
    """How sources are cut, where that is not all together and by time alone."""

    def separate(self) -> bool: ...

    def stamp(self) -> int: ...

    def apart_ms(self) -> float: ...

    def endured_ms(self) -> float: ...


@dataclass
class Backpressure:
    """What an ingress node knows of the progress of others, for when to cut the next pulse.

    Where every shard waits for its input, the slowest one decides, and until that one has moved no other has to be
    looked at: ``last`` is that shard, how far it was, and by which layout.

    ``left`` are the segments that are not waited for, because they have processed all there is of a source that cannot
    be read; they are until they have caught up.
    """

    around: Surroundings
    seat: Seat
    advance: Advance
    outboxes: Outboxes
    rule: CutRule
    last: tuple[ShardId, int, int] | None = None
    left: frozenset[str] = frozenset()

    def in_flight(self) -> int:
        """Pulses cut but not yet processed by the fastest counted replica of every shard that is waited for."""
        around, advance, sources, newest = self.around, self.advance, self.seat.sources, self._newest()
        if advance.ahead:
            self.last, self.left = None, frozenset()
            return newest - slowest(around.topology, around.layout, advance.reached, advance.ahead, newest)
        flying = newest - min(newest, self._slowest_shard(newest))
        if sources is None or (flying < sources.pulse.in_flight_bound and not self.left):
            return flying
        self.left = self._left_behind(newest, sources.pulse.in_flight_bound)
        if not self.left:
            return flying
        waited_for = [self._part_reached(part) for part in self._parts() if part not in self.left]
        return newest - min([newest, *waited_for])

    def _left_behind(self, newest: int, bound: int) -> frozenset[str]:
        """The segments that lack a source which cannot be read here, or what others that lack it would make.

        If that is all of them, the pulse waits as ever: there is no source whose rows would be of use.
        """
        if self.seat.replica is None or self.rule.separate():
            return frozenset()
        given: dict[str, int] = {}
        for box in self.outboxes.of(self.seat.replica):
            source = box.stream.producer.part
            given[source] = min(box.last, given.get(source, box.last))
        left: set[str] = set()
        for part in self._parts():
            reached = self._part_reached(part)
            lacks = any(
                given.get(maker, newest) <= reached or (maker in left and self._part_reached(maker) <= reached)
                for maker in self.around.topology.producers_of(part)
            )
            stays = part in self.left and newest - reached >= bound
            if newest - reached < BEHIND and (stays or (lacks and reached < newest and self._still(part))):
                left.add(part)
        return frozenset() if left >= set(self._parts()) else frozenset(left)

    def _parts(self) -> list[str]:
        """The segments at work, producers before consumers."""
        topology, layout = self.around.topology, self.around.layout
        return [
            part
            for part in topology.segments
            if part not in topology.replaces or all(layout.full(shard) for shard in topology.shards(part))
        ]

    def _part_reached(self, part: str) -> int:
        return min((self._reached(shard) for shard in self.around.topology.shards(part)), default=0)

    def _still(self, part: str) -> bool:
        """Whether no replica of a segment has got further lately."""
        return self.around.seen_ms >= self._moved_ms(part) + LEFT_MS

    def _moved_ms(self, part: str) -> float:
        layout, moved = self.around.layout, self.advance.moved
        replicas = [r for shard in self.around.topology.shards(part) for r in layout.counted(shard)]
        return max((moved.get(replica, 0.0) for replica in replicas), default=0.0)

    def wake_times_ms(self) -> list[float]:
        """When segments that a held pulse waits for may be left behind."""
        sources = self.seat.sources
        if sources is None or not sources.log.leading or not sources.pulse.held or len(self._parts()) < 2:
            return []
        times = [self._moved_ms(part) + LEFT_MS for part in self._parts() if part not in self.left]
        return [time for time in times if time > self.around.seen_ms]

    def _slowest_shard(self, newest: int) -> int:
        """The same as ``slowest`` where nobody is ahead."""
        topology, layout = self.around.topology, self.around.layout
        if self.last is not None:
            shard, reached, version = self.last
            if version == layout.version and reached == self._reached(shard):
                return reached
        least: tuple[int, ShardId] | None = None
        for part in topology.segments:
            for shard in topology.shards(part):
                if part in topology.replaces and not layout.full(shard):
                    continue
                reached = self._reached(shard)
                if least is None or reached < least[0]:
                    least = (reached, shard)
        if least is None:
            return newest
        self.last = (least[1], least[0], layout.version)
        return least[0]

    def _reached(self, shard: ShardId) -> int:
        reached = self.advance.reached
        return max((reached.get(replica, 0) for replica in self.around.layout.counted(shard)), default=0)

    def tick(self, sources: SourceSide, now_ms: float) -> list[Instruction]:
        """Cut a pulse if it is time."""
        around, advance = self.around, self.advance
        sources.rest = rest_of(around.layout, self.rule.separate())
        pulse = sources.pulse
        if sources.idle(now_ms) and pulse.eased_ms is None and not pulse.least_ms:
            return []  # Pulses that are eased may be due earlier, if nobody catches up any longer or a pause is over.
        flying = self.in_flight()
        waits = bool(advance.ahead or self.left)
        newcomers = any(replica in advance.reached for replica in around.layout.joining)
        late = newcomers or (bool(advance.ahead) and self._catches_up()) or any(not self._still(p) for p in self.left)
        least = self.rule.apart_ms() if waits else 0.0
        return sources.tick(now_ms, flying, around.layout.generation, late, self.rule.stamp(), waits, least)

    def _newest(self) -> int:
        """The last pulse that is cut in all sources."""
        if self.seat.sources is None:
            return 0
        if self.seat.replica is not None and self.rule.separate():
            return min((box.last for box in self.outboxes.of(self.seat.replica)), default=0)
        return self.seat.sources.log.last_pulse

    def _catches_up(self) -> bool:
        around, advance = self.around, self.advance
        endured_ms = self.rule.endured_ms()
        moving = {replica for replica, ms in advance.moved.items() if around.seen_ms < ms + endured_ms}
        return catches_up(around.topology, around.layout, advance.reached, moving, self._newest())


def slowest(
    topology: Topology, layout: Layout, progress: Mapping[ReplicaId, int], ahead: Mapping[ReplicaId, int], newest: int
) -> int:
    """The pulse that the fastest counted replica of every shard has processed.

    A shard that has yet to take over its predecessor's state holds nobody up. Neither does one that lacks input and has
    what it can have of it up to some pulse (``ahead``), nor one whose consumers all go on without it like that, nor one
    that has processed all that it was given by such a one.
    """
    reached: dict[str, int] = {}
    without: set[str] = set()
    done: dict[str, int] = {}
    for part in reversed(list(topology.segments)):
        own = done[part] = newest
        for shard in topology.shards(part):
            if part in topology.replaces and not layout.full(shard):
                continue
            counted = layout.counted(shard)
            done[part] = min(done[part], max((progress.get(r, 0) for r in counted), default=0))
            own = min(own, max((max(progress.get(r, 0), ahead.get(r, 0)) for r in counted), default=0))
            if any(ahead.get(replica) for replica in counted):
                without.add(part)
        readers = [consumer for consumer in topology.consumers_of(part) if consumer in reached]
        lifted = min(reached[reader] for reader in readers) if readers and set(readers) <= without else 0
        if lifted > own and newest - own < BEHIND:
            without.add(part)
            own = lifted
        reached[part] = own
    for part in topology.segments:
        makers = [maker for maker in topology.producers_of(part) if maker in done]
        if without & set(makers) and done[part] >= min(done[maker] for maker in makers):
            without.add(part)
            reached[part] = max(reached[part], min(reached[maker] for maker in makers))
    return min(reached.values(), default=newest)


def catches_up(
    topology: Topology, layout: Layout, progress: Mapping[ReplicaId, int], moving: Collection[ReplicaId], newest: int
) -> bool:
    """Whether a shard that was gone on without is on its way back: it makes progress, and has some way to go."""
    for part in topology.segments:
        for shard in topology.shards(part):
            done = max((progress.get(replica, 0) for replica in layout.counted(shard) if replica in moving), default=0)
            if done and newest - done > len(topology.segments) + 1:
                return True
    return False
