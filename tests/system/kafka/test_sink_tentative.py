"""Tentative units in Kafka: once, whole and marked, never behind the stable ones that correct them."""

from __future__ import annotations

import json
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kit.kafka.server import Server
from system.kafka.sink_child import deliver, header, sink, table, tentative
from system.kafka.sinking import Topic, at_once, child, delivered, opened, read, wait_stopped
from unbroken.connectors.kafka import ledger as kafka_ledger
from unbroken.connectors.kafka.calls import CallDeadline
from unbroken.connectors.sink_ledger import SinkMark
from unbroken.data.coverage import Coverage
from unbroken.errors import UnbrokenError

pytest.importorskip("confluent_kafka")

STEPS = ["begun", "recorded", "settled", "written", "flushed", "committed"]


def told(servers: str, name: str, rows: int = 3) -> list[str]:
    """The units of a topic as consumers find them: s, t and c for stable, tentative and correcting ones, and v for one
    that only says that tentative ones are void."""
    out: list[str] = []
    for message in read(servers, name):
        marks = {key: value.decode() for key, value in message.headers() or []}
        kind = "c" if marks.get("unbroken-corrects") == "true" else marks["unbroken-status"][0]
        if message.value() is None:
            assert kind == "c" and message.key() == b"unbroken/counts.0"
            out += [f"v{marks['unbroken-pulse']}"] * rows
            continue
        value = json.loads(message.value())
        assert abs(value["unit"]) == int(marks["unbroken-pulse"]) and (value["unit"] < 0) == (kind == "t")
        out.append(f"{kind}{marks['unbroken-pulse']}")
    assert out == [unit for unit in out[::rows] for _ in range(rows)], f"units are not whole: {out}"
    return out[::rows]


def deliver_all(writer: Any, units: list[list[int]]) -> list[bool]:
    return [deliver(writer, what) for what in units]


def test_messages_say_how_they_stand(kafka: Server, topic: Topic) -> None:
    name = topic("out")
    with opened(kafka.servers, name, tentative=True) as first, opened(kafka.servers, name, tentative=True) as second:
        assert deliver_all(first, [[1], [1, 2], [2, 4]]) == [True, True, True]
        assert deliver_all(second, [[1], [1, 2], [3, 4], [2], [3], [4], [5]]) == [False] * 3 + [True] * 4
        assert deliver_all(first, [[4, 5], [5, 6]]) == [False, True]
    assert told(kafka.servers, name) == ["s1", "t2", "t4", "c2", "c3", "c4", "s5", "t6"]
    by_unit = {message.headers()[0][1]: dict(message.headers()) for message in read(kafka.servers, name)}
    assert by_unit[b"counts~.0/1"] == {
        "unbroken-unit": b"counts~.0/1",
        "unbroken-status": b"tentative",
        "unbroken-pulse": b"6",
        "unbroken-since": b"5",
    }
    assert by_unit[b"counts.0/5"] == {
        "unbroken-unit": b"counts.0/5",
        "unbroken-status": b"stable",
        "unbroken-pulse": b"5",
    }
    found = kafka_ledger.marks(sink(kafka.servers, name).place, f"{name}.ledger", "flow/out", CallDeadline(20))
    assert found == {"counts.0>out.0": SinkMark(5, "", 5, Coverage(((5, 6),)))}


def test_stable_units_without_rows_count_as_well(kafka: Server, topic: Topic) -> None:
    name = topic("out")
    with opened(kafka.servers, name, tentative=True) as first, opened(kafka.servers, name, tentative=True) as second:
        assert first.deliver(header(1), table(1, 0)) and not second.deliver(header(1), table(1, 0))
        assert not second.deliver_tentative(tentative(0, 1), table(-1)), "it would come after its stable one"
        assert second.deliver_tentative(tentative(1, 2), table(-2, 0)), "leaves no trace"
        assert second.deliver_tentative(tentative(1, 2), table(-2))
        assert first.deliver(header(2), table(2, 0)) and first.deliver(header(3), table(3))
        assert not second.deliver(header(2), table(2, 0)), "and it says so once"
    assert told(kafka.servers, name) == ["t2", "v2", "s3"]


def test_it_has_to_be_asked_for(kafka: Server, topic: Topic) -> None:
    name = topic("out")
    with opened(kafka.servers, name) as writer:
        assert deliver(writer, [1])
        with pytest.raises(UnbrokenError, match="tentative=True"):
            deliver(writer, [1, 2])
    assert {tuple(message.headers()) for message in read(kafka.servers, name)} == {(("unbroken-unit", b"counts.0/1"),)}
    # A ledger that was kept without is gone on with.
    with opened(kafka.servers, name, tentative=True, unit_header=False) as writer:
        assert deliver_all(writer, [[1], [1, 2], [2]]) == [False, True, True]
    corrected = [dict(message.headers()) for message in read(kafka.servers, name)][-1]
    assert corrected == {"unbroken-status": b"stable", "unbroken-pulse": b"2", "unbroken-corrects": b"true"}


