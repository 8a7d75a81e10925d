"""What consumers are owed that rely on producers: nothing goes by an acknowledgement that is not noted on disk."""

from __future__ import annotations

import pytest

from kit.topologies import chain
from unbroken.protocol.events import OwedNoted
from unbroken.protocol.instructions import DropOutbox, Instruction, NoteOwed
from unbroken.protocol.messages import Ack
from unbroken.protocol.output.outboxes import Outboxes, UsualTerms
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.protocol.values.recovery import StoredUnits
from unbroken.protocol.values.units import Digest, UnitHeader

TOPOLOGY = chain((1, 1))
LAYOUT = chained_placement(TOPOLOGY, {"a": "disk a", "b": "disk b"})
STREAM = StreamId(ShardId("s0", 0), ShardId("s1", 0))
OWNER = ReplicaId(STREAM.producer, 0)
UNITS = 9


class RelyingConsumers(UsualTerms):
    """Consumers that let units go one level later."""

    def levels(self, part: str) -> int:
        return 1


@pytest.fixture
def outboxes() -> Outboxes:
    found = Outboxes(TOPOLOGY, 0, 1_000, 1 << 30, terms=RelyingConsumers())
    found.open(STREAM, OWNER, LAYOUT, StoredUnits(0))
    for number in range(1, UNITS + 1):
        added, steps = found.produced(OWNER, UnitHeader(STREAM, number, number, 0, Digest(1, number)), LAYOUT)
        assert added and not steps
    return found


def acknowledged(outboxes: Outboxes, through: int, valid: int) -> list[Instruction]:
    """What follows when all consumers have acknowledged."""
    consumers = sorted(LAYOUT.counted(STREAM.consumer))
    assert consumers
    return [
        step
        for consumer in consumers
        for step in outboxes.ack(Ack(STREAM, str(consumer), through, 1, Rebuilt(valid)))
        if isinstance(step, NoteOwed | DropOutbox)
    ]


def test_units_are_dropped_when_it_is_noted_what_the_rest_is_good_for(outboxes: Outboxes) -> None:
    assert acknowledged(outboxes, 3, 4) == [NoteOwed(OWNER, STREAM, 3, Rebuilt(4))]
    assert outboxes.boxes[STREAM].base == 0
    assert outboxes.noted(OwedNoted(OWNER, STREAM, 3)) == [DropOutbox(OWNER, STREAM, (1, 2, 3))]
    outboxes.check()


def test_a_note_that_is_under_way_holds_up_only_what_goes_by_it(outboxes: Outboxes) -> None:
    acknowledged(outboxes, 3, 4)
    acknowledged(outboxes, 6, 7)
    assert outboxes.noted(OwedNoted(OWNER, STREAM, 3)) == [DropOutbox(OWNER, STREAM, (1, 2, 3))]
    assert outboxes.noted(OwedNoted(OWNER, STREAM, 3)) == []
    assert outboxes.noted(OwedNoted(OWNER, STREAM, 6)) == [DropOutbox(OWNER, STREAM, (4, 5, 6))]


def test_a_note_of_an_outbox_that_is_closed_means_nothing(outboxes: Outboxes) -> None:
    acknowledged(outboxes, 3, 4)
    assert outboxes.noted(OwedNoted(ReplicaId(STREAM.producer, 7), STREAM, 3)) == []
    outboxes.close(OWNER)
    assert outboxes.noted(OwedNoted(OWNER, STREAM, 3)) == []


def test_what_an_earlier_process_has_noted_is_noted() -> None:
    found = Outboxes(TOPOLOGY, 0, 1_000, 1 << 30, terms=RelyingConsumers())
    headers = tuple(UnitHeader(STREAM, number, number, 0, Digest(1, number)) for number in range(1, UNITS + 1))
    found.open(STREAM, OWNER, LAYOUT, StoredUnits(0, headers, 5, Rebuilt(6)))
    assert acknowledged(found, 5, 6) == [DropOutbox(OWNER, STREAM, (1, 2, 3, 4, 5))]
