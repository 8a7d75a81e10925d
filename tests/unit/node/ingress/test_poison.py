"""Rows that make the code fail: they are set aside after some attempts, the same on every node; nothing else waits."""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kit.ingress.fake_node import DEADLINE_S, REPLICA, FakeNode
from kit.ingress.scripted import ScriptedReader, begin, fails_on, letters, numbers
from kit.support import wait_until
from unbroken.connectors.base import Cut, Position
from unbroken.connectors.push.source import PushBatch
from unbroken.node.ingress import feeder
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.protocol.instructions import PersistEntry, PollSources
from unbroken.protocol.values.notices.ingress import EntrySetAside, RowsSetAside
from unbroken.protocol.values.units import UnitHeader


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unbroken.node.ingress.job_line.RETRY_S", 0.02)
    monkeypatch.setattr("unbroken.node.ingress.news.WORTH_S", 0.1)
    monkeypatch.setattr(feeder, "READ_S", 0.1)
    monkeypatch.setattr(feeder, "CUT_S", 0.1)


class PanicException(BaseException):
    """As pyo3 raises it for a panic in Rust."""


POISONS: dict[str, Callable[[], BaseException]] = {
    "decimal": lambda: decimal.InvalidOperation([decimal.ConversionSyntax]),
    "depth": lambda: RecursionError("maximum recursion depth exceeded"),
    "overflow": lambda: OverflowError("date value out of range"),
    "arrow": lambda: pa.ArrowInvalid("not what it says"),
    "key": lambda: KeyError("user"),
    "exit": lambda: SystemExit(1),
    "panic": lambda: PanicException("index out of bounds"),
    "interrupt": KeyboardInterrupt,
    "generator": GeneratorExit,
}


@pytest.mark.parametrize("kind", POISONS)
def test_poison_is_set_aside_and_the_flow_continues(tmp_path: Path, kind: str) -> None:
    node = begin(tmp_path / "node", fails_on(2, POISONS[kind]))
    for pulse in range(1, 5):
        node.pulse(pulse)
    wait_until(lambda: node.made("good") == 4, DEADLINE_S, lambda: str(node.story))
    # While its rows are tried, a source is not cut further: the pulses have no rows of it, and none is lost.
    wait_until(lambda: node.made("bad") == 4, DEADLINE_S, lambda: str(node.story))
    assert numbers(node, "bad", 1) == [0] and numbers(node, "bad", 2) == []
    assert any(isinstance(told, RowsSetAside) and told.source == "bad" for told in node.story), node.story
    (letter,) = [json.loads(line) for path in letters(node) for line in path.read_text().splitlines()]
    assert (letter["source"], letter["pulse"]) == ("bad", 2) and "1 to 2" in letter["origin"]
    assert type(POISONS[kind]()).__name__ in letter["reason"]
    assert node.feeder.bad_rows == 1 and node.service is not None
    node.service.close()


def test_two_nodes_and_a_restart_make_the_same_units(tmp_path: Path) -> None:
    first = begin(tmp_path / "1" / "node", fails_on(2, POISONS["decimal"]))
    for pulse in range(1, 5):
        first.pulse(pulse)
    wait_until(lambda: first.made("bad") == 4, DEADLINE_S, lambda: str(first.story))
    assert first.service is not None
    first.service.close()
    entries = IngressLogFile(first.dirs.ingress_log(REPLICA)).read()
    for place in ("1", "2"):  # the node itself after a restart, and another one
        node = begin(tmp_path / place / "node", fails_on(2, POISONS["decimal"]))
        assert node.service is not None
        for entry in entries:
            if place == "2":
                node.service.persist(PersistEntry(entry))
            node.service.commit(entry)
        wait_until(lambda node=node: node.made("bad") == 4, DEADLINE_S, lambda node=node: str(node.story))  # type: ignore[misc]
        for source in ("bad", "good"):
            for unit in range(1, 5):
                assert numbers(node, source, unit) == numbers(first, source, unit)
        node.service.close()


