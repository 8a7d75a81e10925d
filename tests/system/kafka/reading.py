"""How tests read from a Kafka source: begin, poll until, read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit.support import wait_until
from unbroken.connectors.base import Position
from unbroken.connectors.kafka.source import KafkaReader
from unbroken.data.rows.parsed import Rows

MakeTopic = Callable[..., str]
Open = Callable[..., KafkaReader]

DEADLINE_S = 60.0


def poll_until(reader: KafkaReader, position: Position | None, done: Callable[[Position], object]) -> Position:
    """Poll from ``position`` without reading on, until the end of the pulse is as wanted."""
    found: list[Position] = []

    def polled() -> bool:
        found.append(reader.poll(position, 0).position)
        return found[-1] is not None and bool(done(found[-1]))

    wait_until(polled, DEADLINE_S, lambda: f"position is {found[-1]}")
    return found[-1]


def begin(reader: KafkaReader) -> Position:
    return poll_until(reader, None, lambda position: True)


def total(position: Position) -> int:
    return sum(offset for partitions in position.values() for offset in partitions.values())


def values(rows: Rows) -> list[Any]:
    return rows.table.column("value").to_pylist()


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % i for i in range(first, first + count)]
