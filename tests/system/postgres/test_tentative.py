"""Tentative rows in PostgreSQL: beside the stable ones, once, and gone in the moment in which those are there."""

from __future__ import annotations

import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from kit.delivering import STREAM, Deliverer, Orders, deliver, guess, header, tentative, unit
from kit.postgres.place import Place
from kit.support import wait_until
from unbroken.connectors.postgres.sink import PostgresWriter
from unbroken.errors import UnbrokenError

OTHER = "totals.1>out.0"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name ~ 'unbroken'"
NEWEST = "SELECT DISTINCT ON (k) k, v, status FROM results ORDER BY k, status DESC"


def there(place: Place) -> list[tuple[Any, ...]]:
    """Status, unit (or, negative, the pulse of a tentative one) and number of rows of all that is in the table."""
    return place.query("SELECT status, unit, count(*) FROM results GROUP BY 1, 2 ORDER BY 1, abs(unit)")


def test_stable_rows_take_the_place_of_tentative_ones(place: Place) -> None:
    first, second = place.writer(status="status"), place.writer(status="status")
    assert place.sink(status="status").tentative and not place.sink().tentative
    assert first.deliver(header(1), unit(1))
    assert second.deliver_tentative(tentative(1, 2), guess(2)) and first.deliver_tentative(tentative(2, 4), guess(4))
    assert there(place) == [("stable", 1, 5), ("tentative", -2, 5), ("tentative", -4, 5)]
    marks = place.query("SELECT DISTINCT status, status_pulse, status_since, status_stream FROM results ORDER BY 2")
    owner = f"orders/out/{STREAM}"
    assert marks == [("stable", 1, None, None), ("tentative", 2, 1, owner), ("tentative", 4, 2, owner)]
    assert second.deliver(header(2), unit(2))
    assert there(place) == [("stable", 1, 5), ("stable", 2, 5), ("tentative", -4, 5)]
    assert first.deliver(header(3), unit(3)) and not second.deliver(header(3), unit(3))
    assert there(place)[-1] == ("tentative", -4, 5)
    assert first.deliver(header(4), unit(4).slice(0, 0)), "one without rows replaces others, too"
    assert there(place) == [("stable", n, 5) for n in (1, 2, 3)]
    ledger = place.query("SELECT stream, number FROM ledger ORDER BY 1")
    assert ledger == [(STREAM, 4), (f"{STREAM}~", 4)]
    told = place.sink(status="status").occupied()
    assert told is not None and "DELETE FROM" in told
    for writer in (first, second):
        writer.close()


def test_a_pulse_that_is_there_is_not_delivered_again(place: Place) -> None:
    first, second = place.writer(status="status"), place.writer(status="status")
    assert first.deliver_tentative(tentative(0, 3), guess(3))
    for since, pulse in ((0, 3), (1, 3), (0, 2)):
        assert not second.deliver_tentative(tentative(since, pulse), guess(pulse))
    assert first.deliver(header(5), unit(5).slice(0, 0))
    assert not second.deliver_tentative(tentative(3, 5), guess(5)) and there(place) == []
    assert second.deliver_tentative(tentative(5, 6), guess(6).slice(0, 0))
    assert second.deliver_tentative(tentative(5, 6), guess(6)) and there(place) == [("tentative", -6, 5)]
    for writer in (first, second):
        writer.close()


def test_streams_and_sinks_have_their_own(place: Place) -> None:
    writer = place.writer(status="status")
    for stream in (STREAM, OTHER):
        assert writer.deliver_tentative(tentative(0, 1, stream), guess(1, stream=stream))
    another = place.sink(status="status")
    another.identity = "orders/elsewhere"
    elsewhere = another.open(None)  # type: ignore[arg-type]
    assert elsewhere.deliver_tentative(tentative(0, 1), guess(1))
    assert writer.deliver(header(1, "totals@2.0>out.0"), unit(1))
    left = place.query("SELECT status_stream, count(*) FROM results WHERE status = 'tentative' GROUP BY 1 ORDER BY 1")
    assert left == [(f"orders/elsewhere/{STREAM}", 5), (f"orders/out/{OTHER}", 5)]
    writer.close()
    elsewhere.close()


@pytest.mark.parametrize("parameters", [{}, {"mode": "upsert", "key": ["stream", "unit", "row"]}])
def test_one_that_covers_more_takes_the_place_of_others(place: Place, parameters: dict[str, Any]) -> None:
    writer = place.writer(status="status", **parameters)
    for since in (1, 2, 3):
        assert writer.deliver_tentative(tentative(since, since + 1), guess(since + 1))
    assert writer.deliver_tentative(tentative(2, 6), guess(6))
    assert there(place) == [("tentative", -2, 5), ("tentative", -6, 5)]
    assert writer.deliver_tentative(tentative(5, 7), guess(7))
    assert there(place) == [("tentative", -2, 5), ("tentative", -6, 5), ("tentative", -7, 5)]
    writer.close()