@pytest.mark.parametrize("kind", ["exit", "panic", "key"])
def test_a_source_that_cannot_be_asked_is_asked_again(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [3]
    real = ScriptedReader.poll

    def poll(self: ScriptedReader, position: Position | None, now_ms: int) -> Cut:
        if left[0]:
            left[0] -= 1
            raise POISONS[kind]()
        return real(self, position, now_ms)

    monkeypatch.setattr(ScriptedReader, "poll", poll)
    node = begin(tmp_path / "node", lambda start, end: None)
    for pulse in range(1, 7):
        node.pulse(pulse)
    wait_until(lambda: node.made("bad") == node.made("good") == 6, DEADLINE_S, lambda: str(node.story))
    assert any(numbers(node, "bad", unit) for unit in range(1, 7)) and not letters(node)
    assert node.service is not None
    node.service.close()


def test_a_passing_failure_is_never_set_aside(tmp_path: Path) -> None:
    left = [10]

    def read(start: int, end: int) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError("the disk is away")

    node = begin(tmp_path / "node", read)
    node.pulse(1)
    node.pulse(2)
    wait_until(lambda: node.made("bad") == 2, DEADLINE_S, lambda: str(node.story))
    assert numbers(node, "bad", 1) == [0] and not letters(node)
    assert node.service is not None
    node.service.close()


def test_rows_that_cannot_be_made_into_units_are_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure comes after the first of several files of the unit is written; none of them counts then."""
    from unbroken.node.ingress import unit_writer as module

    real = module.unit_parts

    def parts(header: UnitHeader, table: pa.Table) -> Any:
        if table.num_rows and table.column("n")[0].as_py() == 1:
            raise ValueError("no unit of this")
        return real(header, table)

    monkeypatch.setattr(module, "unit_parts", parts)
    node = begin(tmp_path / "node", lambda start, end: None)
    for pulse in range(1, 4):
        node.pulse(pulse)
    wait_until(lambda: node.made("bad") == node.made("good") == 3, DEADLINE_S, lambda: str(node.story))
    assert numbers(node, "bad", 2) == numbers(node, "good", 2) == [] and numbers(node, "bad", 1) == [0]
    assert len(letters(node)) == 2
    assert node.service is not None
    node.service.close()


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[FakeNode]:
    node = begin(tmp_path / "node", lambda start, end: None)
    yield node
    assert node.service is not None
    node.service.close()


def test_an_entry_that_is_no_batch_is_set_aside(odd: FakeNode) -> None:
    odd.enter(b"\0\0nothing")
    odd.enter(PushBatch("pushed", "p", 1, b'{"n":1}').to_bytes())
    odd.pulse(1)
    wait_until(lambda: odd.made("pushed") == 1, DEADLINE_S, lambda: str(odd.story))
    assert numbers(odd, "pushed", 1) == [1]
    assert any(isinstance(told, EntrySetAside) and told.entry == 1 for told in odd.story), odd.story
    assert odd.service is not None and odd.service.set_aside == 1


def test_the_rows_that_were_found_to_stop_a_flow(odd: FakeNode) -> None:
    poison = b'{"n":1e1000000000000000000000}\n' + b"\n".join(
        b'{"n":' + b"[" * depth + b"]" * depth + b"}" for depth in range(900, 1000)
    )
    odd.enter(PushBatch("pushed", "p", 1, b'{"n":1}').to_bytes())
    odd.pulse(1)
    odd.enter(PushBatch("pushed", "p", 2, poison).to_bytes())
    odd.pulse(2)
    odd.enter(PushBatch("pushed", "p", 3, b'{"n":3}').to_bytes())
    odd.pulse(3)
    wait_until(lambda: odd.made("good") == 3, DEADLINE_S, lambda: str(odd.story))
    for number in range(4, 200):
        last = odd.made("pushed")
        found = [numbers(odd, "pushed", unit) for unit in range(1, last + 1)]
        if [3] in found:
            break
        odd.pulse(number)
    assert [unit for unit in found if unit] == [[1], [3]], odd.story


def test_a_poll_that_fails_without_end_does_not_keep_pulses_from_being_cut(
    odd: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert odd.service is not None
    monkeypatch.setattr(odd.feeder, "_cuts", lambda *_: dict[str, str]()["poll"])
    odd.cut.clear()
    odd.service.poll(PollSources(1, 1, 0))
    assert odd.cut.wait(DEADLINE_S), odd.story
    wait_until(lambda: odd.made("good") == 1, DEADLINE_S, lambda: str(odd.story))
    assert numbers(odd, "good", 1) == []
