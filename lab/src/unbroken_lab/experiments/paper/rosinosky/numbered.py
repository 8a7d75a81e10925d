"""Results whose rows have the numbers of the source's rows: how late each of them was, and whether each came once.

A generator's row ``n`` is due at a time that follows from the rate, so the latency of a row is told from its number:
from when it was made, as the papers have it, and not from when the sources cut the unit that it is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from unbroken.client import Result
from unbroken_lab.demo.measure import ArrivalSample
from unbroken_lab.experiments.observation.observed import Reader

PERCENTILES = (1, 25, 50, 75, 99)
"""Those of the box plots of the paper: the whiskers, the box and the line in it."""

Numbers = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ArrivedRows:
    """Rows of results of one source: their numbers, when they were cut, and when they arrived (ms since the epoch)."""

    n: Numbers
    cut_ms: Times
    arrived_ms: Times

    @classmethod
    def of(cls, pieces: Iterable[tuple[Numbers, Times, float]]) -> ArrivedRows:
        found = list(pieces)
        arrived = [np.full(len(n), at, dtype=np.float64) for n, _, at in found]
        empty = np.empty(0)
        return cls(
            np.concatenate([np.empty(0, np.int64), *(n for n, _, _ in found)]),
            np.concatenate([empty, *(cut for _, cut, _ in found)]),
            np.concatenate([empty, *arrived]),
        )

    def latencies(self, rate: float) -> Times:
        """How old each row was when it arrived, from the time at which it was due at its source."""
        if not len(self.n):
            return np.empty(0)
        ages_ms = (self.n + 1) * (1_000 / rate)
        # The sources take a row as soon as it is due: none was cut sooner, and the newest of a cut was due just then.
        began_ms = float(np.min(self.cut_ms - ages_ms))
        late: Times = self.arrived_ms - (began_ms + ages_ms)
        return late

    def missing(self, through: int) -> int:
        """Numbers below ``through`` that did not come."""
        return through - len(np.unique(self.n[self.n < through]))

    @property
    def repeated(self) -> int:
        """Rows that came again."""
        return len(self.n) - len(np.unique(self.n))


@dataclass
class NumberedReader(Reader):
    """Takes rows ``n`` and ``cut_ms``, by the ``source`` that they say they come from if they do."""

    pieces: dict[str, list[tuple[Numbers, Times, float]]] = field(default_factory=dict)
    newest: dict[str, dict[int, int]] = field(default_factory=dict)

    def take(self, result: Result) -> None:
        header, shard, table = result.header, result.header.stream.producer.index, result.table
        numbers, cuts = table["n"].to_numpy(), table["cut_ms"].to_numpy().astype(np.float64)
        cut_ms = int(cuts.max()) if len(cuts) else header.cut_ms
        sample = ArrivalSample(header.pulse, table.num_rows, cut_ms, result.arrived_ms)
        self.by_shard[shard].append(sample)
        if len(numbers):
            self.last_latency_ms = sample.latency_ms
        self.units[shard, header.number] += 1
        sources = table["source"].to_numpy() if "source" in table.column_names else np.full(len(numbers), "rows")
        for source in np.unique(sources):
            mine = sources == source
            self.pieces.setdefault(str(source), []).append((numbers[mine], cuts[mine], result.arrived_ms))
            newest = self.newest.setdefault(str(source), {})
            newest[shard] = max(newest.get(shard, 0), int(numbers[mine].max()))

    def rows(self, source: str = "rows") -> ArrivedRows:
        return ArrivedRows.of(list(self.pieces.get(source, ())))

    def due(self, source: str = "rows") -> int:
        """The number of rows of a source that must have come, where each shard of results has them in their order:
        those up to the newest of the shard that is furthest behind."""
        return min((number + 1 for number in self.newest.get(source, {}).values()), default=0)


def box(latencies: Times) -> dict[str, float | None]:
    """The percentiles of a box plot, and the largest latency; None where there were no rows."""
    names = [f"p{q}_ms" for q in PERCENTILES]
    if not len(latencies):
        return {**dict.fromkeys(names), "max_ms": None}
    values = np.percentile(latencies, PERCENTILES)
    found = {name: round(float(value), 1) for name, value in zip(names, values, strict=True)}
    return {**found, "max_ms": round(float(latencies.max()), 1)}


def within(rows: ArrivedRows, latencies: Times, begin_ms: float, end_ms: float) -> Times:
    """The latencies of the rows that arrived in a stretch of time."""
    chosen: Times = latencies[(rows.arrived_ms >= begin_ms) & (rows.arrived_ms < end_ms)]
    return chosen


def per_second(
    rows: ArrivedRows, latencies: Times, zero_ms: float, seconds: Sequence[int]
) -> list[dict[str, float | None]]:
    """For each second after ``zero_ms`` (negative: before it) the 99th percentile, the largest latency and the rows
    that arrived in it."""
    out: list[dict[str, float | None]] = []
    for second in seconds:
        found = within(rows, latencies, zero_ms + second * 1_000, zero_ms + (second + 1) * 1_000)
        tail = None if not len(found) else round(float(np.percentile(found, 99)), 1)
        most = None if not len(found) else round(float(found.max()), 1)
        out.append({"second": second, "p99_ms": tail, "max_ms": most, "rows": len(found)})
    return out
