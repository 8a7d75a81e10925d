"""The ingress of a node with sources that fail or hang: the others go on, and somebody says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import pytest

from kit.ingress.fake_node import DEADLINE_S, REPLICA, FakeNode
from kit.support import wait_until
from unbroken.connectors.push.source import Push, PushBatch, PushReader
from unbroken.errors import UnbrokenError
from unbroken.node.ingress import calls, feeder, lanes
from unbroken.node.ingress.entries import PULSE
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.ingress.news import SourceNews
from unbroken.node.ingress.service import IngressService
from unbroken.node.ingress.surroundings import IngressClocks
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.protocol.events import EntriesPersisted, SourcesPolled
from unbroken.protocol.ingress.cut_clock import ClockLeap
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.instructions import PersistEntry, PollSources
from unbroken.protocol.values.notices.ingress import (
    ClockAgrees,
    ClockOff,
    CutTimeLeapt,
    SourceReadable,
    SourceUnreadable,
)
from unbroken.protocol.values.pause import Pause
from unit.node.ingress.timed import NOON, SCHEMA, Script, make_flow, push_source, pushed_rows


class Gate:
    """Lets calls to a source wait until it is opened, and fail before that if it says so."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.error: Exception | None = None
        self.waits = ""

    def __call__(self, what: str) -> None:
        if what == self.waits and self.error is not None:
            raise self.error
        if what == self.waits:
            assert self.open.wait(DEADLINE_S)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeNode, dict[str, Script], Gate]]:
    monkeypatch.setattr(feeder, "CUT_S", 0.1)
    monkeypatch.setattr(feeder, "READ_S", 0.1)
    monkeypatch.setattr("unbroken.node.ingress.news.WORTH_S", 0.2)
    clock = iter(range(NOON, NOON + 10_000_000, 200))
    steady = iter(range(0, 10_000_000, 200))
    gate = Gate()
    times = [*range(0, 5_000, 50), 99_999]
    scripts = {"good": Script(times), "bad": Script(times, gate)}
    dirs = ReplicaDirs(tmp_path / "node")
    dirs.identity()
    dirs.begin([REPLICA])
    node = FakeNode(make_flow({**scripts, "pushed": push_source()}), dirs)
    service = node.open(IngressClocks(lambda: next(clock) / 1000, lambda: next(steady) / 1000))
    yield node, scripts, gate
    gate.open.set()
    gate.error = None
    service.close()


def test_a_clock_that_is_set_is_told_and_followed_slowly(tmp_path: Path) -> None:
    """An hour ahead for three pulses: cuts stay as far apart as they were made."""
    dirs = ReplicaDirs(tmp_path / "node")
    dirs.identity()
    dirs.begin([REPLICA])
    node = FakeNode(make_flow({"good": Script([*range(0, 5_000, 50), 99_999])}), dirs)
    steady_ms, ahead_ms = [0.0], [0.0]
    service = node.open(IngressClocks(lambda: (NOON + steady_ms[0] + ahead_ms[0]) / 1000, lambda: steady_ms[0] / 1000))
    for number in range(1, 13):
        steady_ms[0] += 100.0
        ahead_ms[0] = 3_600_000.0 if 4 <= number < 7 else 0.0
        node.pulse(number)
    wait_until(lambda: len(node.story) == 2, DEADLINE_S, lambda: str(node.story))
    service.close()
    cuts = [PULSE.decode(event.body).cut_ms for event in node.events if isinstance(event, SourcesPolled)]
    assert len(cuts) == 12 and all(90 <= later - earlier <= 110 for earlier, later in pairwise(cuts))
    assert isinstance(node.story[0], ClockOff) and round(node.story[0].offset_s) == 3600
    assert node.story[1] == ClockAgrees("node-1")
    assert abs(service.clock_offset_ms) < 100


def more(scripts: dict[str, Script]) -> None:
    for script in scripts.values():
        script.there += 4


