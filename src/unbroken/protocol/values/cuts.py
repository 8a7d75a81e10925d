"""How far a micro-batch takes its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unbroken.protocol.values.ids import StreamId


@dataclass(frozen=True)
class Reach:
    """How far a stream is taken: up to ``unit``, which completes ``pulse``, cut at ``cut_ms``; ``final`` if none will
    follow."""

    unit: int = 0
    pulse: int = 0
    cut_ms: int = 0
    final: bool = False

    def to_json(self) -> list[Any]:
        return [self.unit, self.pulse, self.cut_ms, int(self.final)]

    @classmethod
    def from_json(cls, value: list[Any]) -> Reach:
        return cls(int(value[0]), int(value[1]), int(value[2]), bool(value[3]))


BatchCut = Mapping[StreamId, Reach]
"""For one micro-batch: how far it takes each input stream."""
