"""Journals of nodes in simulated flows with faults: repeated, they lead to the same instructions."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from unbroken.codecs.codec import Undecodable
from unbroken.codecs.journal import JOURNAL, JournalForm
from unbroken.data.checksum import Damaged, sealed
from unbroken.errors import InvariantViolation
from unbroken.node.journal import Journal, read_journal
from unbroken.protocol.combinations import NAMES
from unbroken.protocol.events import Event, PushArrived, SinkRefused, Started, Tick
from unbroken.protocol.instructions import Instruction, Report
from unbroken.protocol.journal import Beginning, Replayed, replay
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.notices.processes import PeerFlooding
from unbroken.security import secret
from unbroken_lab.sim import machine
from unbroken_lab.sim.campaign import Options, Run
from unbroken_lab.sim.flows import join
from unbroken_lab.sim.policy_flows import flow_with
from unbroken_lab.sim.steps.faults import FaultyCluster
from unbroken_lab.sim.steps.schedules import take_any

STEPS = 1_500


class Journaled(machine.SimulatedLoop):
    """Keeps a journal, as the loop of a node does."""

    made: list[Journaled] = []  # noqa: RUF012
    segment_bytes = 16 << 20

    def __init__(self, process: machine.NodeProcess, protocol: NodeProtocol) -> None:
        super().__init__(process, protocol)
        self.beginning = begun[-1]
        self.journal = self._journal = Journal(self.beginning, protocol, self.segment_bytes)
        Journaled.made.append(self)


begun: list[Beginning] = []


def made(*arguments: Any) -> NodeProtocol:
    """A protocol object, and what it was made from."""
    begun.append(Beginning(*arguments))
    return NodeProtocol(*arguments)


def keep_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all simulated nodes keep one."""
    monkeypatch.setattr(machine, "NodeProtocol", made)
    monkeypatch.setattr(machine, "SimulatedLoop", Journaled)
    monkeypatch.setattr(Journaled, "made", [])


def simulated(monkeypatch: pytest.MonkeyPatch, seed: int = 7) -> list[Journaled]:
    keep_journals(monkeypatch)
    cluster, rng = FaultyCluster(join(2), nodes=3, pulses=1_000, standbys=1), random.Random(seed)
    for step in range(STEPS):
        if step == STEPS // 2:
            cluster.wipe("node-3")
            cluster.boot("node-3")
        take_any(cluster, rng)
    return Journaled.made


def repeated(path: Path) -> Sequence[Replayed]:
    form = JournalForm()
    return list(replay(form.parts(read_journal(path)), form.mark))


def test_a_flow_with_a_lost_node_is_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = simulated(monkeypatch)
    assert len(found) >= 4, "one was started twice"
    for journaled in found:
        path = journaled.journal.write(tmp_path, "asked for")
        assert path is not None
        done = repeated(path)
        assert done and all(each.same for each in done)
        path.unlink()
    assert sum(len(each.instructions) for each in done) > 100


def test_another_decision_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = simulated(monkeypatch)[0].journal.write(tmp_path, "asked for")
    assert path is not None
    honest = NodeProtocol.handle

    def other(self: NodeProtocol, event: Event, now_ms: float) -> list[Instruction]:
        steps = honest(self, event, now_ms)
        return [*steps, Report(PeerFlooding("a", "b"))] if isinstance(event, Started) else steps

    monkeypatch.setattr(NodeProtocol, "handle", other)
    assert [each.same for each in repeated(path)][:2] == [False, True]


def keep_small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journaled, "segment_bytes", 1_500)
    monkeypatch.setattr("unbroken.codecs.journal.PIECE_BYTES", 1_000)
    keep_journals(monkeypatch)


def long_journals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Files of nodes whose segments are small, so that most have dropped their oldest."""
    keep_small_segments(monkeypatch)
    paths: list[Path] = []
    for number, journaled in enumerate(simulated(monkeypatch)):
        path = tmp_path / f"{number}.journal"
        path.write_bytes(journaled.journal.bytes("asked for"))
        paths.append(path)
    return paths


def test_a_journal_without_its_oldest_steps_is_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From the checkpoint before what is left; and each segment by itself, from its own."""
    dropped = 0
    for path in long_journals(monkeypatch, tmp_path):
        form, kept = JournalForm(), read_journal(path)
        assert len(kept.segments) <= 2 and sum(len(each) for part in kept.segments for each in part.steps) < 6_000
        first, *later = kept.segments
        dropped += first.first > 1
        assert bool(first.checkpoint) == (first.first > 1) and all(part.checkpoint for part in later)
        done = repeated(path)
        assert done and all(each.repeated and each.same for each in done)
        assert [each.number for each in done] == list(range(first.first, first.first + len(done)))
        for part in form.parts(kept):
            assert all(each.repeated and each.same for each in replay([part], form.mark))
    assert dropped >= 2