class TestUpsert:
    def rows(self, values: dict[str, int]) -> pa.Table:
        return pa.table({"k": list(values), "v": list(values.values())})

    def test_a_stable_row_is_not_touched_by_a_tentative_one(self, place: Place) -> None:
        writer = place.writer(mode="upsert", key="k", status="status")
        assert writer.deliver(header(1), self.rows({"a": 1, "b": 1}))
        assert writer.deliver_tentative(tentative(1, 2), self.rows({"a": 20, "c": 20}))
        assert writer.deliver_tentative(tentative(2, 3), self.rows({"a": 30}))
        assert place.query("SELECT k, v FROM results WHERE status = 'stable' ORDER BY 1") == [("a", 1), ("b", 1)]
        assert place.query(NEWEST) == [("a", 30, "tentative"), ("b", 1, "stable"), ("c", 20, "tentative")]
        assert writer.deliver(header(2), self.rows({"b": 2}))
        assert place.query(NEWEST) == [("a", 30, "tentative"), ("b", 2, "stable")], "c was wrong, and is gone"
        assert writer.deliver(header(3), self.rows({"a": 3}))
        assert place.query(NEWEST) == [("a", 3, "stable"), ("b", 2, "stable")]
        assert place.query("SELECT count(*) FROM results WHERE status = 'tentative'") == [(0,)]
        writer.close()

    def test_the_greatest_stays_among_rows_of_a_kind(self, place: Place) -> None:
        writer = place.writer(mode="upsert", key="k", latest="v", status="status")
        assert writer.deliver(header(1), self.rows({"a": 5}))
        assert writer.deliver_tentative(tentative(1, 2), self.rows({"a": 3}))
        assert writer.deliver_tentative(tentative(2, 3), self.rows({"a": 2}))
        assert place.query("SELECT v, status FROM results ORDER BY 1") == [(3, "tentative"), (5, "stable")]
        assert writer.deliver(header(3), self.rows({"a": 6}))
        assert place.query("SELECT v, status FROM results") == [(6, "stable")]
        writer.close()

    def test_a_table_that_is_there_needs_the_status_in_its_key(self, place: Place) -> None:
        place.query("CREATE TABLE results (k text UNIQUE, v bigint)")
        writer = place.writer(mode="upsert", key="k", status="status")
        with pytest.raises(
            UnbrokenError, match=r'no column "status", which status needs; ALTER TABLE .* "status" text'
        ):
            writer.deliver(header(1), self.rows({"a": 1}))
        place.query(
            "ALTER TABLE results ADD COLUMN status text NOT NULL, ADD COLUMN status_pulse bigint NOT NULL, "
            "ADD COLUMN status_since bigint, ADD COLUMN status_stream integer"
        )
        with pytest.raises(UnbrokenError, match='its column "status_stream", which status needs, is of type integer'):
            writer.deliver(header(1), self.rows({"a": 1}))
        place.query("ALTER TABLE results ALTER COLUMN status_stream TYPE text")
        with pytest.raises(UnbrokenError, match=r"no unique constraint on exactly \(k, status\).*ADD UNIQUE"):
            writer.deliver(header(1), self.rows({"a": 1}))
        place.query(
            "ALTER TABLE results DROP CONSTRAINT results_k_key; "
            "ALTER TABLE results ADD UNIQUE NULLS NOT DISTINCT (k, status)"
        )
        assert writer.deliver(header(1), self.rows({"a": 1}))
        assert writer.deliver_tentative(tentative(1, 2), self.rows({"a": 2}))
        assert place.query(NEWEST) == [("a", 2, "tentative")]
        writer.close()


def test_mistakes_are_told(place: Place) -> None:
    writer = place.writer(status="unit")
    with pytest.raises(UnbrokenError, match='The results have a column "unit" themselves; give status another name'):
        writer.deliver(header(1), unit(1))
    writer.close()
    plain = place.writer()
    with pytest.raises(UnbrokenError, match="takes stable results only"):
        plain.deliver_tentative(tentative(0, 1), guess(1))
    plain.close()


