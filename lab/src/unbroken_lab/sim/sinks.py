"""Simulated sinks: a ledger of what was delivered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from unbroken.errors import broken, require
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.content import Content

Expected = tuple[StreamId, int]
"""A unit of a sink as it comes without faults: the stream that brings it, and its mark."""


@dataclass
class Sink:
    """All sinks of a flow with one ledger: unit n of a stream is written once, after n - 1, and never changes.

    The streams of later generations of the code continue those of the first, and are taken under the names of these.

    Tentative units are taken if they reach beyond all that is there, until stable ones of their pulses replace them.
    """

    written: dict[StreamId, list[int]] = field(default_factory=dict)
    newest_ms: dict[StreamId, float] = field(default_factory=dict)
    tentative: dict[StreamId, dict[int, int]] = field(default_factory=dict)
    repeated: int = 0
    gaps_ms: list[float] = field(default_factory=list)

    def write(self, stream: StreamId, number: int, content: Content, now_ms: float) -> bool:
        """Deliver a stable unit; whether it was not there before."""
        require(
            not content.tentative,
            f"unit {number} of {stream} is stable and made of tentative input",
            stream,
            unit=number,
        )
        units = self.written.setdefault(stream, [])
        require(
            number <= len(units) + 1,
            f"unit {number} of {stream} reached its sink after {len(units)}",
            stream,
            unit=number,
        )
        if number <= len(units):
            self.repeated += 1
            require(
                units[number - 1] == content.mark,
                f"unit {number} of {stream} differs from the one in its sink",
                stream,
                unit=number,
            )
            return False
        units.append(content.mark)
        self._note(stream, now_ms)
        kept = self.tentative.get(stream)
        if kept:
            self.tentative[stream] = {pulse: mark for pulse, mark in kept.items() if pulse > number}
        return True

    def write_tentative(self, stream: StreamId, header: UnitHeader, content: Content) -> None:
        require(
            content.tentative and not header.stable,
            f"unit {header.number} of {stream} is not tentative",
            stream,
            unit=header.number,
        )
        kept = self.tentative.setdefault(stream, {})
        if header.pulse > max([self.through(stream), *kept]):
            kept[header.pulse] = content.mark

    def through(self, stream: StreamId) -> int:
        return len(self.written.get(stream, ()))

    def done_with(self, stream: StreamId, number: int) -> None:
        """A replica lets go of a unit and all before it."""
        if self.through(stream) < number:
            broken(f"unit {number} of {stream} is dropped undelivered", stream, unit=number)

    def check(self, reference: Mapping[StreamId, Sequence[Expected]], excused: Callable[[StreamId, int], bool]) -> None:
        """What was delivered is what it would be without faults."""
        del excused
        for stream, expected in reference.items():
            found = self.written.get(stream, [])
            require(len(found) == len(expected), f"{stream} got {len(found)} units, not {len(expected)}", stream)
            for number, (mark, (maker, wanted)) in enumerate(zip(found, expected, strict=True), start=1):
                require(
                    mark == wanted,
                    f"unit {number} of {maker} is not what it would be without faults",
                    maker,
                    unit=number,
                )

    def _note(self, stream: StreamId, now_ms: float) -> None:
        last = self.newest_ms.get(stream)
        if last is not None:
            self.gaps_ms.append(now_ms - last)
        self.newest_ms[stream] = now_ms


@dataclass
class OnceSink(Sink):
    """Is never given a unit twice. What replicas have let go of without it (``passed``) is lost, for a reason."""

    received: dict[StreamId, dict[int, int]] = field(default_factory=dict)
    passed: dict[StreamId, int] = field(default_factory=dict)

    def write(self, stream: StreamId, number: int, content: Content, now_ms: float) -> bool:
        units = self.received.setdefault(stream, {})
        require(number not in units, f"unit {number} of {stream} is handed to its sink twice", stream, unit=number)
        units[number] = content.mark
        self._note(stream, now_ms)
        return True

    def through(self, stream: StreamId) -> int:
        number, units = self.passed.get(stream, 0), self.received.get(stream, {})
        while number + 1 in units:
            number += 1
        return number

    def done_with(self, stream: StreamId, number: int) -> None:
        self.passed[stream] = max(number, self.passed.get(stream, 0))

    def check(self, reference: Mapping[StreamId, Sequence[Expected]], excused: Callable[[StreamId, int], bool]) -> None:
        for stream, expected in reference.items():
            units = self.received.get(stream, {})
            for number, (maker, wanted) in enumerate(expected, start=1):
                if number in units:
                    same = units[number] == wanted
                    require(
                        same, f"unit {number} of {maker} is not what it would be without faults", maker, unit=number
                    )
                else:
                    require(
                        excused(maker, number), f"unit {number} of {maker} is lost without a fault", maker, unit=number
                    )
