"""What the entry of a pulse in the log says of its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unbroken.node.ingress.entries import PULSE
from unbroken.protocol.ingress.log import Entry


@dataclass(frozen=True)
class PulseEnd:
    """Where a pulse in the log ends, the generation of the code whose results count for it, and the layout by which
    they are delivered."""

    index: int
    positions: Mapping[str, Any]
    cut_ms: int
    generation: int
    layout: int = 0

    @classmethod
    def of(cls, entry: Entry) -> PulseEnd:
        record = PULSE.decode(entry.body)
        positions = {name: end for name, (_, end) in record.spans.items()}
        return cls(entry.index, positions, record.cut_ms, record.generation, record.layout)
