"""A copy of a replica holds everything that its directory has for its outbox, not only the units."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

from unbroken.data.unit_store import UnitStore
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.state_pins import Pinned, StatePins
from unbroken.protocol.instructions import NoteOwed, PinState
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.rebuilt_state import Rebuilt

REPLICA = ReplicaId(ShardId("sums", 0), 1)
OUTPUT = StreamId(ShardId("sums", 0), ShardId("totals", 0))
DEADLINE_S = 30


def test_what_is_owed_travels_with_a_copied_state(tmp_path: Path) -> None:
    dirs = ReplicaDirs(tmp_path)
    dirs.identity()
    dirs.begin([REPLICA])
    assert dirs.store.note_owed(NoteOwed(REPLICA, OUTPUT, 7, Rebuilt()))
    answer: Future[Pinned | str] = Future()
    StatePins("a", dirs, 2, lambda _: pytest.fail("it has no log")).pin(PinState(1, REPLICA, 0, ()), answer.set_result)
    pinned = answer.result(DEADLINE_S)
    assert isinstance(pinned, Pinned), pinned
    (pinned.directory.parent / str(REPLICA)).symlink_to(pinned.directory)
    assert UnitStore(pinned.directory.parent).owed(REPLICA) == {OUTPUT: (7, Rebuilt())}
