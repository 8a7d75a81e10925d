"""An ingress node of a bucketed flow that starts from its disk, or from a copy, makes the units that were made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.connectors.dead_letters import DeadLetters
from unbroken.connectors.push.source import Push, PushBatch
from unbroken.node.ingress import log_file as logfile
from unbroken.node.ingress.base import BASE, IngressBase
from unbroken.node.ingress.calls import Inline
from unbroken.node.ingress.entries import PULSE
from unbroken.node.ingress.unit_writer import UnitWriter
from unbroken.node.policies.bucket import BucketFeeder
from unbroken.node.policies.bucket.rule import BucketState
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unit.node.ingress.timed import NOON, SCHEMA, Member, Script, make_flow, push_source, pushed_rows

PULSES = 11
SOURCES = ("first", "away", "made", "second")


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that can be deleted is."""
    monkeypatch.setattr(logfile, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(logfile, "BASE_PULSES", 1)
    monkeypatch.setattr("os.fsync", lambda handle: None)  # the order of things is tested, not the disk


def sources() -> dict[str, Any]:
    made, away = Script([40 * n - 90 * (n % 4) for n in range(37)]), Script([25 * n for n in range(45)])
    return {"first": push_source(), "away": away, "made": made, "second": push_source()}


def new_member(root: Path, letters: Path, units: str = "units") -> Member:
    return Member(make_flow(sources(), disorder=60), root, letters, units)


def make_log(root: Path, pulses: int) -> tuple[Member, list[Entry]]:
    """A log as a busy leader makes it: pushes around the pulses, rows out of order, a source that is away for long."""
    scripts = sources()
    member = Member(make_flow(scripts, disorder=60), root / "reference", root / "letters")
    log: list[Entry] = []

    def take(body: bytes, pulse: int = 0, final: bool = False) -> None:
        log.append(Entry(len(log) + 1, 1, body, pulse, final))
        member.take(log[-1])

    for pulse in range(1, pulses + 1):
        scripts["made"].there += 3
        scripts["away"].there += 0 if 2 < pulse < 6 else 4
        scripts["away"].reachable = not 2 < pulse < 6
        pushed = pushed_rows("first", "p", pulse, [110 * pulse, 110 * pulse - 70])
        take(pushed)
        body, final = member.feeder.poll(NOON + 120 * pulse, 1)
        if pulse % 3:
            take(pushed_rows("second", "q", pulse, [100 * pulse]))  # cut by the pulse after the one that follows
        if pulse % 2:
            take(pushed)  # the producer did not hear of it
        take(body, pulse, final)
    return member, log


def acked(member: Member, lag: dict[str, int]) -> dict[str, int]:
    """The unit of each source up to which all consumers are, some of them behind."""
    return {source: max(0, member.last(source) - lag.get(source, 0)) for source in SOURCES}


def test_the_log_of_these_tests_has_what_it_takes(tmp_path: Path) -> None:
    member, log = make_log(tmp_path, PULSES)
    lasts = member.lasts(SOURCES)
    assert len(set(lasts.values())) > 1, lasts
    assert member.feeder.late_rows > 0
    assert any(lane._open for lane in member.feeder._lanes.values())
    base = member.feeder.base_after(lasts)
    assert base is not None and 0 < base.pulse < PULSES and base.index < len(log)
    assert member.feeder.base_after(lasts) is None
    assert BASE.decode(BASE.encode(base)) == base


LAGS = [{}, {"made": 2}, {"away": 1, "first": 1}]


@pytest.mark.parametrize("lag", LAGS)
def test_a_crash_at_any_entry_changes_nothing(tmp_path: Path, lag: dict[str, int]) -> None:
    reference, log = make_log(tmp_path, PULSES)
    expected = reference.state()
    based, waiting = set(), 0
    # At each of them where all consumers keep up; each of these runs takes as long as the log does.
    for crash in range(1, len(log) + 1, 3 if lag else 1):
        root = tmp_path / str(crash)
        member = new_member(root, tmp_path / "letters")
        for entry in log[:crash]:
            member.take(entry)
            member.trim(acked(member, lag))
        least = acked(member, lag)
        member.close()
        again = new_member(root, tmp_path / "letters", "units-again")
        base = again.log.base
        based.add(base.pulse)
        waiting += len(again.log.read_waiting())
        assert all(unit <= least[source] for source, unit in base.units.items())
        kept = again.log.read()
        assert kept == log[base.index : crash]
        for entry in [*kept, *log[crash:]]:
            if entry.index > crash:
                again.persist(entry)
            again.commit(entry)
        assert again.files() == reference.files(base.units)
        give_all(again)
        assert again.state() == expected
        again.close()
    assert len(based) > 2 and waiting > 0


def give_all(member: Member) -> None:
    """Let the scripts of a member be where those of the reference are at its end."""
    readers: dict[str, Any] = dict(member.feeder._readers)
    readers["made"]._script.there = 3 * PULSES
    readers["away"]._script.there = 4 * (PULSES - 3)


def test_units_that_are_there_are_not_written_again(tmp_path: Path) -> None:
    member, _ = make_log(tmp_path, PULSES)
    member.trim(member.lasts(SOURCES))
    member.close()
    before = {path: path.stat().st_mtime_ns for path in member.units.rglob("*.arrow")}
    again = new_member(tmp_path / "reference", tmp_path / "letters")
    for entry in again.log.read():
        again.commit(entry)
    assert {path: path.stat().st_mtime_ns for path in again.units.rglob("*.arrow")} == before
    first = {header.stream: header.number for header in reversed(again.headers)}
    assert all(number == again.log.base.units[stream.producer.part] + 1 for stream, number in first.items())


@pytest.mark.parametrize("lag", LAGS)
def test_a_newcomer_goes_on_from_a_pinned_copy(tmp_path: Path, lag: dict[str, int]) -> None:
    reference, log = make_log(tmp_path, PULSES)
    donor = new_member(tmp_path / "donor", tmp_path / "letters")
    for entry in log[:-6]:
        donor.take(entry)
    donor.trim(acked(donor, lag))
    donor.log.pin(tmp_path / "newcomer" / "log")
    for entry in log[-6:]:
        donor.take(entry)
        donor.trim(acked(donor, {}))
    newcomer = new_member(tmp_path / "newcomer", tmp_path / "letters")
    assert newcomer.log.base.pulse > 0
    for entry in newcomer.log.read():
        newcomer.commit(entry)
    for entry in log[-6:]:
        newcomer.take(entry)
    assert newcomer.files() == reference.files(newcomer.log.base.units)
    give_all(newcomer)
    give_all(donor)
    assert newcomer.state() == reference.state() == donor.state()


@given(
    lags=st.lists(st.dictionaries(st.sampled_from(SOURCES), st.integers(0, 6)), min_size=3, max_size=3),
    crashes=st.lists(st.integers(1, 12), min_size=3, max_size=3),
)
@settings(max_examples=15, deadline=None)
def test_restarts_one_after_the_other(
    lags: list[dict[str, int]], crashes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("restarts")
    reference, log = make_log(root, PULSES)
    done, member = 0, new_member(root / "member", root / "letters")
    for lag, more in zip(lags, crashes, strict=True):
        for entry in log[done : done + more]:
            member.take(entry)
            member.trim(acked(member, lag))
        done = min(len(log), done + more)
        member.close()
        member = new_member(root / "member", root / "letters")
        for entry in member.log.read():
            member.commit(entry)
    for entry in log[done:]:
        member.take(entry)
    assert member.files() == reference.files()
    give_all(member)
    assert member.state() == reference.state()


def test_a_failed_source_keeps_the_log_and_its_return_lets_it_go(tmp_path: Path) -> None:
    scripts: dict[str, Any] = {"good": Script(range(0, 2_000, 20)), "bad": Script([10, 40, 1_200])}
    member = Member(make_flow(scripts), tmp_path / "member", tmp_path / "letters")
    scripts["bad"].there = 2
    for pulse in range(1, 12):
        scripts["good"].there += 5
        scripts["bad"].reachable = pulse in (1, 11)
        body, final = member.feeder.poll(NOON + 100 * pulse, 1)
        member.take(Entry(pulse, 1, body, pulse, final))
        # Units of the other source are with consumers only as far as they go together with those of the failed one.
        together = min(member.lasts(["good", "bad"]).values())
        member.trim({"good": together, "bad": together})
        if pulse < 11:
            assert member.log.base.pulse == 0
    assert member.last("bad") > 5 and member.log.base.pulse >= 9
    assert len(member.log.read_all()) <= 3


def test_the_directory_of_a_node_says_where_outboxes_begin(tmp_path: Path) -> None:
    dirs = ReplicaDirs(tmp_path)
    dirs.identity()
    ingress = ReplicaId(ShardId("ingress", 0), 0)
    dirs.begin([ingress])
    assert dirs.state(ingress).log.units == {}
    log = dirs.ingress_log(ingress)
    log.mkdir(parents=True)
    lanes = {"a": BucketState(0, 0, 0, 0, top=17), "b": BucketState(0, 0, 0, 0, top=3)}
    IngressBase(9, 4, lanes={name: state.base() for name, state in lanes.items()}).write(log)
    stream = StreamId(ShardId("a", 0), ShardId("sums", 0))
    (dirs.store.outbox_dir(ingress) / str(stream)).mkdir(parents=True)
    state = dirs.state(ingress)
    assert state.log.units == {"a": 17, "b": 3} and state.committed == 4
    assert state.outboxes[stream].base == 17


def test_a_producer_that_leaves_takes_no_place_in_its_sequence(tmp_path: Path) -> None:
    member = Member(make_flow({"first": push_source()}), tmp_path / "member", tmp_path / "letters")
    member.feeder.take_push(Entry(1, 1, PushBatch("first", "p", 1, b"{}").to_bytes()))
    member.feeder.take_push(Entry(2, 1, PushBatch("first", "p", 0, b"", sign="leaving").to_bytes()))
    body, final = member.feeder.poll(NOON + 500, 1)
    member.commit(Entry(3, 1, body, 1, final))
    body, final = member.feeder.poll(NOON + 900, 1)
    member.commit(Entry(4, 1, body, 2, final))
    base = member.feeder.base_after({"first": member.last("first")})
    assert base is not None and base.ledgers["first"] == (("p", 1),) and base.waiting["first"] == ()


# --- producers that are waited for ------------------------------------------------------------------------------------

HEARTBEAT_MS = 500


def heeding(root: Path) -> Member:
    """A member with one source, whose producers are to give signs of life."""
    return Member(make_flow({"first": Push(SCHEMA, heartbeat=HEARTBEAT_MS)}), root, root / "letters")


def leave(producer: str) -> bytes:
    return PushBatch("first", producer, 0, b"", sign="leaving").to_bytes()


def run(member: Member, entries: list[bytes | int]) -> list[bool]:
    """Log these pushes, and a pulse for each time of a cut; whether the source was reachable at each of them."""
    index, pulse, out = member.log.base.index, member.log.base.pulse, []
    for what in entries:
        index += 1
        if isinstance(what, bytes):
            entry = Entry(index, 1, what)
            member.persist(entry)
            member.feeder.take_push(entry, NOON + 100)
            continue
        body, final = member.feeder.poll(NOON + what, 1)
        pulse += 1
        member.take(Entry(index, 1, body, pulse, final))
        out.append(PULSE.decode(body).unreachable == ())
    return out


def restarted(member: Member, root: Path) -> Member:
    """The same once more from its disk, on which nothing is left of the log but the base."""
    member.trim({"first": member.last("first")})
    member.close()
    again = heeding(root)
    assert again.log.base.pulse > 0
    for entry in again.log.read():
        if entry.pulse:
            again.commit(entry)
        else:
            again.feeder.take_push(entry)
    return again


def test_a_producer_that_failed_is_waited_for_after_a_restart(tmp_path: Path) -> None:
    first = [pushed_rows("first", name, 1, [50]) for name in ("p", "q", "r")]
    member = heeding(tmp_path)
    assert run(member, [*first, 200, leave("r"), 400, 500]) == [True] * 3
    again = restarted(member, tmp_path)
    assert again.log.base.producers == {"first": ("p", "q")}
    last, reader = again.last("first"), again.feeder.push_readers()["first"]
    assert run(again, [60_000]) == [False], "neither p nor q was heard for a minute, whenever this node began"
    assert again.last("first") == last, "the clock closes nothing that they may still have rows of"
    reader.hear(PushBatch("first", "p", 0, b"", sign="alive"), NOON + 61_000)
    reader.hear(PushBatch("first", "r", 0, b"", sign="alive"), NOON + 61_000)
    assert not reader.poll(None, NOON + 61_100).reachable
    reader.hear(PushBatch("first", "q", 0, b"", sign="alive"), NOON + 61_100)
    assert reader.poll(None, NOON + 61_200).reachable


def test_entries_that_are_taken_again_do_not_count_as_heard_just_now(tmp_path: Path) -> None:
    member = heeding(tmp_path)
    assert (
        run(member, [pushed_rows("first", "p", 1, [50]), 200, pushed_rows("first", "p", 2, [390]), 400]) == [True] * 2
    )
    member.close()
    again = heeding(tmp_path)
    reader = again.feeder.push_readers()["first"]
    alive = PushBatch("first", "p", 0, b"", sign="alive")
    for entry in again.log.read():
        if entry.pulse:
            again.commit(entry)
        else:
            again.feeder.take_push(entry)
    assert reader.poll(None, NOON + 400 + HEARTBEAT_MS).reachable, "the cut after its last rows is when it was heard"
    assert not reader.poll(None, NOON + 401 + HEARTBEAT_MS).reachable
    reader.hear(alive, NOON + 70_000)
    again.feeder.take_push(Entry(9, 1, pushed_rows("first", "p", 3, [395])))
    assert reader.poll(None, NOON + 70_001).reachable, "a sign of life is newer than what is taken again"


def test_a_leave_counts_although_rows_before_it_wait_to_be_cut(tmp_path: Path) -> None:
    member = heeding(tmp_path)
    rows = [pushed_rows("first", name, 1, [50]) for name in ("p", "q")]
    run(member, [rows[0], 200, 300, 400, 500])
    base = member.feeder.base_after({"first": member.last("first")})
    assert base is not None and base.producers == {"first": ("p",)}
    waiting = [Entry(base.index - 1, 1, rows[1])]
    again = BucketFeeder(
        make_flow({"first": Push(SCHEMA, heartbeat=HEARTBEAT_MS)}),
        UnitWriter(lambda name: (), member.store, member.path),
        DeadLetters(tmp_path / "letters"),
        base,
        waiting,
        lambda name, reader: Inline(),
    )
    assert list(again.push_readers()["first"]._heard) == ["p"], "q has left, as the base says"
