"""How many pulses are on their way through the flow: what sources cut by."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unbroken.protocol.ingress.pause import rest_of
from unbroken.protocol.ingress.sources import SourceSide
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import Layout, Topology

if TYPE_CHECKING:
    from unbroken.protocol.machine import NodeProtocol

APART = 1 / 3
"""Share of the patience with missing input by which pulses are apart while something that was gone on without catches
up, where sources are put together by event time."""

BEHIND = 2_000
"""Pulses by which a shard may be behind whose consumers go on without it; what it has yet to take is kept all the time.
"""

LEFT_MS = 2_000.0
"""How long a segment that lacks the rows of a source must have stood still before the other sources are cut without
waiting for it. Long enough for a read that is slow and not stuck, short enough that few notice."""


@dataclass
class Pace:
    """What an ingress node knows of the progress of others, for when to cut the next pulse.

    Where every shard waits for its input, the slowest one decides, and until that one has moved no other has to be
    looked at: ``last`` is that shard, how far it was, and by which layout.

    ``left`` are the segments that are not waited for, because they have processed all there is of a source that cannot
    be read; they are until they have caught up.
    """

    node: NodeProtocol
    last: tuple[ShardId, int, int] | None = None
    left: frozenset[str] = frozenset()

    def in_flight(self) -> int:
        """Pulses cut but not yet processed by the fastest counted replica of every shard that is waited for."""
        node, newest = self.node, self._newest()
        if node.ahead:
            self.last, self.left = None, frozenset()
            return newest - slowest(node.topology, node.layout, node.progress, node.ahead, newest)
        flying = newest - min(newest, self._slowest_shard(newest))
        if node.sources is None or (flying < node.sources.pulse.in_flight_bound and not self.left):
            return flying
        self.left = self._left_behind(newest, node.sources.pulse.in_flight_bound)
        if not self.left:
            return flying
        waited_for = [self._part_reached(part) for part in self._parts() if part not in self.left]
        return newest - min([newest, *waited_for])

    def _left_behind(self, newest: int, bound: int) -> frozenset[str]:
        """The segments that lack a source which cannot be read here, or what others that lack it would make.

        If that is all of them, the pulse waits as ever: there is no source whose rows would be of use.
        """
        node = self.node
        if node.ingress is None or node.topology.bucketed:
            return frozenset()
        given: dict[str, int] = {}
        for box in node.outboxes.of(node.ingress):
            source = box.stream.producer.part
            given[source] = min(box.last, given.get(source, box.last))
        left: set[str] = set()
        for part in self._parts():
            reached = self._part_reached(part)
            lacks = any(
                given.get(maker, newest) <= reached or (maker in left and self._part_reached(maker) <= reached)
                for maker in node.topology.producers_of(part)
            )
            stays = part in self.left and newest - reached >= bound
            if newest - reached < BEHIND and (stays or (lacks and reached < newest and self._still(part))):
                left.add(part)
        return frozenset() if left >= set(self._parts()) else frozenset(left)

    def _parts(self) -> list[str]:
        """The segments at work, producers before consumers."""
        node = self.node
        return [
            part
            for part in node.topology.segments
            if part not in node.topology.replaces or all(node.layout.full(s) for s in node.topology.shards(part))
        ]

    def _part_reached(self, part: str) -> int:
        return min((self._reached(shard) for shard in self.node.topology.shards(part)), default=0)

    def _still(self, part: str) -> bool:
        """Whether no replica of a segment has got further lately."""
        return self.node.seen_ms >= self._moved_ms(part) + LEFT_MS

    def _moved_ms(self, part: str) -> float:
        replicas = [r for shard in self.node.topology.shards(part) for r in self.node.layout.counted(shard)]
        return max((self.node.moved.get(replica, 0.0) for replica in replicas), default=0.0)

    def wake_times_ms(self) -> list[float]:
        """When segments that a held pulse waits for may be left behind."""
        sources = self.node.sources
        if sources is None or not sources.log.leading or not sources.pulse.held or len(self._parts()) < 2:
            return []
        times = [self._moved_ms(part) + LEFT_MS for part in self._parts() if part not in self.left]
        return [time for time in times if time > self.node.seen_ms]

    def _slowest_shard(self, newest: int) -> int:
        """The same as ``slowest`` where nobody is ahead."""
        node = self.node
        if self.last is not None:
            shard, reached, version = self.last
            if version == node.layout.version and reached == self._reached(shard):
                return reached
        least: tuple[int, ShardId] | None = None
        for part in node.topology.segments:
            for shard in node.topology.shards(part):
                if part in node.topology.replaces and not node.layout.full(shard):
                    continue
                reached = self._reached(shard)
                if least is None or reached < least[0]:
                    least = (reached, shard)
        if least is None:
            return newest
        self.last = (least[1], least[0], node.layout.version)
        return least[0]

    def _reached(self, shard: ShardId) -> int:
        progress = self.node.progress
        return max((progress.get(replica, 0) for replica in self.node.layout.counted(shard)), default=0)

    def tick(self, sources: SourceSide, now_ms: float) -> list[Instruction]:
        """Cut a pulse if it is time."""
        node = self.node
        sources.rest = rest_of(node.topology, node.layout)
        if sources.idle(now_ms) and sources.pulse.eased_ms is None:
            return []  # Pulses that are eased may be due earlier than they were, if nobody catches up any longer.
        flying = self.in_flight()
        waits = bool(node.ahead or self.left)
        newcomers = any(replica in node.progress for replica in node.layout.joining)
        late = newcomers or (bool(node.ahead) and self._catches_up()) or any(not self._still(p) for p in self.left)
        # Buckets that are closed together are processed together, which is how what is behind catches up.
        least = self._patience() * APART if node.topology.bucketed and waits else 0.0
        version = node.layout.version if node.topology.at_most_once else 0
        return sources.tick(now_ms, flying, node.layout.generation, late, version, waits, least)

    def _newest(self) -> int:
        """The last pulse that is cut in all sources."""
        node = self.node
        if node.sources is None:
            return 0
        if node.topology.bucketed and node.ingress is not None:
            return min((box.last for box in node.outboxes.of(node.ingress)), default=0)
        return node.sources.log.last_pulse

    def _catches_up(self) -> bool:
        node = self.node
        moving = {replica for replica, ms in node.moved.items() if node.seen_ms < ms + self._patience()}
        return catches_up(node.topology, node.layout, node.progress, moving, self._newest())

    def _patience(self) -> float:
        """How long missing input is waited for where that is not for ever."""
        return min((how.patience_ms for how in self.node.topology.availability.values()), default=0.0)


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
