"""Spark's offsets of a replica's sources: the number of a cut and, where that does not tell it, how far it reaches.

An offset is JSON in Spark's own log of planned micro-batches, so a cut is known wherever a checkpoint is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unbroken.protocol.values.cuts import BatchCut, Reach
from unbroken.protocol.values.ids import StreamId

Offset = Mapping[str, Any]
"""``{"cut": b}``, and perhaps ``"units"``: for each stream what ``Reach.to_json`` makes."""


def offset_of(number: int, cut: BatchCut) -> dict[str, Any]:
    if not cut:
        return {"cut": number}
    return {"cut": number, "units": {str(stream): reach.to_json() for stream, reach in sorted(cut.items())}}


def cut_from(offset: Offset) -> dict[StreamId, Reach]:
    return {StreamId.parse(stream): Reach.from_json(reach) for stream, reach in offset.get("units", {}).items()}


def units_between(start: Offset, end: Offset, streams: tuple[str, ...]) -> list[tuple[str, int]]:
    """The units (stream, number) of the micro-batches after ``start`` up to ``end``, in order."""
    out: list[tuple[str, int]] = []
    for stream in streams:
        first, last = (_unit(offset, stream) for offset in (start, end))
        out += [(stream, number) for number in range(first + 1, last + 1)]
    return out


def _unit(offset: Offset, stream: str) -> int:
    """The last unit of a stream up to an offset."""
    reach = offset.get("units", {}).get(stream)
    return int(offset["cut"] if reach is None else reach[0])