@pytest.mark.parametrize("policy", NAMES)
def test_the_state_of_every_policy_is_in_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: str
) -> None:
    keep_small_segments(monkeypatch)
    outcome = Run(1, Options(length_s=4.0, mean_s=1.0), given=flow_with({policy})).outcome()
    assert outcome.ok, outcome.failure
    parts = 0
    for number, journaled in enumerate(Journaled.made):
        path = tmp_path / f"{number}.journal"
        path.write_bytes(journaled.journal.bytes("asked for"))
        form, kept = JournalForm(), read_journal(path)
        for part in form.parts(kept):
            assert part.restored is not None
            assert [each.number for each in replay([part], form.mark) if not each.repeated or each.same is False] == []
            parts += part.first > 1
    assert parts > 3


def test_it_is_repeated_in_a_process_that_orders_sets_differently(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = long_journals(monkeypatch, tmp_path)[0]
    command = [sys.executable, "-m", "unbroken", "journal", "replay", str(path), "--json"]
    told = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "1"})
    assert told.returncode == 0, told.stdout[-2000:] + told.stderr
    last = json.loads(told.stdout.splitlines()[-1])
    assert last["different"] == last["shown_only"] == 0 and last["missing"] > 0 and last["steps"] > 0


def test_another_order_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = simulated(monkeypatch)[0].journal.write(tmp_path, "asked for")
    assert path is not None
    honest = NodeProtocol.handle
    monkeypatch.setattr(NodeProtocol, "handle", lambda *arguments: honest(*arguments)[::-1])
    done = repeated(path)
    assert all(each.same for each in done if len(each.instructions) < 2)
    assert not any(
        each.same for each in done if len(each.instructions) == 2 and len(set(map(str, each.instructions))) == 2
    )


def test_a_state_that_is_too_large_leaves_steps_to_be_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("unbroken.codecs.checkpoint.MOST_OBJECTS", 10)
    for path in long_journals(monkeypatch, tmp_path):
        kept = read_journal(path)
        assert not any(part.checkpoint for part in kept.segments)
        assert {each.repeated for each in repeated(path)} == {kept.segments[0].first == 1}


def beginning(monkeypatch: pytest.MonkeyPatch) -> Beginning:
    return simulated(monkeypatch)[0].beginning


def begun_journal(monkeypatch: pytest.MonkeyPatch) -> Journal:
    begun = beginning(monkeypatch)
    return Journal(begun, begun.protocol())


def test_a_failure_is_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun = beginning(monkeypatch)
    protocol = begun.protocol()
    journal = Journal(begun, protocol)
    journal.handled(1.0, Started(), protocol.handle(Started(), 1.0))
    error = InvariantViolation("a thing is wrong")
    journal.failed(2.0, Tick(), error)
    path = journal.write(tmp_path, "it failed")
    assert path is not None

    def failing(self: NodeProtocol, event: Event, now_ms: float) -> list[Instruction]:
        if isinstance(event, Tick):
            raise error
        return protocol_handle(self, event, now_ms)

    protocol_handle = NodeProtocol.handle
    monkeypatch.setattr(NodeProtocol, "handle", failing)
    assert [each.same for each in repeated(path)] == [True, True]
    monkeypatch.setattr(NodeProtocol, "handle", protocol_handle)
    assert [each.same for each in repeated(path)] == [True, False], "it is handled now"


def test_rows_and_secrets_are_not_in_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun = beginning(monkeypatch)
    journal = Journal(begun, begun.protocol())
    monkeypatch.setattr(secret, "_known", {"open-sesame"})
    stream = StreamId.parse("join.0>sink.0")
    for event in (PushArrived(b'{"card": "4711"}'), SinkRefused(stream, 1, "password open-sesame is wrong")):
        journal.handled(1.0, event, [])
    kept = JOURNAL.decode(journal.bytes("open-sesame").rpartition(b"\ncrc32c ")[0])
    pushed, refused = JournalForm().steps(kept.segments[0].steps)
    assert isinstance(pushed.event, PushArrived) and len(pushed.event.body) == 16 and b"4711" not in pushed.event.body
    assert refused.event == SinkRefused(stream, 1, "password *** is wrong") and refused.mark == ""
    assert kept.reason == "***"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-40], "checksum"),
        (lambda data: data.replace(b"journal/1", b"journal/2", 1), "checksum"),
        (lambda data: sealed(b"journal/2 x"), "version 2"),
        (lambda data: sealed(b"layout/1 {}"), "no journal"),
        (lambda data: b"", "checksum"),
    ],
)
def test_a_file_that_is_no_journal_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: Any, reason: str
) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(change(begun_journal(monkeypatch).bytes("x")))
    with pytest.raises(Damaged, match=f"{reason}.*Get another one"):
        read_journal(path)


def test_parts_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    form = JournalForm()
    for data in (b"", b"x", b"\x00" * 50):
        with pytest.raises(Undecodable):
            list(form.steps([data]))
        with pytest.raises(Undecodable):
            form.beginning(data)


def test_old_files_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    journal = begun_journal(monkeypatch)
    for number in range(8):
        monkeypatch.setattr("time.strftime", lambda _, number=number: f"t{number}")
        journal.write(tmp_path, "x")
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"node-1-t{number}.journal" for number in range(3, 8)]
