"""What is tentative in the simulated cluster: the sink that takes it, and the queries of forks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from protocol.model_parts import FakeSpark, Sink, digest_of, mix
from unbroken.protocol.tentative.fork import Fork
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId, fork_of, home_of
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.units import UnitHeader


def is_fork(replica: ReplicaId) -> bool:
    return home_of(replica.shard.part) != replica.shard.part


def home_shard(fork: ReplicaId) -> ShardId:
    return ShardId(home_of(fork.shard.part), fork.shard.index)


def is_tentative(content: int) -> bool:
    """Contents that were made without some input are told by their sign."""
    return content < 0


@dataclass
class Reached:
    """When results of a pulse, or of a later one, were first there: stable ones, and any."""

    stable: dict[int, float] = field(default_factory=dict)
    any: dict[int, float] = field(default_factory=dict)

    def note(self, since: int, pulse: int, now_ms: float, *, stable: bool) -> None:
        for number in range(since + 1, pulse + 1):
            self.any.setdefault(number, now_ms)
            if stable:
                self.stable.setdefault(number, now_ms)


@dataclass
class TentativeSink(Sink):
    """A sink with a ledger that also takes tentative units, until the stable ones of their pulses replace them.

    It takes one only if it reaches beyond all that it has. ``overlaps`` counts those that cover a pulse a second time,
    which is possible when another replica, or another fork, goes on: what they take in one micro-batch may differ. So
    it happens when a fork fails, a link is parted or a node is lost, and when replicas that are set back take turns.

    A unit that also covers pulses that are stable by now is none of these. A fork that was kept ready is behind, and
    takes all that has come since in one micro-batch.
    """

    now_ms: float = 0.0
    tentative: dict[Hashable, dict[int, int]] = field(default_factory=dict)
    highest: dict[Hashable, int] = field(default_factory=dict)
    shown: dict[Hashable, int] = field(default_factory=dict)
    reached: dict[Hashable, Reached] = field(default_factory=dict)
    accepted: int = 0
    overlaps: int = 0
    undone: int = 0

    def write(self, lane: Hashable, number: int, part: str, content: int) -> None:
        assert not is_tentative(content), f"unit {number} of {part} is stable and made of tentative input"
        super().write(lane, number, part, content)
        kept = self.tentative.get(lane, {})
        self.undone += any(pulse >= number for pulse in kept)
        self.tentative[lane] = {pulse: found for pulse, found in kept.items() if pulse > number}
        self._reach(lane, number - 1, number, stable=True)

    def write_tentative(self, lane: Hashable, header: UnitHeader, content: int) -> bool:
        assert is_tentative(content) and not header.stable and header.since < header.pulse
        reach = max(self.highest.get(lane, 0), self.through(lane))
        if header.pulse <= reach:
            return False
        self.accepted += 1
        self.overlaps += header.since < self.shown.get(lane, 0)
        self.shown[lane] = header.pulse
        self.tentative.setdefault(lane, {})[header.pulse] = content
        self._reach(lane, header.since, header.pulse, stable=False)
        return True

    def _reach(self, lane: Hashable, since: int, pulse: int, *, stable: bool) -> None:
        self.highest[lane] = max(pulse, self.highest.get(lane, 0))
        self.reached.setdefault(lane, Reached()).note(since, pulse, self.now_ms, stable=stable)


def run_fork(
    spark: FakeSpark, fork: Fork, number: int, contents: Mapping[StreamId, list[int]], topology: Topology
) -> tuple[UnitHeader, ...]:
    """One micro-batch of a fork: any number of units of each input, and one unit for each output stream."""
    header = fork.cut_header(number, spark.cut)
    assert header is not None and not header.stable and not header.final
    assert header.since < header.pulse, f"{spark.replica}: micro-batch {number} covers nothing"
    assert any(contents.values()), f"{spark.replica}: micro-batch {number} has no input"
    before = spark.disk.states[spark.committed]
    rows = sorted((str(stream), units) for stream, units in contents.items())
    state = -1 - mix(before, str(spark.replica.shard), rows)
    spark.uncommitted = (number, state)
    home = home_shard(spark.replica)
    out: list[UnitHeader] = []
    for stream in topology.outputs(home):
        content = -1 - mix(state, str(stream))
        name = StreamId(ShardId(fork_of(home.part), home.index), stream.consumer)
        made = replace(header, stream=name, number=number, digest=digest_of(content), size=1)
        spark.disk.outbox[name, number] = (made, content)
        out.append(made)
    return tuple(out)
