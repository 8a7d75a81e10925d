"""A flow with numbered rows that runs for a while without a fault: the latency of its rows, and what it needs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.experiment import Size, Value
from unbroken_lab.experiments.observation.figures import pulse, spread
from unbroken_lab.experiments.observation.observed import START_S, Observed, Reader, observed
from unbroken_lab.experiments.observation.usage import cpu_seconds, reading, spent
from unbroken_lab.experiments.paper.rosinosky.numbered import NumberedReader, box, within

SETTLE_S = 20.0
"""How much longer than planned the warm-up may take until results come within a few pulses."""

SETTLED_PULSES = 4
SLACK_S = 180.0
"""How much longer than planned rows go on coming, on a machine that is slow."""

FEWEST = 3
"""Results that are waited for in any case, on a machine that is slow."""

LONGEST_S = 60.0
LOOK_S = 0.1


@dataclass(frozen=True)
class MeasuredSpan:
    """How long a flow warms up after its first result, and how long it is measured then."""

    warm_s: float
    seconds: float

    @classmethod
    def of(cls, size: Size) -> MeasuredSpan:
        return cls(size.of(12.0, 2.0), size.of(15.0, 4.0))

    @property
    def stream_s(self) -> int:
        """The length of a stream that does not end before."""
        return int(START_S + self.warm_s + SETTLE_S + self.seconds + SLACK_S)


@dataclass(frozen=True)
class Measured:
    """What was seen in the measured time, which began and ended at these ms since the epoch."""

    reader: NumberedReader
    since_ms: float
    until_ms: float
    bytes: Mapping[str, int]
    cpu_cores: float

    @property
    def seconds(self) -> float:
        return (self.until_ms - self.since_ms) / 1_000

    def latency(self, source: str, rate: float) -> dict[str, Value]:
        """The spread of the latencies of a source's rows."""
        rows = self.reader.rows(source)
        return {**box(within(rows, rows.latencies(rate), self.since_ms, self.until_ms))}

    def costs(self) -> dict[str, Value]:
        """What the flow needed, and how far it came."""
        samples = [one for one in self.reader.samples if self.since_ms <= one.arrived_ms < self.until_ms]
        return {
            "newest_p50_ms": spread([one for one in samples if one.rows])["p50"],
            "pulse_ms": pulse(samples),
            "units": len(samples),
            "rows": sum(sample.rows for sample in samples),
            "cpu_cores": self.cpu_cores,
            "bytes_per_s": round(self.bytes["total"] / self.seconds),
        }

    def mistakes(self, *sources: str) -> dict[str, Value]:
        """Rows that are missing, and rows that came more than once, since the beginning of the flow."""
        found = [(self.reader.rows(source), self.reader.due(source)) for source in sources]
        return {
            "due": sum(due for _, due in found),
            "lost": sum(rows.missing(due) for rows, due in found),
            "duplicated": sum(rows.repeated for rows, _ in found),
        }


def measure_quiet(flow_file: str, load: Mapping[str, Any], span: MeasuredSpan, pulse_ms: float) -> Measured:
    """Run a flow of this package, let it warm up, and measure it."""
    with observed(flow_file, {**load, "SECONDS": span.stream_s, "PULSE_MS": pulse_ms}, NumberedReader) as run:
        reader = run.reader
        assert isinstance(reader, NumberedReader)
        run.settle(span.warm_s, SETTLED_PULSES * pulse_ms, span.warm_s + SETTLE_S)
        pids = [process.pid for process in run.cluster.nodes.values()]
        first, since_ms, began_cpu = reading(run), time.time() * 1_000, cpu_seconds(pids)
        stay(run, span.seconds)
        used, until_ms, last = cpu_seconds(pids) - began_cpu, time.time() * 1_000, reading(run)
    return Measured(reader, since_ms, until_ms, spent(first, last), round(used / ((until_ms - since_ms) / 1_000), 3))


def stay(run: Observed, seconds: float) -> None:
    """Let a flow run for a while, and then until a few results have come meanwhile, but not for ever."""
    since_ms, began = time.time() * 1_000, time.monotonic()
    while (passed := time.monotonic() - began) < seconds + LONGEST_S:
        if passed >= seconds and results_since(run.reader, since_ms) >= FEWEST:
            return
        if run.reader.ended():
            raise UnbrokenError("the flow ended before it was measured; run it alone on the machine")
        time.sleep(LOOK_S)


def results_since(reader: Reader, since_ms: float) -> int:
    """Units with rows that came since a time."""
    return sum(sample.rows > 0 and sample.arrived_ms >= since_ms for sample in reader.samples)