def test_writers_at_the_same_time(kafka: Server, topic: Topic) -> None:
    """Each has its own tentative units, cut as it likes, between the same stable ones."""
    name, last = topic("out"), 12

    def write(number: int) -> None:
        chance, since = random.Random(number), 0
        with opened(kafka.servers, name, tentative=True) as writer:
            for stable in range(1, last + 1):
                while since < min(last, stable + 2):
                    pulse = since + chance.choice([1, 2])
                    deliver(writer, [since, pulse])
                    since = pulse
                deliver(writer, [stable])

    at_once(*(partial(write, number) for number in range(3)))
    judge(told(kafka.servers, name), last)


def judge(units: list[str], last: int) -> None:
    """Stable ones in order, each once; tentative ones always beyond everything; corrections where there were some."""
    stable, reach = 0, 0
    for unit in units:
        kind, pulse = unit[0], int(unit[1:])
        if kind == "t":
            assert pulse > reach, units
        else:
            assert pulse == stable + 1 and (kind == "c") == (pulse <= reach), units
            stable = pulse
        reach = max(reach, pulse)
    assert stable == last, units


UNITS = [[0, 1], [1, 3], [1], [2], [3, 4], [3]]


def test_a_process_is_killed_between_two_steps(kafka: Server, topic: Topic) -> None:
    """Between any two, of a tentative unit and of one that corrects; all at the same time."""

    def killed(step: str, at: list[int], name: str) -> None:
        what = {"units": UNITS, "step": step, "unit": at, "signal": "SIGKILL", "parameters": {"tentative": True}}
        with child(kafka.servers, name, 0, 0, **what) as process:
            delivered(process)
            assert process.returncode == -signal.SIGKILL, step
        with opened(kafka.servers, name, tentative=True) as writer:
            again = deliver_all(writer, UNITS)
        assert again[UNITS.index(at)] == (step != "committed"), step
        assert told(kafka.servers, name) == ["t1", "t3", "c1", "c2", "t4", "c3"], step

    places = [(step, [1, 3]) for step in STEPS if step != "settled"] + [("settled", [0, 1])]
    places += [(step, [2]) for step in STEPS if step != "settled"]
    for some in (places[:6], places[6:]):
        at_once(*(partial(killed, *place, topic("out")) for place in some))


def test_a_frozen_process_adds_nothing_when_it_wakes(kafka: Server, topic: Topic) -> None:
    def frozen(step: str, at: list[int], name: str) -> None:
        units = [[0, 1], [1], [1, 2], [2]]
        what = {"units": units, "step": step, "unit": at, "signal": "SIGSTOP", "parameters": {"tentative": True}}
        with child(kafka.servers, name, 0, 0, **what) as process:
            wait_stopped(process)
            with opened(kafka.servers, name, tentative=True) as writer:
                deliver_all(writer, [[1], [2], [2, 3]])
            process.send_signal(signal.SIGCONT)
            delivered(process)
        found = told(kafka.servers, name)
        judge(found, 2)
        assert found[-1] == "t3", found

    places = [(step, at) for step in ("recorded", "flushed") for at in ([0, 1], [1, 2])]
    at_once(*(partial(frozen, *place, topic("out")) for place in places))


def test_what_the_ledger_says_may_change_before_it_is_read(kafka: Server, topic: Topic) -> None:
    """A record is written before all is known; what it says is put right before anything else is written."""
    name = topic("out")
    with opened(kafka.servers, name, tentative=True) as first, opened(kafka.servers, name, tentative=True) as second:
        assert deliver_all(second, [[1]]) == [True]
        assert deliver_all(first, [[1], [1, 2], [2, 3]]) == [False, True, True]
        lane = next(iter(second._lanes.values()))
        lane._ledger.refresh = _once_blind(lane._ledger)  # type: ignore[attr-defined]
        assert deliver_all(second, [[2], [3, 4], [3]]) == [True, True, True]
    assert told(kafka.servers, name) == ["s1", "t2", "t3", "c2", "t4", "c3"]


def _once_blind(ledger: Any) -> Any:
    """A look that finds nothing new, and then one as ever."""
    original, looks = ledger.refresh, [0]

    def refresh(deadline: CallDeadline) -> None:
        looks[0] += 1
        if looks[0] > 1:
            original(deadline)

    return refresh


def test_rows_whose_end_the_brokers_have_lost_are_taken_back(
    kafka: Server, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic("out", 3)
    lost = iter([SinkMark(0, ""), SinkMark(0, "")])
    monkeypatch.setattr(kafka_ledger.KafkaLedger, "lost", lambda self, deadline: next(lost, None))
    with opened(kafka.servers, name, key="unit", tentative=True) as writer:
        assert deliver(writer, [0, 1])
    with opened(kafka.servers, name, key="unit", tentative=True) as writer:
        assert writer.deliver(header(1), table(1, 0))
    found = read(kafka.servers, name, "read_uncommitted")
    assert len(found) == 3 + 3 + 3 + 1, "each partition was covered, once by a unit without rows of its own"
    assert told(kafka.servers, name) == ["t1", "v1"]


def test_the_declaration() -> None:
    assert sink("a:1", "t", tentative=True).tentative and not sink("a:1", "t").tentative
    (problem,) = sink("a:1", "t", tentative=True, exactly_once=False).problems()
    assert "tentative=True needs the ledger" in problem.what
    assert sink("a:1", "t", tentative=True).open(Path()) is not None
