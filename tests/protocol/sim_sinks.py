"""Sinks that keep no ledger, for flows that deliver at least once or at most once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from protocol.model_parts import Sink
from protocol.sim_programs import Lane


@dataclass
class LooseSink(Sink):
    """Takes whatever it is given, as often as it is given it. What comes again is in order and never differs."""

    received: dict[Hashable, list[tuple[int, str, int]]] = field(default_factory=dict)

    def write(self, lane: Hashable, number: int, part: str, content: int) -> None:
        super().write(lane, number, part, content)
        self.received.setdefault(lane, []).append((number, part, content))


@dataclass
class OnceSink(Sink):
    """Is never given a unit twice. What replicas have let go of without it (``passed``) is lost."""

    received: dict[Hashable, dict[int, tuple[str, int]]] = field(default_factory=dict)
    passed: dict[Hashable, set[int]] = field(default_factory=dict)

    def write(self, lane: Hashable, number: int, part: str, content: int) -> None:
        units = self.received.setdefault(lane, {})
        assert number not in units, f"unit {number} of {part} is handed to {lane} of the sink twice"
        units[number] = (part, content)

    def through(self, lane: Hashable) -> int:
        done = self.received.get(lane, {}).keys() | self.passed.get(lane, set())
        number = 0
        while number + 1 in done:
            number += 1
        return number

    def done_with(self, lane: Hashable, number: int) -> None:
        self.passed.setdefault(lane, set()).update(range(1, number + 1))

    def lost(self, lane: Hashable, units: int) -> list[int]:
        return [number for number in range(1, units + 1) if number not in self.received.get(lane, {})]

    def check(self, reference: Mapping[Lane, list[tuple[str, int]]], excused: Callable[[Lane, str, int], bool]) -> None:
        """What was delivered is what it would be without faults, and what was not is excused by one."""
        for lane, expected in reference.items():
            for number, unit in self.received.get(lane, {}).items():
                assert unit == expected[number - 1], f"unit {number} of {lane} is not what it would be without faults"
            for number in self.lost(lane, len(expected)):
                assert excused(lane, expected[number - 1][0], number), (
                    f"unit {number} of {lane} is lost without a fault"
                )