@pytest.mark.parametrize("call", ["poll", "read"])
@pytest.mark.parametrize("hangs", [False, True])
def test_a_source_that_fails_or_hangs_holds_up_nobody_else(
    place: tuple[FakeNode, dict[str, Script], Gate], call: str, hangs: bool
) -> None:
    node, scripts, gate = place
    more(scripts)
    node.pulse(1)
    wait_until(lambda: node.made("bad") == node.made("good") == 1, DEADLINE_S, lambda: str(node.events))
    gate.waits, gate.error = call, None if hangs else OSError("the broker is away")
    number = 1
    while not any(isinstance(told, SourceUnreadable) and told.source == "bad" for told in node.story):
        number += 1
        assert number < 200, node.story
        more(scripts)
        node.pulse(number)
    last = number
    wait_until(lambda: node.made("good") == 2 * last - 1, DEADLINE_S, lambda: f"{node.made('good')} of {last}")
    assert node.made("bad") <= 3
    gate.waits = ""
    gate.open.set()
    gate.error = None
    numbers = count(last + 1)

    def is_read_again_after_one_more_pulse() -> bool:
        """A source is asked at pulses: on a busy machine its answer may miss any fixed number of them."""
        more(scripts)
        node.pulse(next(numbers))
        return SourceReadable("bad", "node-1") in node.story and node.made("bad") >= node.made("good") - 2

    wait_until(is_read_again_after_one_more_pulse, DEADLINE_S, lambda: f"{node.made('bad')}, {node.story}")


def test_rows_are_read_after_the_failure_without_another_pulse(
    place: tuple[FakeNode, dict[str, Script], Gate],
) -> None:
    node, scripts, gate = place
    gate.waits = "read"
    more(scripts)
    node.pulse(1)
    wait_until(lambda: node.made("good") == 1, DEADLINE_S, "the good source")
    assert node.made("bad") == 0 and node.feeder.health.behind
    gate.open.set()
    wait_until(lambda: node.made("bad") == 1, DEADLINE_S, "the rows that were late")


def test_producers_are_heard_when_their_rows_come_and_not_when_they_are_taken_again(tmp_path: Path) -> None:
    """A node that does not lead, or that restarts, takes no producer that has failed for one that is there."""
    dirs = ReplicaDirs(tmp_path / "node")
    dirs.identity()
    dirs.begin([REPLICA])
    node = FakeNode(make_flow({"pushed": Push(SCHEMA, heartbeat="1s")}), dirs)
    now = [NOON]

    def begin() -> PushReader:
        node.open(IngressClocks(lambda: now[0] / 1000))
        return node.feeder.push_readers()["pushed"]

    def reachable(reader: PushReader, at: int) -> bool:
        return reader.poll(None, at).reachable

    reader = begin()
    node.enter(pushed_rows("pushed", "p", 1, [0]))
    wait_until(lambda: "p" in reader._heard, DEADLINE_S, "the rows")
    assert reachable(reader, NOON + 1_000) and not reachable(reader, NOON + 60_000), "nobody has polled meanwhile"
    node.pulse(1)
    assert node.service is not None
    node.service.close()
    now[0] = NOON + 60_000
    reader = begin()
    for entry in IngressLogFile(dirs.ingress_log(REPLICA)).read():
        node.service.commit(entry)
    wait_until(lambda: "p" in reader._heard, DEADLINE_S, "the rows once more")
    assert not reachable(reader, now[0])
    node.enter(pushed_rows("pushed", "p", 2, [60_000]))
    wait_until(lambda: reachable(reader, now[0]), DEADLINE_S, "further rows")
    node.service.close()


def test_signs_of_producers(place: tuple[FakeNode, dict[str, Script], Gate]) -> None:
    node, _, _ = place
    service = node.service
    assert service is not None
    assert service.submit(PushBatch("pushed", "p", 0, b"", sign="alive"), 1).status == "logged"
    assert node.entries == 0
    assert service.submit(PushBatch.from_bytes(pushed_rows("pushed", "p", 1, [10])), DEADLINE_S).status == "logged"
    assert service.submit(PushBatch("pushed", "p", 0, b"", sign="leaving"), DEADLINE_S).status == "logged"
    assert service.submit(PushBatch.from_bytes(pushed_rows("pushed", "p", 1, [10])), DEADLINE_S).status == "duplicate"
    assert service.submit(PushBatch.from_bytes(pushed_rows("pushed", "p", 2, [20])), DEADLINE_S).status == "logged"
    assert node.entries == 3


def test_a_paused_flow_takes_signs_and_no_rows(place: tuple[FakeNode, dict[str, Script], Gate]) -> None:
    node, _, _ = place
    service, batch = node.service, PushBatch.from_bytes(pushed_rows("pushed", "p", 1, [10]))
    assert service is not None
    node.layout.pause = Pause(0, "the shop moves")
    refused = service.submit(batch, 1)
    assert refused.status == "paused" and "the shop moves" in refused.detail and "resume" in refused.detail
    assert service.submit(PushBatch("pushed", "p", 0, b"", sign="alive"), 1).status == "logged"
    assert service.submit(PushBatch("pushed", "p", 0, b"", sign="leaving"), DEADLINE_S).status == "logged"
    node.layout.pause = None
    assert service.submit(batch, DEADLINE_S).status == "logged"


