"""Where a Kafka source stands, as pure functions: what poll decides from what the servers said.

A position is the vector of next offsets, ``{"orders": {"0": 12, "1": 7}}``. A partition is first written into a
position at the offset where its reading begins, and read from the pulse after that on. So what a pulse covers can be
seen from two positions alone, and nothing that changes with time (earliest, latest, what retention has left) is looked
up again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unbroken.connectors.base import Position
from unbroken.connectors.kafka.client import KafkaError

PartitionKey = tuple[str, int]
"""Topic and number."""

PartitionOffsets = dict[PartitionKey, int]

EARLIEST, LATEST = -2, -1
"""Stand for an offset, as in Spark's startingOffsets."""


def to_position(offsets: Mapping[PartitionKey, int]) -> Position:
    """The JSON form of offsets, the same for the same offsets."""
    position: dict[str, dict[str, int]] = {}
    for topic, number in sorted(offsets):
        position.setdefault(topic, {})[str(number)] = offsets[topic, number]
    return position


def to_offsets(position: Position | None) -> PartitionOffsets:
    """The offsets in a position; none if there is none."""
    return {
        (topic, int(number)): int(offset)
        for topic, partitions in (position or {}).items()
        for number, offset in partitions.items()
    }


def name_of(partition: PartitionKey) -> str:
    """How a partition is written in messages and origins: ``orders[3]``."""
    return f"{partition[0]}[{partition[1]}]"


def ranges(start: Position | None, end: Position) -> dict[PartitionKey, tuple[int, int]]:
    """The partitions that have something to read between two positions: first offset, and the one after the last."""
    before, after = to_offsets(start), to_offsets(end)
    both = sorted(before.keys() & after.keys())
    return {each: (before[each], after[each]) for each in both if before[each] < after[each]}


@dataclass(frozen=True)
class KafkaOffsets:
    """What the servers said at one moment.

    ``partitions`` are those that exist. ``ends`` has the offset after the last one that may be read, ``begins`` the
    first that is there, asked only of partitions that were not known. Partitions without a leader are in neither.
    """

    partitions: frozenset[PartitionKey]
    ends: Mapping[PartitionKey, int]
    begins: Mapping[PartitionKey, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Start:
    """Where to begin at the first start: ``given`` by partition, elsewhere ``otherwise``.

    EARLIEST and LATEST stand for offsets.

    Partitions that come later begin at their earliest record: what was written before they were noticed is meant to be
    read.
    """

    otherwise: int = EARLIEST
    given: Mapping[PartitionKey, int] = field(default_factory=dict)


def first_offsets(start: Start, snapshot: KafkaOffsets) -> PartitionOffsets | None:
    """The first position; None as long as it cannot be told.

    It has all partitions whose offset is given, whether they are there or not, so that nobody has to remember them.

    Raises
    ------
    KafkaError
        If records from a given offset on are not there any more.
    """
    found: PartitionOffsets = {each: offset for each, offset in start.given.items() if offset >= 0}
    for partition, offset in found.items():
        earliest = snapshot.begins.get(partition, 0)
        if offset < earliest:
            raise KafkaError(
                f"{name_of(partition)} is to be read from offset {offset} on, but begins at {earliest}: the records "
                "between were deleted by the topic's retention. Give a later offset, or start='earliest', to go "
                "without them."
            )
    for partition in snapshot.partitions - found.keys():
        if start.given.get(partition, start.otherwise) == EARLIEST:
            if partition in snapshot.begins:  # Else it is new later on, which means the same.
                found[partition] = snapshot.begins[partition]
        elif partition in snapshot.ends:
            found[partition] = snapshot.ends[partition]
        else:
            return None
    return found


def new_partitions(snapshot: KafkaOffsets, known: Mapping[PartitionKey, int]) -> PartitionOffsets:
    """Where partitions begin that are not ``known`` yet; those whose beginning cannot be told are left for later."""
    return {each: at for each, at in snapshot.begins.items() if each not in known}


def advance(
    known: Mapping[PartitionKey, int], ends: Mapping[PartitionKey, int], limit: int, turn: int
) -> PartitionOffsets:
    """The position after ``known`` with at most ``limit`` more offsets; ends before ``known`` change nothing."""
    partitions = sorted(known)
    waiting = [max(0, ends.get(each, 0) - known[each]) for each in partitions]
    taken = fair_split(waiting, limit, turn)
    return {each: known[each] + count for each, count in zip(partitions, taken, strict=True)}


def fair_split(waiting: Sequence[int], limit: int, turn: int = 0) -> list[int]:
    """How much to take of each queue, ``limit`` in all: equal shares, and what small queues leave over goes to others.

    If there is less than one for each, other queues get it every ``turn``, so that none starves.
    """
    if sum(waiting) <= limit:
        return list(waiting)
    taken = [0] * len(waiting)
    left = limit
    hungry = [i for i, count in enumerate(waiting) if count]
    while share := left // len(hungry):
        small = [i for i in hungry if waiting[i] <= share]
        if not small:
            for i in hungry:
                taken[i] = share
            left -= share * len(hungry)
            break
        for i in small:
            taken[i] = waiting[i]
            left -= waiting[i]
        hungry = [i for i in hungry if waiting[i] > share]
    for k in range(left):
        taken[hungry[(turn * left + k) % len(hungry)]] += 1
    return taken
