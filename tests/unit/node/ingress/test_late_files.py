"""A file that one ingress node sees late, or never: its source waits there, and no node gives it up alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.ingress.fake_node import DEADLINE_S, REPLICA, FakeNode
from kit.ingress.scripted import Scripted, letters, numbers
from kit.support import wait_until
from unbroken import Client, Dataflow, Files
from unbroken.node.ingress import feeder
from unbroken.node.ingress.entries import WISH
from unbroken.node.ingress.lanes import ATTEMPTS
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.protocol.ingress.skip import SkipRequest
from unbroken.protocol.instructions import PersistEntry
from unbroken.protocol.values.notices.ingress import SourceUnreadable


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unbroken.node.ingress.job_line.RETRY_S", 0.02)
    monkeypatch.setattr("unbroken.node.ingress.news.WORTH_S", 0.1)
    monkeypatch.setattr(feeder, "READ_S", 0.1)


def begin(directory: Path, incoming: Path) -> FakeNode:
    """A node that sees its files under ``incoming``, as nodes see one directory at different times."""
    flow = Dataflow("shop", nodes=2)
    flow.source("files", Files(incoming, format="json", schema="n long", settle_ms=0))
    flow.source("good", Scripted(lambda start, end: None))
    flow.segment("files", name="one")(lambda a: a)
    flow.segment("good", name="two")(lambda a: a)
    flow.sink("out", "one", Client())
    flow.sink("out2", "two", Client())
    dirs = ReplicaDirs(directory)
    dirs.identity()
    dirs.begin([REPLICA])
    node = FakeNode(flow, dirs)
    node.open()
    return node


Pair = tuple[FakeNode, FakeNode, int]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """A node that has read a file, another one with the same log that does not see it, and the unit that has it."""
    seen, late = tmp_path / "seen", tmp_path / "late"
    seen.mkdir()
    late.mkdir()
    (seen / "a.jsonl").write_text('{"n":1}\n{"n":2}\n')
    first = begin(tmp_path / "1" / "node", seen)
    pulses = 0
    while not (rows := [unit for unit in range(1, pulses + 1) if numbers(first, "files", unit)]):
        pulses += 1
        first.pulse(pulses)
        wait_until(made(first, pulses), DEADLINE_S, lambda: str(first.story))
    assert first.service is not None
    first.service.close()
    other = begin(tmp_path / "2" / "node", late)
    assert other.service is not None
    for entry in IngressLogFile(first.dirs.ingress_log(REPLICA)).read():
        other.entries = entry.index
        other.service.persist(PersistEntry(entry))
        other.service.commit(entry)
    return first, other, rows[0]


def made(node: FakeNode, unit: int) -> Callable[[], bool]:
    return lambda: node.made("files") == unit


def report(node: FakeNode) -> Callable[[], bool]:
    def is_reported() -> bool:
        found = [told for told in node.story if isinstance(told, SourceUnreadable)]
        return any(told.source == "files" and "a.jsonl" in told.detail for told in found)

    return is_reported


def test_a_file_that_is_seen_late_gives_the_same_rows(pair: Pair, tmp_path: Path) -> None:
    first, other, unit = pair
    assert other.service is not None
    # It is reported, the other source continues, and however often it is tried, nothing is set aside.
    wait_until(report(other), DEADLINE_S, lambda: str(other.story))
    wait_until(lambda: other.made("good") == unit, DEADLINE_S, lambda: str(other.story))
    lane = other.feeder._lanes["files"]
    tried: list[int] = []
    real = lane.reader.read
    lane.reader.read = lambda start, end: (tried.append(1), real(start, end))[1]  # type: ignore[method-assign,func-returns-value]
    wait_until(lambda: len(tried) > 2 * ATTEMPTS, DEADLINE_S, lambda: str(tried))
    assert other.made("files") == unit - 1 and not letters(other)
    assert other.feeder.health.stuck()["files"].pulse == unit
    shutil.copy(tmp_path / "seen" / "a.jsonl", tmp_path / "late" / "a.jsonl")
    wait_until(lambda: other.made("files") == unit, DEADLINE_S, lambda: str(other.story))
    assert numbers(other, "files", unit) == numbers(first, "files", unit) == [1, 2] and not letters(other)
    other.service.close()


def test_a_file_that_is_gone_for_good_is_given_up_by_an_entry_of_the_log_only(pair: Pair) -> None:
    _, other, unit = pair
    assert other.service is not None
    wait_until(report(other), DEADLINE_S, lambda: str(other.story))
    other.enter(WISH.encode(SkipRequest("hold", "files", unit)))
    other.enter(WISH.encode(SkipRequest("skip", "files", unit, other.entries)))
    wait_until(lambda: other.made("files") == unit, DEADLINE_S, lambda: str(other.story))
    assert numbers(other, "files", unit) == []
    (letter,) = letters(other)
    assert "a.jsonl" in letter.read_text() and "an operator has skipped them" in letter.read_text()
    other.service.close()
