"""Reads the results of `unbroken bench consistency`: which came when, what they cover, and whether they are right."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from unbroken.client import Reconciled, Result, SubscriptionEvent, Undo
from unbroken_lab.experiments.consistency.figures import CONFIRMED, Failure, Grid, ResultArrival, between
from unbroken_lab.experiments.flows.interrupted import WINDOW_MS, ResultMistakes, Stream, compare, expected
from unbroken_lab.experiments.observation.observed import Reader
from unbroken_lab.experiments.recovery.strategy_figures import missing_units

RECENT = 64
"""Results among which the last stable ones are looked for; nothing tentative comes between those any more."""


@dataclass
class BoundedReader(Reader):
    """Takes stable and tentative results, and the marks between them.

    What counts is when a result was given to the reader: one that waited here for others was not there before. Rows of
    stable units are kept, to be compared with what they have to be when nothing is measured any more.
    """

    bucket_ms: int = 500
    window_ms: int = WINDOW_MS
    grid: Grid | None = None
    arrivals: list[ResultArrival] = field(default_factory=list)
    tables: dict[int, pa.Table] = field(default_factory=dict)
    folds: dict[int, int] = field(default_factory=dict)
    undone_ms: list[float] = field(default_factory=list)
    reconciled_ms: list[float] = field(default_factory=list)
    reach: int = 0
    stable: int = 0

    def note(self, event: SubscriptionEvent, now_ms: float) -> None:
        """Take a result or a mark that was given out at ``now_ms``."""
        match event:
            case Undo():
                self.undone_ms.append(now_ms)
            case Reconciled():
                self.reconciled_ms.append(now_ms)
            case Result():
                self._take(event, now_ms)

    @property
    def uncertain(self) -> bool:
        """Whether something tentative is not replaced."""
        return self.reach > self.stable

    def caught_up(self, since_ms: float, latency_ms: float) -> bool:
        """Whether everything is stable, and has come within ``latency_ms`` for a while since ``since_ms``."""
        grid = self.grid
        if grid is None or self.uncertain:
            return False
        recent = [one for one in self.arrivals[-RECENT:] if one.stable and one.at_ms >= since_ms][-CONFIRMED:]
        return len(recent) == CONFIRMED and all(one.sample(grid).latency_ms <= latency_ms for one in recent)

    def judge(self, streams: tuple[Stream, ...], failure: Failure) -> dict[str, int]:
        """Marks and mistakes from the quiet time before a failure to the end of the time that it was watched."""
        begin_ms, end_ms = failure.quiet_ms, failure.done_ms
        pulses = [one.pulse for one in between(self.arrivals, begin_ms, end_ms) if one.stable]
        return {
            "undos": sum(begin_ms <= at_ms < end_ms for at_ms in self.undone_ms),
            "reconciled": sum(begin_ms <= at_ms < end_ms for at_ms in self.reconciled_ms),
            "units": len(pulses),
            "missing_units": missing_units(pulses),
            **asdict(self._mistakes(streams, set(pulses))),
        }

    def _mistakes(self, streams: tuple[Stream, ...], pulses: Collection[int]) -> ResultMistakes:
        """What is wrong with the stable results of some pulses.

        Those of pulses that were processed together are in the last of them. The windows that were open when the first
        unit was made lack rows of which nobody knows how many.
        """
        grid, found = self.grid, ResultMistakes()
        if grid is None:
            return found
        before = min(self.tables) - 1
        whole_ms = -(-grid.end_ms(before + 1) // self.window_ms) * self.window_ms
        for pulse, table in sorted(self.tables.items()):
            passed_over, begin_ms = self.folds[pulse] > pulse, grid.end_ms(before)
            if pulse in pulses and begin_ms >= whole_ms:
                wanted = {} if passed_over else expected(streams, begin_ms, grid.end_ms(pulse), self.window_ms)
                found += compare(table, wanted)
            before = before if passed_over else pulse
        return found

    def _take(self, result: Result, now_ms: float) -> None:
        header, rows = result.header, result.table.num_rows
        since = header.pulse - 1 if header.stable else header.since
        arrival = ResultArrival(header.pulse, since, header.stable, rows, now_ms, result.correction)
        if self.grid is None and header.stable and rows:
            self.grid = Grid.of(header.pulse, int(pc.max(result.table["newest_ms"]).as_py()), self.bucket_ms)
        self.arrivals.append(arrival)
        if header.stable:
            self.stable = max(self.stable, header.pulse)
            self.tables[header.pulse] = result.table
            self.folds[header.pulse] = header.fold
        else:
            self.reach = max(self.reach, header.pulse)
        if self.grid is not None:
            sample = arrival.sample(self.grid)
            self.last_latency_ms = sample.latency_ms
            self.by_shard[header.stream.producer.index].append(sample)

    def _run(self) -> None:
        try:
            for event in self.subscription.events():
                self.note(event, time.time() * 1000)
        except Exception as error:
            self.failure = error
