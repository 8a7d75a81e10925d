"""What the charts of a page show: samples of a flow, one for each look, in rings of a fixed size.

Everything is worked out from what nodes say when they are asked; nothing is counted for it while units pass. What
happens between two looks shows only in counters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from unbroken.observe.status.node import ReplicaStatus
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.values.ids import ReplicaId, ShardId

SAMPLES = 1_800
"""Half an hour at a look per second, and more when nobody watches and looks are rarer."""

LATENCIES = 2_000
RATE_MS = 5_000
"""Rates are over the last seconds: between two looks there may be one pulse, or two, or none."""

WINDOW_MS = 60_000
"""Percentiles are over the results of the last minute, as far as they were seen."""

FIELDS = ("rows_per_s", "units_per_s", "latency_p50_ms", "latency_p99_ms", "gap_ms", "lag_ms", "slowest_lag_ms")
"""What a sample has beside its time. A value that is not known is None."""


@dataclass(frozen=True)
class FlowSample:
    """A flow at one moment.

    ``rows_per_s`` come in at the sources, ``units_per_s`` of results go to sinks. ``gap_ms`` is since when nobody
    downstream has seen results of the shard that is worst off. ``lag_ms`` is how old the oldest unprocessed input is
    for the fastest replica of the slowest shard, ``slowest_lag_ms`` for the slowest replica of all.
    """

    number: int
    time_ms: int
    rows_per_s: float | None = None
    units_per_s: float | None = None
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    gap_ms: float | None = None
    lag_ms: float | None = None
    slowest_lag_ms: float | None = None


@dataclass
class _Rate:
    """How fast a counter grows. One that is told by others, and goes back when they are lost, stands still."""

    _seen: deque[tuple[int, int]] = field(default_factory=deque)

    def of(self, now_ms: int, count: int) -> float | None:
        """The rate with this reading; None for the first one."""
        seen = self._seen
        seen.append((now_ms, max(count, seen[-1][1]) if seen else count))
        while len(seen) > 2 and seen[1][0] <= now_ms - RATE_MS:
            seen.popleft()
        (began_ms, first), (_, last) = seen[0], seen[-1]
        return round((last - first) * 1000 / (now_ms - began_ms), 2) if now_ms > began_ms else None


@dataclass
class _Shard:
    """What was last known of a shard that feeds a sink."""

    produced: int = 0
    moved_ms: float = 0.0
    final: bool = False


@dataclass
class Series:
    """The samples so far.

    Invariant: numbers of samples go up by one, times never go back, and there are no more than ``SAMPLES`` of them.
    """

    samples: deque[FlowSample] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    _number: int = 0
    _time_ms: int | None = None
    _rows: _Rate = field(default_factory=lambda: _Rate())
    _units: _Rate = field(default_factory=lambda: _Rate())
    _shards: dict[ShardId, _Shard] = field(default_factory=dict)
    _done: int = 0
    _latencies: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=LATENCIES))

    def look(self, snapshot: FlowSnapshot) -> FlowSample | None:
        """Take a sample; None if time has not gone on since the last one."""
        now_ms = snapshot.time_ms
        if self._time_ms is not None and now_ms <= self._time_ms:
            return None
        facts = _replicas_by_shard(snapshot)
        self._forget(snapshot)
        rows_per_s = self._rate_of_rows(snapshot)
        units_per_s = self._follow_results(facts, now_ms, paused=snapshot.pause is not None)
        lags = {shard: [f.lag_ms for f in found if f.lag_ms is not None] for shard, found in facts.items()}
        known = [values for values in lags.values() if values]
        self._number += 1
        self._time_ms = now_ms
        latency = self._percentiles(now_ms)
        sample = FlowSample(
            self._number,
            now_ms,
            rows_per_s,
            units_per_s,
            latency[0],
            latency[1],
            self._gap_ms(now_ms),
            max((min(values) for values in known), default=None),
            max((max(values) for values in known), default=None),
        )
        self.samples.append(sample)
        return sample

    def after(self, number: int) -> list[FlowSample]:
        """The samples behind one that somebody has; all of them, if that one is not known here."""
        if number > self._number:
            return list(self.samples)
        return [sample for sample in self.samples if sample.number > number]

    def check(self) -> None:
        numbers = [sample.number for sample in self.samples]
        assert numbers == list(range(self._number - len(numbers) + 1, self._number + 1)), "samples are missing"
        times = [sample.time_ms for sample in self.samples]
        assert times == sorted(times), "time goes back"

    def _rate_of_rows(self, snapshot: FlowSnapshot) -> float | None:
        """Every member of the ingress counts all rows since the flow began: the one who has read most is right."""
        counted = [state.ingress.rows for state in snapshot.states if state.ingress is not None]
        return self._rows.of(snapshot.time_ms, max(counted)) if counted else None

    def _follow_results(
        self, facts: Mapping[ShardId, list[ReplicaStatus]], now_ms: int, *, paused: bool
    ) -> float | None:
        """Note how far the shards that feed sinks have come, and how late their newest results are.

        Where a pause keeps units from coming, replicas tell no gap: nothing is waited for until it ends.
        """
        for shard, found in facts.items():
            last = self._shards.get(shard)
            gaps = [f.gap_ms for f in found if f.gap_ms is not None]
            final = any(f.final is not None for f in found)
            produced = max(f.produced for f in found)
            if last is None:
                if gaps:
                    self._shards[shard] = _Shard(produced, now_ms - min(gaps), final)
                continue
            if produced > last.produced:
                self._note_latency(found, produced, now_ms)
                self._done += produced - last.produced
                last.produced = produced
            last.final = final
            # A replica that is told of later has not moved earlier than what is known.
            last.moved_ms = max([last.moved_ms, *(now_ms - gap for gap in gaps)])
            if paused and not gaps:
                last.moved_ms = now_ms
        return self._units.of(now_ms, self._done) if self._shards else None

    def _forget(self, snapshot: FlowSnapshot) -> None:
        """Code that was replaced has no results to wait for."""
        shape = snapshot.shape
        if shape is not None:
            self._shards = {shard: known for shard, known in self._shards.items() if shard.part in shape.segments}

    def _note_latency(self, found: Iterable[ReplicaStatus], produced: int, now_ms: int) -> None:
        """The first copy of a result is the one that counts."""
        taken = [f.latency_ms for f in found if f.produced == produced and f.latency_ms is not None]
        if taken:
            self._latencies.append((now_ms, min(taken)))

    def _percentiles(self, now_ms: int) -> tuple[float | None, float | None]:
        while self._latencies and self._latencies[0][0] < now_ms - WINDOW_MS:
            self._latencies.popleft()
        values = sorted(value for _, value in self._latencies)
        return percentile(values, 0.5), percentile(values, 0.99)

    def _gap_ms(self, now_ms: int) -> float | None:
        """The longest wait for a shard's results. It goes on while nobody can be asked about the shard."""
        waits = [now_ms - shard.moved_ms for shard in self._shards.values() if not shard.final]
        return round(max(0.0, *waits), 1) if waits else None


def percentile(ordered: list[float], share: float) -> float | None:
    """The smallest value that at least a ``share`` of the values does not exceed."""
    if not ordered:
        return None
    place = -(-len(ordered) * share // 1)
    return ordered[min(len(ordered) - 1, max(0, int(place) - 1))]


def columns(samples: Iterable[FlowSample]) -> dict[str, list[float | int | None]]:
    """Samples as lists of equal length, which is a third of the size of the same as objects."""
    found = list(samples)
    return {name: [getattr(sample, name) for sample in found] for name in ("number", "time_ms", *FIELDS)}


def _replicas_by_shard(snapshot: FlowSnapshot) -> dict[ShardId, list[ReplicaStatus]]:
    out: dict[ShardId, list[ReplicaStatus]] = {}
    for state in snapshot.states:
        for replica in state.replicas:
            if replica.reason is None:
                out.setdefault(ReplicaId.parse(replica.replica).shard, []).append(replica)
    return out
