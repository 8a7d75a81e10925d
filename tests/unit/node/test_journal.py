"""When a real node writes its journal by itself: also for a divergence that stops no replica of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.lone_node import node
from kit.support import wait_until
from unbroken.codecs.journal import JournalFile, JournalForm
from unbroken.node import journal as journals
from unbroken.node.journal import JOURNALS, read_journal
from unbroken.node.node import Node
from unbroken.observe.notices import text_of
from unbroken.protocol.events import Received
from unbroken.protocol.instructions import Report
from unbroken.protocol.messages import Ping
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.processes import PeerFlooding
from unbroken.protocol.values.notices.replicas import CopyDiffers, ReplicaDiverged

__all__ = ["node"]

SHARD = ShardId("seg", 0)
STREAM = StreamId(SHARD, ShardId("out", 0))
DIVERGED = ReplicaDiverged(ReplicaId(SHARD, 1), ReplicaId(SHARD, 0), STREAM, 7, 1, "a", 1, "b")
DIFFERS = CopyDiffers(STREAM, 8, "node-2")


def written(node: Node) -> list[JournalFile]:
    """The journals that are complete."""
    found: list[Path] = sorted((node.dirs.root / JOURNALS).glob("*.journal"))
    return [read_journal(path) for path in found]


def reported(node: Node, monkeypatch: pytest.MonkeyPatch, notice: Notice, number: int) -> None:
    """The loop handles an event that leads to this report and nothing else."""
    assert node.protocol is not None
    leading = Received("node-2", Ping(number))
    monkeypatch.setitem(
        node.protocol._handlers, Received, lambda event, _now_ms: [Report(notice)] if event == leading else []
    )
    node.post(leading)
    wait_until(lambda: notice in [each.notice for each in node.story], 10, "the event is handled")


@pytest.mark.parametrize("notice", [DIVERGED, DIFFERS], ids=lambda notice: type(notice).__name__)
def test_a_divergence_that_stops_no_replica_here_is_kept(
    node: Node, monkeypatch: pytest.MonkeyPatch, notice: Notice
) -> None:
    reported(node, monkeypatch, notice, 4_711)
    wait_until(lambda: written(node), 10, "the journal is written")
    (kept,) = written(node)
    assert kept.reason == text_of(notice)
    steps = [step for part in kept.segments for step in JournalForm().steps(part.steps)]
    assert Received("node-2", Ping(4_711)) in [step.event for step in steps], "the event that led to it is in it"


def test_other_reports_are_no_reason(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    reported(node, monkeypatch, PeerFlooding("node-1", "node-2"), 1)
    reported(node, monkeypatch, DIFFERS, 2)
    wait_until(lambda: written(node), 10, "the journal is written")
    assert [kept.reason for kept in written(node)] == [text_of(DIFFERS)]


def test_a_divergence_of_every_unit_writes_one_file(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(journals.Journal, "write_apart", lambda self, directory, reason: reasons.append(reason))
    for number in range(5):
        reported(node, monkeypatch, CopyDiffers(STREAM, number, "node-2"), number)
    assert reasons == [text_of(CopyDiffers(STREAM, 0, "node-2"))]
    monkeypatch.setattr(journals, "DIVERGENCE_PAUSE_S", 0.0)
    reported(node, monkeypatch, DIVERGED, 9)
    assert reasons[1:] == [text_of(DIVERGED)]