def test_it_needs_no_more_rights_than_the_docs_say(place: Place) -> None:
    role = place.schema
    first = place.writer(status="status")
    assert deliver(first, [0, 1])
    first.close()
    place.query(
        f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {role} TO {role}; "
        f"GRANT INSERT, SELECT, DELETE ON results TO {role}; "
        f"GRANT SELECT, INSERT, UPDATE ON ledger TO {role}"
    )
    try:
        writer = place.writer(status="status", url=f"{place.url}?options=-crole%3D{role}")
        assert deliver(writer, [1]) and deliver(writer, [1, 2]) and deliver(writer, [2])
        writer.close()
    finally:
        place.query(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert there(place) == [("stable", 1, 5), ("stable", 2, 5)]


def test_of_a_stable_and_a_tentative_unit_at_the_same_time_the_stable_one_stays(place: Place) -> None:
    """Both have copied their rows; one is held up by a lock on the table, the other begins meanwhile."""
    for first, second, number in (("deliver", "deliver_tentative", 2), ("deliver_tentative", "deliver", 4)):
        with ExitStack() as stack:
            writers = [place.writer(status="status") for _ in range(2)]
            for writer in writers:
                stack.callback(writer.close)
                writer.deliver(header(number - 1), unit(number - 1))
            held = stack.enter_context(psycopg.connect(place.url))
            held.execute(f"LOCK TABLE {place.schema}.results IN SHARE MODE".encode())
            pool = stack.enter_context(ThreadPoolExecutor(2))
            tasks = []
            for writer, kind in zip(writers, (first, second), strict=True):
                tasks.append(pool.submit(_deliver, writer, kind, number))
                count = len(tasks)
                wait_until(lambda count=count: place.query(WAITING) == [(count,)], 30, "it waits")  # type: ignore[misc]
            held.rollback()
            assert [task.result(20) for task in tasks] == [True, second == "deliver"]
        assert ("stable", number, 5) in there(place)
        assert place.query("SELECT count(*) FROM results WHERE status = 'tentative'") == [(0,)]


def _deliver(writer: PostgresWriter, kind: str, number: int) -> bool:
    what = [number] if kind == "deliver" else [number - 1, number]
    return deliver(writer, what)


STEPS = [
    (step, at)
    for at in ([2], [3, 5])
    for step in ("before _stage", "within _stage", "before _put", "within _put", "after _put")
]
UNITS = [[0, 1], [1, 3], [1], [2], [3, 5], [3], [4], [5, 6]]


@pytest.mark.parametrize(("step", "at"), STEPS)
def test_a_writer_that_is_killed_leaves_a_whole_change_or_none(place: Place, step: str, at: list[int]) -> None:
    parameters = {**place.parameters(), "status": "status"}
    with Deliverer(Orders("postgresql", parameters, units=UNITS, step=step, at=at, rows=200)) as killed:
        killed.killed()

    def after(units: list[list[int]]) -> list[tuple[str, int, int]]:
        last = max((what[0] for what in units if len(what) == 1), default=0)
        guesses = [("tentative", -what[1], 200) for what in units if len(what) == 2 and what[1] > last]
        return [*(("stable", number, 200) for number in range(1, last + 1)), *guesses]

    reached = UNITS.index(at)
    possible = [after(UNITS[:reached]), after(UNITS[: reached + 1])]
    assert there(place) in (possible[1:] if step == "after _put" else possible)
    writer = place.writer(status="status")
    for what in UNITS:
        deliver(writer, what, rows=200)
    writer.close()
    assert there(place) == after(UNITS)


@pytest.mark.parametrize("at", [[2], [3, 5]])
def test_a_frozen_writer_holds_nobody_up_and_does_no_harm_when_it_wakes(place: Place, at: list[int]) -> None:
    parameters = {**place.parameters(), "status": "status"}
    orders = Orders("postgresql", parameters, units=UNITS, step="before _put", at=at, signal=signal.SIGSTOP)
    with Deliverer(orders) as frozen:
        frozen.wait_frozen()
        writer = place.writer(status="status")
        began = time.monotonic()
        for what in ([1], [2], [3, 5], [3], [4], [5], [6]):
            deliver(writer, what)
        assert time.monotonic() - began < 20.0
        writer.close()
        frozen.wake()
        frozen.finished()
    assert there(place) == [("stable", number, 5) for number in range(1, 7)]


def test_writers_at_the_same_time(place: Place) -> None:
    """Each has tentative units of its own, cut as it likes; readers never see two of the same pulse, or stale ones."""
    last, ended = 30, threading.Event()

    def write(number: int) -> None:
        chance, writer, since = random.Random(number), place.writer(status="status"), 0
        for stable in range(1, last + 1):
            while since < min(last, stable + 3):
                pulse = since + chance.choice([1, 2, 3])
                deliver(writer, [since, pulse])
                since = pulse
            deliver(writer, [stable])
        writer.close()

    def read() -> None:
        check = (
            "SELECT count(*), count(DISTINCT (status, unit, row)), "
            "coalesce(max(status_pulse) FILTER (WHERE status = 'stable'), 0), "
            "coalesce(min(status_pulse) FILTER (WHERE status = 'tentative'), 1000) FROM results"
        )
        with psycopg.connect(place.url, autocommit=True, options=f"-csearch_path={place.schema}") as connection:
            while not ended.is_set():
                rows, distinct, stable, guessed = connection.execute(check).fetchall()[0]
                assert rows == distinct and guessed > stable

    first = place.writer(status="status")
    deliver(first, [0, 1])
    first.close()
    with ThreadPoolExecutor(4) as pool:
        reading = pool.submit(read)
        writing = [pool.submit(write, number) for number in range(3)]
        try:
            for task in writing:
                task.result(60)
        finally:
            ended.set()
        reading.result(30)
    found = there(place)
    assert found[:last] == [("stable", number, 5) for number in range(1, last + 1)]
    assert all(status == "tentative" and -pulse > last for status, pulse, _ in found[last:])
