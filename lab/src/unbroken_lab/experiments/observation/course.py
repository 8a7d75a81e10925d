"""What a flow's nodes use second by second, while one of them is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from unbroken_lab.experiments.observation.observed import Observed
from unbroken_lab.experiments.observation.usage import cpu_seconds

READ_S = 1.0
JOIN_S = 30.0


@dataclass
class Counter:
    """Something that only grows, as it was read at some times, by who has it; one that began anew is another one."""

    readings: dict[Hashable, list[tuple[float, float]]] = field(default_factory=dict)

    def note(self, who: Hashable, at_ms: float, value: float) -> None:
        self.readings.setdefault(who, []).append((at_ms, value))

    def per_second(self, zero_ms: float, seconds: Sequence[int]) -> list[float]:
        """By how much all together grew in each second after ``zero_ms``.

        Between two readings it is taken to grow evenly. What one that was lost used after its last reading is not
        known, and left out.
        """
        edges = np.array([*seconds, seconds[-1] + 1]) * 1_000.0 + zero_ms
        total = np.zeros(len(seconds))
        for readings in self.readings.values():
            times, values = zip(*readings, strict=True)
            total += np.diff(np.interp(edges, times, np.maximum.accumulate(np.array(values, dtype=np.float64))))
        return [round(float(value), 3) for value in total]


@dataclass
class Course:
    """Reads processor time and bytes of all nodes about once a second, on a thread of its own, in a ``with``."""

    run: Observed
    cpu_s: Counter = field(default_factory=Counter)
    sent: Counter = field(default_factory=Counter)
    failure: Exception | None = None

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="course", daemon=True)

    def __enter__(self) -> Course:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(JOIN_S)

    def _work(self) -> None:
        try:
            while not self._ended.is_set():
                began = time.monotonic()
                self._read_cpu(cpu_seconds)
                self._read_sent()
                self._ended.wait(max(0.0, READ_S - (time.monotonic() - began)))
        except Exception as error:
            self.failure = error

    def _read_cpu(self, used: Callable[[list[int]], float]) -> None:
        for name, process in list(self.run.cluster.nodes.items()):
            if process.alive():
                self.cpu_s.note((name, process.pid), time.time() * 1_000, used([process.pid]))

    def _read_sent(self) -> None:
        states = self.run.cluster.status()
        at_ms = time.time() * 1_000
        for state in states:
            if state.placed:
                self.sent.note((state.node, state.pid), at_ms, float(sum(state.traffic.values())))
