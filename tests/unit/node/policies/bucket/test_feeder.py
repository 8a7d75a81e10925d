"""The feeder of a bucketed flow: sources go their own way, and all nodes make the same units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.support import consumers_of
from unbroken.connectors.dead_letters import DeadLetters
from unbroken.connectors.push.source import PushBatch
from unbroken.data.unit_store import UnitStore, decode_unit
from unbroken.node.ingress import feeder as feeding
from unbroken.node.ingress.entries import PULSE
from unbroken.node.ingress.feeder import Feeder, open_feeder
from unbroken.node.ingress.unit_writer import UnitWriter
from unbroken.node.policies.bucket.feeder import BUCKET_CUT, BucketCut, BucketFeeder
from unbroken.protocol.ingress.log import Entry
from unit.node.ingress.timed import NOON, SIZE, Member, Script, entry_of, make_flow, push_source


class Moody:
    """Fails the calls that a list of truth values says, and none after it."""

    def __init__(self, moods: list[bool]) -> None:
        self.moods = list(moods)

    def __call__(self, what: str) -> None:
        if self.moods and self.moods.pop(0):
            raise OSError(f"no {what} today")


def leader(tmp_path: Path, scripts: dict[str, Any], **how: Any) -> Member:
    return Member(make_flow(scripts, **how), tmp_path / "leader", tmp_path / "letters")


def pulse(member: Member, number: int, cut_ms: int) -> Entry:
    body, final = member.feeder.poll(NOON + cut_ms, 1)
    return Entry(number, 1, body, number, final)


def test_a_flow_says_which_feeder_it_needs(tmp_path: Path) -> None:
    flow = make_flow({"a": Script([])})
    store = UnitStore(tmp_path)
    arguments = (
        UnitWriter(consumers_of(flow), store, lambda stream, number: tmp_path),
        DeadLetters(tmp_path / "letters"),
    )
    feeder = open_feeder(flow, *arguments)
    assert isinstance(feeder, BucketFeeder)
    feeder.close()
    flow.ordering = "pulse"
    assert type(open_feeder(flow, *arguments)) is Feeder


# --- one node ---------------------------------------------------------------------------------------------


def test_units_are_buckets_and_sources_are_apart(tmp_path: Path) -> None:
    fast, slow = Script([10, 120, 130, 340, 9_999]), Script([50, 9_999])
    member = leader(tmp_path, {"fast": fast, "slow": slow})
    fast.there, slow.there, slow.reachable = 4, 1, False
    headers = member.take(pulse(member, 1, 350))
    assert [member.numbers("fast", unit) for unit in (1, 2, 3)] == [[0], [1, 2], []]
    assert member.last("fast") == 3 and member.last("slow") == 0
    assert len(headers) == 3 * 2
    for header in headers:
        assert header.number == header.pulse and header.cut_ms == NOON + 350
        assert not header.final and header.stable and header.generation == 1
        assert decode_unit(member.store.read(member.path(header.stream, header.number)))[0] == header
    slow.reachable = True
    assert {header.stream.producer.part for header in member.take(pulse(member, 2, 400))} == {"slow"}
    assert member.numbers("slow", 1) == [0] and member.last("slow") == 1 and member.last("fast") == 3
    assert member.take(pulse(member, 3, 401)) == ()


def test_a_poll_that_fails_is_a_source_that_cannot_be_reached(tmp_path: Path) -> None:
    good, bad = Script([10, 9_999]), Script([20, 9_999], Moody([False, False, True]))
    member = leader(tmp_path, {"good": good, "bad": bad})
    good.there = bad.there = 1
    first = pulse(member, 1, 50)
    assert PULSE.decode(first.body).unreachable == ()
    member.take(first)
    second = pulse(member, 2, 500)
    record = PULSE.decode(second.body)
    assert record.unreachable == ("bad",) and record.spans["bad"] == (1, 1)
    assert member.feeder.health.troubles == {"bad": "no poll today"}
    member.take(second)
    assert member.lasts(["good", "bad"]) == {"good": 4, "bad": 0}
    assert member.feeder.unreached_ms() == {"bad": 0}
    bad.reachable = False
    member.take(pulse(member, 3, 550))
    assert member.feeder.unreached_ms() == {"bad": 50}
    bad.reachable = True
    member.take(pulse(member, 4, 600))
    assert member.last("bad") == 5 and member.feeder.health.troubles == {} and member.feeder.unreached_ms() == {}


def test_rows_that_cannot_be_read_wait_in_their_lane_and_others_go_on(tmp_path: Path) -> None:
    good, bad = Script([10, 320, 9_999]), Script([20, 330, 9_999], Moody([False, True, True]))
    member = leader(tmp_path, {"good": good, "bad": bad})
    good.there = bad.there = 1
    member.take(pulse(member, 1, 150))
    assert member.last("good") == 0 and member.feeder.health.behind and member.feeder.health.failing
    assert member.feeder.health.troubles == {"bad": "no read today"}
    good.there = bad.there = 2
    second = pulse(member, 2, 350)
    record = PULSE.decode(second.body)
    assert record.spans["bad"] == (1, 1) and record.unreachable == ("bad",)  # one thing after the other
    member.take(second)
    assert member.lasts(["good", "bad"]) == {"good": 3, "bad": 0}
    member.collect()
    assert not member.feeder.health.behind and not member.feeder.health.failing
    member.take(pulse(member, 3, 360))
    assert member.lasts(["good", "bad"]) == {"good": 3, "bad": 3}
    assert member.numbers("bad", 1) == [0]


def test_rows_without_a_usable_time_are_dead_letters(tmp_path: Path) -> None:
    member = leader(tmp_path, {"pushed": push_source()})
    lines = [b'{"k":1,"n":1}', b"nonsense", b'{"at":"2033-01-01T00:00:00Z","k":1,"n":2}']
    good = b'{"at":"2023-11-14T22:13:20.030Z","k":1,"n":3}'
    member.take(Entry(1, 1, PushBatch("pushed", "p", 1, b"\n".join([*lines, good])).to_bytes()))
    body, final = member.feeder.poll(NOON + 500, 1)
    member.take(Entry(2, 1, body, 1, final))
    body, final = member.feeder.poll(NOON + 900, 1)
    member.take(Entry(3, 1, body, 2, final))
    (path,) = (tmp_path / "letters").iterdir()
    letters = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(letters) == member.feeder.bad_rows == 3 and member.feeder.rows == 1
    assert letters[0]["raw"] == "nonsense"
    assert all(letter["source"] == "pushed" and letter["pulse"] == 1 for letter in letters)
    assert member.numbers("pushed", 1) == [3]
    assert member.feeder.push_readers()["pushed"].buffered_bytes == 0


def test_writing_that_fails_is_done_again_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Script([10, 250, 9_999]), Script([20, 250, 9_999])
    member = leader(tmp_path, {"first": first, "second": second})
    first.there = second.there = 2
    entry = pulse(member, 1, 300)
    member.persist(entry)
    write, left = member.store.write, [5]

    def failing(path: Path, *parts: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError("the disk is away")
        write(path, *parts)

    monkeypatch.setattr(member.store, "write", failing)
    with pytest.raises(OSError, match="the disk is away"):
        member.commit(entry)
    headers = member.commit(entry)
    assert sorted((str(header.stream), header.number) for header in headers) == sorted(
        (f"{source}.0>sharded.{shard}", unit) for source in ("first", "second") for shard in (0, 1) for unit in (1, 2)
    )
    assert member.feeder.rows == 4 and member.numbers("second", 1) == [0]


# --- the end ----------------------------------------------------------------------------------------------


def test_all_sources_end_with_the_same_bucket_which_is_empty(tmp_path: Path) -> None:
    long, short, none = Script([10, 910]), Script([20]), Script([])
    member = leader(tmp_path, {"long": long, "short": short, "none": none})
    long.there, short.there = 1, 1
    assert not pulse(member, 1, 60).final
    member.take(pulse(member, 1, 60))
    long.there = 2
    entry = pulse(member, 2, 950)
    assert entry.final
    member.take(entry)
    ends = {source: member.last(source) for source in ("long", "short", "none")}
    assert len(set(ends.values())) == 1 and ends["long"] == 11
    finals = {(header.stream.producer.part, header.number) for header in member.headers if header.final}
    assert finals == {(source, 11) for source in ends}
    for source, rows in (("long", 2), ("short", 1), ("none", 0)):
        assert sum(len(member.numbers(source, unit)) for unit in range(1, 12)) == rows
        assert member.numbers(source, 11) == []
    member.trim(dict.fromkeys(ends, 11))
    assert member.log.base.finished and member.log.base.units == dict.fromkeys(ends, 11)


def test_the_end_waits_for_a_source_that_cannot_be_read(tmp_path: Path) -> None:
    good, bad = Script([10, 250]), Script([20, 40], Moody([False, True]))
    member = leader(tmp_path, {"good": good, "bad": bad})
    good.there = bad.there = 2
    entry = pulse(member, 1, 300)
    assert entry.final
    member.take(entry)
    assert member.lasts(["good", "bad"]) == {"good": 3, "bad": 0}
    assert not any(header.final for header in member.headers)
    member.collect()
    assert member.lasts(["good", "bad"]) == {"good": 4, "bad": 4}
    assert {header.number for header in member.headers if header.final} == {4}


def test_a_source_that_has_ended_keeps_up_with_the_others(tmp_path: Path) -> None:
    quick, over = Script([*range(0, 4_000, 100), 9_999]), Script([20])
    member = leader(tmp_path, {"quick": quick, "over": over})
    over.there = 1
    member.take(pulse(member, 1, 10))
    for number in range(2, 6):
        quick.there += 10
        member.take(pulse(member, number, 10 + number))  # event time passes much faster than the clock
    assert member.last("quick") == 39
    assert member.last("over") == 29  # as far as the other was when the last pulse was cut


# --- several nodes ----------------------------------------------------------------------------------------

PULSES = st.lists(
    st.tuples(st.integers(1, 250), st.lists(st.lists(st.integers(-300, 100), max_size=3), min_size=2, max_size=2)),
    min_size=1,
    max_size=8,
)


def written(
    raw: list[tuple[int, list[list[int]]]], flags: list[bool], final: bool
) -> tuple[list[Entry], dict[str, Any]]:
    """A log as some leader made it, and the rows of its sources."""
    scripts: dict[str, Any] = {"a": Script([]), "b": Script([])}
    log, cut, moods = [], 0, iter([*flags, *[True] * 99])
    for number, (passed, arrived) in enumerate(raw, start=1):
        cut += passed
        spans = {}
        for name, times in zip(scripts, arrived, strict=True):
            start = len(scripts[name].times)
            scripts[name].times += [cut + at for at in times]
            spans[name] = (start or None, len(scripts[name].times))
        ends = final and number == len(raw)
        unreachable = [] if ends else [name for name in scripts if not next(moods)]
        more = BUCKET_CUT.encode(BucketCut(("a", "b") if ends else (), {"a": number // 2, "b": number // 2}))
        said = {"unreachable": unreachable, "more": more}
        made = entry_of(number, number, cut, spans, **said)
        log.append(Entry(made.index, made.term, made.body, made.pulse, ends))
    return log, scripts


@given(
    raw=PULSES,
    flags=st.lists(st.booleans(), max_size=16),
    final=st.booleans(),
    moods=st.lists(st.lists(st.booleans(), max_size=12), min_size=2, max_size=2),
    disorder=st.sampled_from([0, 150]),
)
@settings(max_examples=40, deadline=None)
def test_all_nodes_make_the_same_units_however_reads_fail(
    raw: list[tuple[int, list[list[int]]]],
    flags: list[bool],
    final: bool,
    moods: list[list[bool]],
    disorder: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("members")
    log, scripts = written(raw, flags, final)
    smooth = Member(make_flow(scripts, disorder), root / "smooth", root / "letters")
    for entry in log:
        smooth.take(entry)
    rough_scripts = {
        name: Script(script.times, Moody(mood)) for (name, script), mood in zip(scripts.items(), moods, strict=True)
    }
    rough = Member(make_flow(rough_scripts, disorder), root / "rough", root / "letters")
    for entry in log:
        rough.take(entry)
    for _ in range(30):
        rough.collect()
    assert not rough.feeder.health.behind
    assert rough.files() == smooth.files()
    for script in rough_scripts.values():
        script.fails = lambda what: None
    assert rough.state() == smooth.state()
    check_numbers(smooth)
    check_numbers(rough)
    lanes = smooth.feeder._lanes
    for name, script in scripts.items():
        found = [n for unit in range(1, smooth.last(name) + 1) for n in smooth.numbers(name, unit)]
        assert len(found) == len(set(found))
        waiting = sum(piece.num_rows for pieces in lanes[name]._open.values() for piece in pieces)
        assert len(found) + waiting == len(script.times)
        assert not final or waiting == 0
    if final:
        assert smooth.last("a") == smooth.last("b")


def check_numbers(member: Member) -> None:
    """Units of a stream were given out one after the other, from the first on."""
    seen: dict[str, int] = {}
    for header in member.headers:
        name = str(header.stream)
        assert header.number == seen.get(name, 0) + 1
        seen[name] = header.number


def test_what_was_given_out_is_bounded_while_nobody_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "BASES", 8)
    script = Script([SIZE * n for n in range(100)])
    member = leader(tmp_path, {"a": script})
    for number in range(1, 60):
        script.there = number
        member.take(pulse(member, number, SIZE * number))
        assert len(member.feeder._produced) <= 8
    base = member.feeder.base_after({"a": 50})
    assert base is not None and 0 < base.units["a"] <= 50