def test_entries_are_reported_when_they_are_on_disk(place: tuple[FakeNode, dict[str, Script], Gate]) -> None:
    """For the log that they were written to: a report that comes late must not count for another one."""
    node, _, _ = place
    service = node.service
    assert service is not None and node.settings.durability == "sync"
    for index in (1, 2, 3):
        service.persist(PersistEntry(Entry(index, 1, pushed_rows("pushed", "p", index, [10])), life=7))

    def reported() -> int:
        return sum(event.count for event in node.events if event == EntriesPersisted(7, getattr(event, "count", 0)))

    wait_until(lambda: reported() == 3, DEADLINE_S, "the disk")
    log = IngressLogFile(node.dirs.ingress_log(REPLICA))
    assert [entry.index for entry in log.read()] == [1, 2, 3]


def test_news_is_told_once_and_when_it_is_over() -> None:
    news = SourceNews("node-1")
    assert news.notices(0, {"a": "no answer"}, {}) == []
    assert news.notices(1, {}, {}) == []
    assert news.notices(2, {"a": "no answer"}, {}) == []
    assert news.notices(4.5, {"a": "no answer"}, {"a": 1_000}) == [SourceUnreadable("a", "node-1", "no answer")]
    assert news.notices(5, {"a": "no answer"}, {"a": 3_000}) == []
    assert news.notices(6, {"a": "refused"}, {}) == [SourceUnreadable("a", "node-1", "refused")]
    assert news.notices(7, {}, {"a": 5_000}) == []
    assert news.notices(8, {}, {}) == [SourceReadable("a", "node-1")]
    unasked = SourceUnreadable("b", "node-1", "it cannot be asked for its rows")
    assert news.notices(9, {}, {"b": 2_000}) == [unasked]


def test_a_leap_of_cut_times_is_told_with_both_times() -> None:
    (told,) = SourceNews("node-1").notices(0, {}, {}, None, ClockLeap(1_700_000_000_000, 1_700_086_400_500))
    assert told == CutTimeLeapt("node-1", 1_700_000_000_000, 1_700_086_400_500)


def test_a_worker_answers_in_order_and_passes_errors_on() -> None:
    worker = calls.ThreadedCalls("test")
    seen: list[int] = []
    first, second = worker.ask(lambda: seen.append(1)), worker.ask(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        second.result(DEADLINE_S)
    assert first.done() and seen == [1]
    assert worker.ask(lambda: 7).result(DEADLINE_S) == 7
    worker.close()
    worker._thread.join(DEADLINE_S)
    assert not worker._thread.is_alive()


def test_a_deadline_ends() -> None:
    assert lanes.Deadline(0).left_s == 0 and lanes.Deadline(60).left_s > 50


def test_nothing_waits_for_a_log_that_is_being_opened(tmp_path: Path) -> None:
    """What is asked for meanwhile is done when the log is open."""
    dirs = ReplicaDirs(tmp_path / "node")
    dirs.identity()
    dirs.begin([REPLICA])
    node = FakeNode(make_flow({"pushed": push_source()}), dirs)
    ground, disk = node.ground(IngressClocks()), threading.Event()

    def slow() -> IngressLogFile:
        assert disk.wait(DEADLINE_S)
        return ground.open_log()

    service = node.service = IngressService(node, REPLICA, replace(ground, open_log=slow))
    service.start()
    entry = Entry(1, 1, pushed_rows("pushed", "p", 1, [10]))
    node.entries = 1
    service.persist(PersistEntry(entry))
    service.poll(PollSources(1, 1, 0))
    assert service.feeder is None and service.busy_s > 0 and node.events == []
    assert service.submit(PushBatch.from_bytes(entry.body), 1).status == "refused"
    with pytest.raises(UnbrokenError, match="being opened"):
        service.pin(tmp_path / "pin")
    disk.set()
    wait_until(
        lambda: sum(each.count for each in node.events if isinstance(each, EntriesPersisted)) == 2,
        DEADLINE_S,
        lambda: str(node.events),
    )
    wait_until(
        lambda: any(isinstance(each, SourcesPolled) for each in node.events), DEADLINE_S, "the sources are asked"
    )
    ended = threading.Event()
    service.end(ended.set)
    assert ended.wait(DEADLINE_S)
