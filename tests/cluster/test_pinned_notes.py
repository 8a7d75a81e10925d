"""A copy of a replica holds everything that its directory has for its outbox, not only the units."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unbroken.data.unit_store import UnitStore
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.transfers import Pinned, Transfers
from unbroken.protocol.instructions import NoteOwed, PinState
from unbroken.protocol.repair.rebuilt_state import Rebuilt
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId

REPLICA = ReplicaId(ShardId("sums", 0), 1)
OUTPUT = StreamId(ShardId("sums", 0), ShardId("totals", 0))
DEADLINE_S = 30


def test_what_is_owed_travels_with_a_copied_state(tmp_path: Path) -> None:
    dirs = ReplicaDirs(tmp_path)
    dirs.identity()
    dirs.store.note_owed(NoteOwed(REPLICA, OUTPUT, 7, Rebuilt()))
    node: Any = SimpleNamespace(
        name="a", dirs=dirs, store=dirs.store, ingress=None, settings=SimpleNamespace(durability="sync", transfers=2)
    )
    node.programs = SimpleNamespace(topology=SimpleNamespace(whole=False))
    transfers = Transfers(node)
    asked: Future[Pinned] = Future()
    transfers._asked[1] = asked
    transfers.pin(PinState(1, REPLICA, 0, ()))
    pinned = asked.result(DEADLINE_S)
    (pinned.directory.parent / str(REPLICA)).symlink_to(pinned.directory)
    assert UnitStore(pinned.directory.parent).owed(REPLICA) == {OUTPUT: (7, Rebuilt())}
