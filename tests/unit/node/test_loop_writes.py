"""The loop of a node gives files names; their content is written by other threads, and reported by events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.lone_node import node as node
from kit.loop_guard import WriteGuard, watched_writes
from kit.support import wait_until
from unbroken.node.node import Node
from unbroken.node.unit_files import UnitFiles
from unbroken.node.workers import ThreadWorker
from unbroken.protocol.events import Event, OwedNoted, ReplicaStopped
from unbroken.protocol.instructions import Instruction, NoteOwed
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.policies.upstream_backup.instructions import BeginReplica
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.rebuilt_state import Rebuilt

SEG = ReplicaId(ShardId("seg", 0), 0)
LATER = ReplicaId(ShardId("seg", 0), 5)
INPUT = StreamId.parse("g.0>seg.0")
OUTPUT = StreamId.parse("seg.0>out.0")
NOTE = NoteOwed(SEG, OUTPUT, 7, Rebuilt(8))


@pytest.fixture
def guard() -> Iterator[WriteGuard]:
    with watched_writes() as found:
        yield found


def carry_out(node: Node, *steps: Instruction) -> None:
    """Have the loop carry out what no event of this flow leads to."""

    def on_the_loop(_: NodeProtocol) -> bool:
        assert node._loop is not None
        node._loop.carry_out(steps, None)
        return True

    assert node.inquire(on_the_loop)


def test_no_note_is_written_by_the_loop(guard: WriteGuard, node: Node) -> None:
    carry_out(node, NOTE, BeginReplica(LATER, 3, 5, (NoteOwed(LATER, OUTPUT, 5, Rebuilt(6)),)))
    wait_until(lambda: node.store.owed(SEG) == {OUTPUT: (7, Rebuilt(8))}, 30, "what is owed is noted")
    wait_until(lambda: LATER in node.dirs.present(), 30, "the other replica has begun")
    assert node.dirs.base(LATER) == 3 and node.store.owed(LATER) == {OUTPUT: (5, Rebuilt(6))}
    written = {path: where for path, where in guard.writes.items() if "/owed/" in path or path.endswith("/base")}
    assert not written, "\n".join(written.values())


def test_the_guard_sees_what_the_loop_writes(guard: WriteGuard, node: Node, tmp_path: Path) -> None:
    path = tmp_path / "written"
    assert node._loop is not None
    node._loop.effects.note_owed = lambda _: path.write_text("by the loop")  # type: ignore[method-assign, assignment, return-value]
    carry_out(node, NOTE)
    assert str(path) in guard.writes and "loop" in guard.writes[str(path)]


class Notes:
    """Files of units whose notes are written by a worker of their own."""

    def __init__(self, node: Node) -> None:
        self.events: list[Event] = []
        self.failures: list[OSError] = []
        self.worker = ThreadWorker("notes of a test")
        self.files = UnitFiles(node.store, node.staging, self.worker, self.events.append, self.failures.append)

    def __enter__(self) -> Notes:
        self.worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.close(30)


def test_a_note_is_reported_when_a_later_process_would_find_it(node: Node) -> None:
    with Notes(node) as notes:
        for number in range(1, 20):
            notes.files.note_owed(NoteOwed(SEG, OUTPUT, number, Rebuilt(number)))
    assert notes.events == [OwedNoted(SEG, OUTPUT, number) for number in range(1, 20)]
    assert node.store.owed(SEG) == {OUTPUT: (19, Rebuilt(19))}


def test_a_note_on_a_replica_that_is_gone_brings_nothing_back(node: Node) -> None:
    with Notes(node) as notes:
        notes.files.note_owed(NoteOwed(LATER, OUTPUT, 7, Rebuilt()))
    assert not notes.events and not notes.failures
    assert LATER not in node.dirs.present()


def failing(_: NoteOwed) -> bool:
    raise OSError(28, "no space left on device")


def test_a_replica_whose_notes_cannot_be_kept_stops(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.store, "note_owed", failing)
    ingress = ReplicaId(INGRESS, 0)
    with Notes(node) as notes:
        notes.files.note_owed(NOTE)
        notes.files.note_owed(NoteOwed(ingress, INPUT, 7, Rebuilt()))
    [stopped] = notes.events
    assert isinstance(stopped, ReplicaStopped) and stopped.replica == SEG and "no space left" in stopped.reason
    assert len(notes.failures) == 1, "the ingress cannot continue without its own"
