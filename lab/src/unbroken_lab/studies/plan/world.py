"""A simulated run of a real flow: its own rows and bytes, results with the time they came, and bytes by purpose."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.demo.measure import ArrivalSample
from unbroken_lab.sim.content import Content, digest_of
from unbroken_lab.sim.disk import ReplicaDisk
from unbroken_lab.sim.traffic import Traffic
from unbroken_lab.sim.transfers import Transfer
from unbroken_lab.sim.world import Setup, World
from unbroken_lab.studies.calibration.calibration import Calibration, SegmentCosts

SNAPSHOT_UNITS = 20
SNAPSHOT_MS = 10_000.0
"""Spark makes a snapshot of a state after so many changes, and looks for that so often: see a node's session."""


@dataclass
class Sizes:
    """Bytes so far, by the number of the last unit that they belong to."""

    bytes: dict[int, float] = field(default_factory=lambda: {0: 0.0})

    def note(self, number: int, size: float) -> None:
        if number not in self.bytes:
            self.bytes[number] = self.bytes[max(self.bytes)] + size

    def between(self, before: int, after: int) -> float:
        return self._up_to(after) - self._up_to(before)

    def _up_to(self, number: int) -> float:
        return self.bytes[max(known for known in self.bytes if known <= number)]


@dataclass
class Checkpoint:
    """What the files of a shard's checkpoint come to: changes of each version, and a snapshot of everything now and
    then. A copy consists of the newest snapshot and the changes after it. ``kept`` are units for clients."""

    changes: Sizes = field(default_factory=Sizes)
    kept: Sizes = field(default_factory=Sizes)
    snapshots: list[int] = field(default_factory=lambda: [0])
    look_ms: float = SNAPSHOT_MS

    def committed(self, number: int, size: float, now_ms: float) -> None:
        self.changes.note(number, size)
        if now_ms >= self.look_ms:
            self.look_ms = now_ms - now_ms % SNAPSHOT_MS + SNAPSHOT_MS
            if number - self.snapshots[-1] >= SNAPSHOT_UNITS:
                self.snapshots.append(number)

    def missing(self, before: int, after: int, snapshot_bytes: float) -> float:
        """Bytes of version ``after`` that are not part of version ``before``."""
        newest = max(number for number in self.snapshots if number <= after)
        kept = self.kept.between(before, after)
        if newest <= before:
            return kept + self.changes.between(before, after)
        return kept + snapshot_bytes + self.changes.between(newest, after)


class PlanWorld(World):
    """A world whose units are as large, and whose segments let as many rows through, as was measured.

    ``clients`` are the sinks that clients subscribe to: what was made for them is kept, so that copies of a state hold
    it, too. ``samples`` are the results as they came.
    """

    def __init__(self, setup: Setup, seed: int, calibration: Calibration, clients: frozenset[str]) -> None:
        self.calibration = calibration
        self.clients = clients
        self.samples: list[ArrivalSample] = []
        self._seen: set[tuple[StreamId, int]] = set()
        self.checkpoints: dict[ShardId, Checkpoint] = {}
        super().__init__(setup, seed)
        self.traffic = self.network.meter = Traffic(calibration.entry_bytes, clients)
        self.copying.sizes = self._copied

    def write_unit(self, disk: ReplicaDisk, header: UnitHeader, content: Content, faithful: bool) -> UnitHeader:
        """Give a unit the rows and bytes that were measured. ``content`` has as many rows as the input had."""
        part = header.stream.producer.part
        segment, source = self.calibration.segments.get(part), self.calibration.sources.get(part)
        if segment is not None:
            self._note_written(disk, header, content, segment)
            shards = len(self.topology.shards(header.stream.consumer.part))
            content = replace(content, rows=int(content.rows * segment.keep / shards))
        costs = segment or source
        if costs is not None:
            size = int(costs.unit_bytes + content.rows * costs.row_bytes)
            header = replace(header, size=size, digest=digest_of(content))
        return super().write_unit(disk, header, content, faithful)

    def delivered(self, header: UnitHeader, content: Content) -> None:
        super().delivered(header, content)
        if (header.stream, header.number) in self._seen:
            return  # another replica was faster
        self._seen.add((header.stream, header.number))
        self.samples.append(ArrivalSample(header.pulse, content.rows, content.cut_ms, self.kernel.now_ms))

    def bytes_by_purpose(self) -> Counter[str]:
        """What the nodes that live have received, and what all have said."""
        out = Counter(self.traffic.bytes)
        for process in self.processes():
            if process.protocol is not None:
                out.update(process.protocol.traffic)
        return out

    def _note_written(self, disk: ReplicaDisk, header: UnitHeader, content: Content, costs: SegmentCosts) -> None:
        stream, shard = header.stream, header.stream.producer
        written = self.checkpoints.setdefault(shard, Checkpoint())
        if stream == self.topology.outputs(shard)[0]:
            changes = costs.change_bytes + content.rows * costs.change_row_bytes
            written.committed(header.number, changes, self.kernel.now_ms)
        if stream.consumer.part in self.clients:
            written.kept.note(header.number, costs.unit_bytes + content.rows * costs.keep * costs.row_bytes)
        disk.state_bytes = int(costs.state_bytes / len(self.topology.shards(shard.part)))

    def _copied(self, transfer: Transfer, pinned: ReplicaDisk) -> int:
        """Bytes of a copy: everything, or what has changed since the one that is there; and units it does not have."""
        shard, known = transfer.replica.shard, transfer.asker.disk.replicas.get(transfer.replica)
        written = self.checkpoints.get(shard)
        if written is None or known is None or not known.committed or not transfer.held:
            return pinned.size
        units = sum(header.size for key, (header, _) in pinned.outbox.items() if key not in known.outbox)
        snapshot = self.calibration.segments[shard.part].snapshot_bytes / len(self.topology.shards(shard.part))
        return units + int(written.missing(known.committed, pinned.committed, snapshot))
