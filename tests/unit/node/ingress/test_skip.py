"""An operator sets rows aside that stay unreadable: all nodes do, or none."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kit.ingress.fake_node import DEADLINE_S, REPLICA, FakeNode
from kit.ingress.scripted import begin, letters, numbers
from kit.statuses import status
from kit.support import wait_until
from unbroken.errors import Refused
from unbroken.node.ingress import feeder, job_line
from unbroken.node.ingress import service as ingress_service
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.observe.status.node import NodeStatus
from unbroken.operations import skip as skipping
from unbroken.protocol.events import PushArrived, SourcesPolled
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.ingress.skip import SkipRequest
from unbroken.protocol.instructions import PersistEntry, PollSources
from unbroken.protocol.values.notices.ingress import RowsSkipped


@dataclass
class Rows:
    """Row 2 of the source cannot be read, or reading it does not come to an end."""

    hangs: bool = False
    broken: bool = True
    go: threading.Event = field(default_factory=threading.Event)

    def __call__(self, start: int, end: int) -> None:
        if self.broken and start < 2 <= end:
            if self.hangs:
                assert self.go.wait(DEADLINE_S)
            raise OSError("no route to host")


class Pair:
    """Two members of the ingress with one log, and the way in which a command asks them."""

    def __init__(self, directory: Path, reads: dict[str, Rows]) -> None:
        self.nodes: dict[str, FakeNode] = {}
        self.log: list[Entry] = []
        self.lock = threading.Lock()
        self.inputs: dict[str, int] = {}
        self.silent: set[str] = set()
        for name, read in reads.items():
            node = begin(directory / name / "node", read)
            node.name = name
            node.post = lambda event, node=node: self.post(node, event)  # type: ignore[method-assign, misc]
            self.nodes[name] = node
        self.leader = next(iter(self.nodes))
        self.cut = threading.Event()

    def post(self, node: FakeNode, event: Any) -> None:
        node.events.append(event)
        if isinstance(event, SourcesPolled | PushArrived):
            pulse = (event.pulse, event.final) if isinstance(event, SourcesPolled) else (0, False)
            self.enter(event.body, *pulse)
            self.cut.set()

    def enter(self, body: bytes, pulse: int = 0, final: bool = False) -> None:
        with self.lock:
            entry = Entry(len(self.log) + 1, 1, body, pulse, final)
            self.log.append(entry)
            for node in self.nodes.values():
                assert node.service is not None
                node.service.persist(PersistEntry(entry))
                node.service.commit(entry)

    def pulse(self, number: int) -> None:
        self.cut.clear()
        service = self.nodes[self.leader].service
        assert service is not None
        service.poll(PollSources(number, 1, 0))
        assert self.cut.wait(DEADLINE_S)

    def read(self) -> list[NodeStatus]:
        out: list[NodeStatus] = []
        for name, node in self.nodes.items():
            assert node.service is not None
            if name in self.silent:
                out.append(status(name, "silent", reason="no answer"))
                continue
            stuck = node.feeder.health.stuck()
            last = {"last": node.made("bad")}
            out.append(
                status(
                    name,
                    flow={"sources": ["bad", "good", "pushed"]},
                    ingress={"leading": name == self.leader, "members": [*self.nodes], "stuck": stuck},
                    outboxes={"bad.0>both.0": last},
                    replicas=[{"replica": "both.0#0", "inputs": {"bad.0>both.0": self.inputs.get(name, 0)}}],
                )
            )
        return out

    def skip(self, node: str, request: SkipRequest) -> str | None:
        service = self.nodes[node].service
        assert service is not None
        return service.ask(request)

    def close(self) -> None:
        for node in self.nodes.values():
            assert node.service is not None
            node.service.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_line, "RETRY_S", 0.02)
    monkeypatch.setattr(feeder, "READ_S", 0.05)
    monkeypatch.setattr(feeder, "CUT_S", 0.05)
    monkeypatch.setattr(skipping, "LOOK_S", 0.02)


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(**reads: Rows) -> Pair:
        made.append(Pair(tmp_path, reads))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


def stuck_at_two(pair: Pair, *names: str) -> None:
    for number in (1, 2, 3):
        pair.pulse(number)
    for name in names:
        wait_until(
            lambda name=name: [s.pulse for s in skipping.stuck_rows(pair.read()) if s.node == name] == [2],  # type: ignore[misc]
            DEADLINE_S,
            lambda: str(pair.read()),
        )


@pytest.mark.parametrize("hangs", [False, True])
def test_skipped_rows_are_a_dead_letter_and_the_source_continues(pairs: Callable[..., Pair], hangs: bool) -> None:
    pair = pairs(a=Rows(hangs), b=Rows(hangs))
    stuck_at_two(pair, "a", "b")
    skipping.skip(pair, "bad", 2, DEADLINE_S)
    wait_until(lambda: skipping.stuck_rows(pair.read()) == [], DEADLINE_S, lambda: str(pair.read()))
    for number in (4, 5):
        pair.pulse(number)
    for node in pair.nodes.values():
        wait_until(lambda node=node: node.made("bad") == 5, DEADLINE_S, lambda node=node: str(node.story))  # type: ignore[misc]
        rows = [numbers(node, "bad", unit) for unit in range(1, 6)]
        assert rows[:2] == [[0], []] and [2] in rows, rows
        skipped = [told for told in node.story if isinstance(told, RowsSkipped)]
        assert [(told.source, told.pulse) for told in skipped] == [("bad", 2)], node.story
        (path,) = letters(node)
        (letter,) = [json.loads(line) for line in path.read_text().splitlines()]
        assert (letter["source"], letter["pulse"]) == ("bad", 2) and "operator" in letter["reason"]
    first, second = pair.nodes.values()
    assert all(numbers(first, "bad", unit) == numbers(second, "bad", unit) for unit in range(1, 6))


def test_rows_that_one_node_has_read_are_not_skipped(pairs: Callable[..., Pair]) -> None:
    pair = pairs(a=Rows(), b=Rows(broken=False))
    stuck_at_two(pair, "a")
    wait_until(lambda: pair.nodes["b"].made("bad") >= 2, DEADLINE_S, "the other node")
    with pytest.raises(Refused, match="b has read the rows"):
        skipping.skip(pair, "bad", 2, DEADLINE_S)
    assert len(pair.log) == 3, "nothing was asked of the ingress"


def test_rows_that_a_silent_node_may_have_read_are_not_skipped(pairs: Callable[..., Pair]) -> None:
    pair = pairs(a=Rows(), b=Rows())
    stuck_at_two(pair, "a", "b")
    pair.silent = {"b"}
    with pytest.raises(Refused, match="b does not answer"):
        skipping.skip(pair, "bad", 2, DEADLINE_S)


def test_rows_that_a_consumer_has_are_not_skipped_and_are_read_after_all(pairs: Callable[..., Pair]) -> None:
    reads = Rows()
    pair = pairs(a=reads, b=reads)
    stuck_at_two(pair, "a", "b")
    pair.inputs = {"a": 2}
    with pytest.raises(Refused, match="has the unit already"):
        skipping.skip(pair, "bad", 2, DEADLINE_S)
    reads.broken = False
    for node in pair.nodes.values():
        wait_until(lambda node=node: node.made("bad") >= 3, DEADLINE_S, lambda node=node: str(node.story))  # type: ignore[misc]
        assert numbers(node, "bad", 2) == [1]


@pytest.mark.parametrize(
    ("source", "pulse", "why"), [("nobody", 2, "no source"), ("bad", 3, "earlier pulse"), ("good", 1, "has read")]
)
def test_what_makes_no_sense_is_refused(pairs: Callable[..., Pair], source: str, pulse: int, why: str) -> None:
    pair = pairs(a=Rows(), b=Rows())
    stuck_at_two(pair, "a", "b")
    with pytest.raises(Refused, match=why):
        skipping.skip(pair, source, pulse, DEADLINE_S)


def test_held_rows_are_not_read_and_a_forgotten_hold_ends(
    pairs: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Rows()
    pair = pairs(a=reads)
    stuck_at_two(pair, "a")
    pair.skip("a", SkipRequest("hold", "bad", 2))
    service = pair.nodes["a"].service
    assert service is not None
    feeder_of_a = pair.nodes["a"].feeder
    wait_until(lambda: feeder_of_a.health.stuck()["bad"].held == 4, DEADLINE_S, "the hold")
    reads.broken = False
    pair.pulse(4)
    wait_until(lambda: pair.nodes["a"].made("good") == 4, DEADLINE_S, "the others continue")
    assert pair.nodes["a"].made("bad") == 1
    monkeypatch.setattr(ingress_service, "HOLD_S", 0.05)
    wait_until(lambda: pair.nodes["a"].made("bad") == 4, DEADLINE_S, lambda: str(pair.log))
    assert numbers(pair.nodes["a"], "bad", 2) == [1]


def test_a_node_that_restarts_keeps_what_was_held_and_skips_what_was_skipped(
    pairs: Callable[..., Pair], tmp_path: Path
) -> None:
    """Its source can be read by then: what it makes must not depend on that."""
    pair = pairs(a=Rows(), b=Rows())
    stuck_at_two(pair, "a", "b")
    pair.skip("a", SkipRequest("hold", "bad", 2))
    skipping.skip(pair, "bad", 2, DEADLINE_S)
    pair.pulse(4)
    wait_until(lambda: pair.nodes["a"].made("bad") == 4, DEADLINE_S, "the units")
    service = pair.nodes["a"].service
    assert service is not None
    service.close()
    again = begin(tmp_path / "a" / "node", Rows(broken=False))
    assert again.service is not None
    for entry in IngressLogFile(again.dirs.ingress_log(REPLICA)).read():
        again.service.commit(entry)
    wait_until(lambda: again.made("bad") == 4, DEADLINE_S, lambda: str(again.story))
    assert numbers(again, "bad", 2) == [] == numbers(pair.nodes["b"], "bad", 2)
    again.service.close()
