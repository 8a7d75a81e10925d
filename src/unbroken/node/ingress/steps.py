"""What the ingress log says of one source: how far it is read with a pulse, and what is known of it after one."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.connectors.base import Position


@dataclass(frozen=True)
class Step:
    """What an entry of the ingress log says of one source.

    It was read from ``start`` to ``end`` at ``cut_ms``. A source that was not ``reachable`` may have more rows that
    nobody knows of.
    """

    pulse: int
    cut_ms: int
    start: Position | None
    end: Position
    reachable: bool = True
    final: bool = False

    @property
    def empty(self) -> bool:
        return bool(self.start == self.end)


@dataclass(frozen=True)
class LaneBase:
    """What the base of an ingress log keeps of a source whose units do not end with pulses.

    ``unit`` is the last one that may have a row from before the base. The ``state`` belongs to the policy whose lanes
    write and read it.
    """

    unit: int
    state: str


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How many rows were taken from a source, and how many of them were bad or late."""

    rows: int = 0
    bad_rows: int = 0
    late_rows: int = 0

    def base(self) -> LaneBase | None:
        """What a base has to keep of it, besides what is true of all sources."""
        return None
