"""One run of a line of nodes, and what Hwang et al. measure of it: bytes for availability, delays around a failure.

Bytes are counted as they arrive. What a message says of a stream or a state is one tuple identifier, as in the paper:
an acknowledgement, the offer of a copy, the question for it, and the place that a copy goes up to. Tuples to a node's
primary are data; tuples to its backup, and results in a copy, are for availability. What the paper has no counterpart
for is not counted, and told in ``LineFigures.apart``: progress for the sources, digests that replicas compare.

A failed node does nothing from one moment on; what it had sent arrives. The failure is at a random moment.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median

from unbroken.errors import UnbrokenError
from unbroken.protocol.messages import Ack, Message
from unbroken.protocol.policies.passive_standby.messages import Offer
from unbroken.protocol.values.ids import NodeId, ShardId, StreamId
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.disk import ReplicaDisk
from unbroken_lab.sim.transfers import Transfer
from unbroken_lab.sim.world import World
from unbroken_lab.studies.hwang.flow import NodeLine

LATE_MS = 1.0
"""A tuple is late if it takes so much longer than before the failure. Units of tuples that are caught up with are each
some milliseconds less late than the one before, so this decides about one of them at most."""

COPY_IDENTIFIERS = 2
"""The question for a copy, and the place it goes up to."""


@dataclass(frozen=True)
class LineRun:
    """One run: of which line, with which seed, how long bytes are counted, and whether a node fails afterwards."""

    line: NodeLine
    seed: int
    measured_ms: float
    fails: bool


@dataclass(frozen=True)
class LineFigures:
    """What one run gave. Bytes are those of the streams between nodes; ``identifiers`` are per stream and interval.

    ``apart`` are the messages that are not counted, for each unit of the line. ``course`` are the units that the node
    behind the failed one received, as (time since the failure, delay).
    """

    overhead: float
    identifiers: float
    bytes_per_ms: float
    apart: tuple[tuple[str, float], ...]
    partial_ms: float | None = None
    full_ms: float | None = None
    course: tuple[tuple[float, float], ...] = ()


@dataclass
class Counting:
    """A meter for a world: bytes while it is ``open``, and the times at which units arrive, all the time."""

    line: NodeLine
    world: World
    open: bool = False
    data: float = 0.0
    copied: float = 0.0
    identifiers: int = 0
    apart: Counter[str] = field(default_factory=Counter)
    arrived: dict[StreamId, dict[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layout = self.world.zookeeper.layout
        self._inner = set(self.line.inner)
        self._primaries = {min(layout.full(s.consumer)): s for s in self._inner}
        self._data = {(stream, layout.placement[replica]) for replica, stream in self._primaries.items()}
        self._copied = {stream.consumer for stream in self._inner}

    def message(self, sender: NodeId, receiver: NodeId, message: Message) -> None:
        if not self.open:
            return
        match message:
            case Ack(stream=stream):
                self.identifiers += stream in self._inner
            case Offer(replica=replica):
                self.identifiers += replica.shard in self._copied
            case _:
                self.apart[type(message).__name__] += 1

    def unit(self, sender: NodeId, receiver: NodeId, header: UnitHeader) -> None:
        self.arrived.setdefault(header.stream, {}).setdefault(header.number, self.world.kernel.now_ms)
        if not self.open or header.stream not in self._inner:
            return
        if (header.stream, receiver) in self._data:
            self.data += header.size
        else:
            self.copied += header.size

    def copy(self, transfer: Transfer, pinned: ReplicaDisk) -> int:
        """The size of a copy: the results that were not part of the one before, which all state there is depends on."""
        there = transfer.asker.disk.replicas.get(transfer.replica)
        known = there.committed if there is not None and transfer.held else 0
        size = sum(header.size for (_, number), (header, _) in pinned.outbox.items() if number > known)
        if self.open and transfer.replica.shard in self._copied:
            self.copied += size
            self.identifiers += COPY_IDENTIFIERS
        return size


def run(job: LineRun) -> LineFigures:
    """Simulate one line of nodes from its start on."""
    line, parameters = job.line, job.line.parameters
    world = World(line.setup(), job.seed)
    random = world.kernel.random("hwang")
    counting = world.network.arrivals = Counting(line, world)
    world.copying.sizes = counting.copy
    interval = parameters.interval_ms
    hops = line.network.side + 3
    world.kernel.run(hops * (parameters.delay_ms + line.grain.unit_ms) + interval * (2 + random.random()))
    counting.open = True
    measured_ms = interval * max(1, round(job.measured_ms / interval))
    world.kernel.run(world.kernel.now_ms + measured_ms)
    counting.open = False
    spent = _spent(line, counting, measured_ms)
    if not job.fails:
        return spent
    world.kernel.run(world.kernel.now_ms + interval * random.random())
    failing = line.names[-1] if line.network.nodes == 2 else random.choice(line.names)
    return _recover(line, world, counting, failing, spent)


def _spent(line: NodeLine, counting: Counting, measured_ms: float) -> LineFigures:
    if not counting.data:
        raise UnbrokenError(f"no tuples arrived within {measured_ms:g} ms: the line of nodes has not begun to work")
    identifier_bytes = line.parameters.identifier_bytes * counting.identifiers
    intervals = measured_ms / line.parameters.interval_ms * len(line.inner)
    everything = counting.data + counting.copied + identifier_bytes
    units = measured_ms / line.grain.unit_ms
    return LineFigures(
        overhead=(counting.copied + identifier_bytes) / counting.data,
        identifiers=counting.identifiers / intervals,
        bytes_per_ms=everything / measured_ms,
        apart=tuple((kind, count / units) for kind, count in sorted(counting.apart.items())),
    )


def _recover(line: NodeLine, world: World, counting: Counting, failing: str, spent: LineFigures) -> LineFigures:
    """Let the primary of a node fail, and follow what arrives behind it."""
    failed_ms = world.kernel.now_ms
    layout = world.zookeeper.layout
    process = world.process(layout.placement[min(layout.full(ShardId(failing, 0)))])
    if process is None:
        raise UnbrokenError(f"{failing} has failed before it should")
    process.freeze()
    detected_ms = failed_ms + line.parameters.detection_ms
    world.kernel.run(detected_ms + _longest_ms(line))
    stream = line.after(failing)
    made = counting.arrived[StreamId(ShardId("source", 0), ShardId(line.names[0], 0))]
    latency = line.parameters.delay_ms
    delays = {n: at - made[n] + latency for n, at in counting.arrived[stream].items() if n in made}
    arrived = counting.arrived[stream]
    before = max(n for n, at in arrived.items() if at < detected_ms)
    usual = median(delay for n, delay in delays.items() if arrived[n] < failed_ms)
    after = sorted(n for n in delays if n > before)
    late = [n for n in after if delays[n] > usual + LATE_MS]
    if not after or (late and late[-1] == after[-1]):
        raise UnbrokenError(
            f"{stream} has not recovered {world.kernel.now_ms - detected_ms:.0f} ms after the detection"
        )
    around = [n for n in sorted(delays) if arrived[n] > failed_ms - line.parameters.detection_ms / 2]
    return LineFigures(
        overhead=spent.overhead,
        identifiers=spent.identifiers,
        bytes_per_ms=spent.bytes_per_ms,
        apart=spent.apart,
        partial_ms=arrived[after[0]] - detected_ms,
        full_ms=arrived[late[-1] if late else after[0]] - detected_ms,
        course=tuple((arrived[n] - failed_ms, delays[n]) for n in around),
    )


def _longest_ms(line: NodeLine) -> float:
    """Long enough for what has piled up to be worked off, whatever the approach."""
    link = line.link
    waits_ms = link.interval_ms + 5 * link.delay_ms + link.detection_ms
    piled_up = link.arrivals_per_ms * waits_ms / (link.drain_per_ms - link.arrivals_per_ms)
    return 2 * piled_up + 8 * link.delay_ms + 2 * line.grain.unit_ms
