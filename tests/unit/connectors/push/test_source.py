"""Pushed batches: their form in the log, the reader of committed ones, and the ledger of what is logged."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.connectors.push.ledger import PushLedger
from unbroken.connectors.push.source import Push, PushBatch, PushReader
from unbroken.errors import InvariantViolation, UnbrokenError

SOURCE = Push("n long")


def batch(sequence: int, rows: bytes, producer: str = "p") -> PushBatch:
    return PushBatch("clicks", producer, sequence, rows)


def arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@given(st.text(), st.text(), st.integers(0, 2**63), st.binary(), st.sampled_from(["json", "arrow"]))
def test_a_batch_comes_back_from_its_bytes(source: str, producer: str, sequence: int, rows: bytes, form: str) -> None:
    made = PushBatch(source, producer, sequence, rows, form)  # type: ignore[arg-type]
    assert PushBatch.from_bytes(made.to_bytes()) == made


@settings(max_examples=200)
@given(st.binary(max_size=40), st.integers(0, 80))
def test_other_bytes_are_refused(junk: bytes, cut: int) -> None:
    whole = batch(1, b'{"n":1}').to_bytes()
    for data in (junk, whole[:cut], whole + junk + b"x"):
        if data != whole:
            with pytest.raises(UnbrokenError, match="not a pushed batch"):
                PushBatch.from_bytes(data)


def test_committed_batches_are_read_by_their_place_in_the_log() -> None:
    reader: PushReader = SOURCE.open()
    assert reader.poll(None, 0).position == 0
    reader.take(3, batch(1, b'{"n":1}\n{"n":2}\n'))
    first = reader.poll(None, 0).position
    reader.take(5, batch(2, b'{"n":3}\n'))
    second = reader.poll(first, 0).position
    assert (first, second) == (3, 5)
    assert reader.read(None, first).table.column("n").to_pylist() == [1, 2]
    assert reader.read(first, second).table.column("n").to_pylist() == [3]
    assert reader.read(None, second).table.column("n").to_pylist() == [1, 2, 3]
    assert reader.read(second, second).table.num_rows == 0
    assert reader.poll(9, 0).position == 9


def test_bad_rows_name_producer_sequence_and_line() -> None:
    reader = SOURCE.open()
    reader.take(1, batch(4, b'{"n":1}\nnull\n{"n":"x"}\n'))
    rows = reader.read(None, 1)
    assert rows.table.num_rows == 1 and [bad.origin for bad in rows.bad] == ["p/4:2", "p/4:3"]


def test_arrow_batches_are_read_and_fitted() -> None:
    reader = SOURCE.open()
    good = PushBatch("clicks", "p", 1, arrow(pa.table({"n": pa.array([1, 2], pa.int16()), "x": [0, 0]})), "arrow")
    wrong = PushBatch("clicks", "p", 2, arrow(pa.table({"n": ["a"]})), "arrow")
    junk = PushBatch("clicks", "p", 3, b"junk", "arrow")
    for index, each in enumerate((good, wrong, junk), start=1):
        reader.take(index, each)
    rows = reader.read(None, 3)
    assert rows.table.column("n").to_pylist() == [1, 2]
    assert [bad.origin for bad in rows.bad] == ["p/2", "p/3"]
    assert SOURCE.refusal(good) is None
    assert "column 'n' is string" in str(SOURCE.refusal(wrong))
    assert "not an Arrow IPC stream" in str(SOURCE.refusal(junk))


def test_forgotten_batches_are_gone_and_asking_for_them_is_an_error() -> None:
    reader = SOURCE.open()
    for index in (1, 2, 4):
        reader.take(index, batch(index, b'{"n":%d}' % index))
    assert reader.buffered_bytes == 21
    reader.forget(2)
    assert reader.buffered_bytes == 7
    assert reader.read(2, 4).table.column("n").to_pylist() == [4]
    assert reader.read(1, 1).table.num_rows == 0
    with pytest.raises(UnbrokenError, match="up to 2 are dropped"):
        reader.read(1, 4)
    with pytest.raises(InvariantViolation):
        reader.take(4, batch(9, b""))


def test_wrong_declarations_are_explained() -> None:
    assert SOURCE.problems() == []
    assert len(Push("n long", max_body_bytes=0, max_line_bytes=0).problems()) == 2


def test_the_ledger_tells_new_from_sent_again() -> None:
    ledger = PushLedger()
    assert ledger.accept("p", 5) == "new"
    assert ledger.accept("p", 6) == "new"
    assert ledger.accept("p", 9) == "gap-ok"
    assert ledger.accept("p", 9) == "duplicate"
    assert ledger.accept("p", 7) == "duplicate"
    assert ledger.accept("q", 1) == "new"
    assert (ledger.last("p"), ledger.last("q"), ledger.last("r")) == (9, 1, None)


def test_a_batch_on_its_way_is_not_logged_again() -> None:
    ledger = PushLedger()
    assert ledger.offer("p", 1) == "new"
    ledger.begin("p", 1)
    assert ledger.offer("p", 1) == "pending"
    assert ledger.offer("p", 2) == "new"
    ledger.begin("p", 4)
    assert ledger.offer("p", 3) == "out-of-order"
    assert ledger.accept("p", 1) == "new"
    assert (ledger.offer("p", 1), ledger.offer("p", 4)) == ("duplicate", "pending")
    assert ledger.accept("p", 4) == "gap-ok"
    assert ledger.offer("p", 4) == "duplicate"
    ledger.check()


def test_a_member_that_becomes_leader_knows_what_is_on_its_way() -> None:
    ledger = PushLedger()
    ledger.begin("gone", 1)
    ledger.reset_pending([("p", 3)])
    assert (ledger.offer("p", 3), ledger.offer("gone", 1)) == ("pending", "new")


def test_the_ledger_is_bounded_by_the_order_of_the_log() -> None:
    ledger = PushLedger(max_producers=2)
    for producer in ("a", "b", "a", "c"):
        ledger.accept(producer, (ledger.last(producer) or 0) + 1)
    assert [producer for producer, _ in ledger.known()] == ["a", "c"]
    assert ledger.accept("b", 1) == "new"


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 6)), max_size=60))
def test_what_the_ledger_accepts_depends_on_the_log_alone(log: list[tuple[str, int]]) -> None:
    leader, follower = PushLedger(3), PushLedger(3)
    accepted: dict[str, list[int]] = {}
    for place, (producer, sequence) in enumerate(log):
        leader.offer(producer, sequence)
        if leader.offer(producer, sequence) in ("new", "gap-ok"):
            leader.begin(producer, sequence)
        verdict = leader.accept(producer, sequence)
        assert follower.accept(producer, sequence) == verdict
        leader.check()
        if verdict != "duplicate":
            accepted.setdefault(producer, []).append(sequence)
        if place == len(log) // 2:
            follower = PushLedger.of(follower.known(), 3)
    assert leader.known() == follower.known()
    if len({producer for producer, _ in log}) <= 3:
        assert all(numbers == sorted(set(numbers)) for numbers in accepted.values())
