"""The PostgreSQL sink with writers that are killed or frozen anywhere, and a server that is."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack

import psutil
import pytest

from kit.delivering import STREAM, Deliverer, Orders, deliver_all, expected, header, unit
from kit.postgres.pg_server import Server
from kit.postgres.place import Place
from kit.support import wait_until
from unbroken.errors import UnbrokenError

STEPS = [
    (1, "after _prepare"),
    (1, "within _put"),
    (2, "before _connect"),
    (2, "before _prepare"),
    (2, "before _stage"),
    (2, "within _stage"),
    (2, "before _put"),
    (2, "within _put"),
    (2, "after _put"),
]
BOUND_S = 20.0
"""How long other replicas may take while one is frozen, on a busy machine."""


@pytest.mark.parametrize(("number", "step"), STEPS)
def test_a_writer_that_is_killed_leaves_a_whole_unit_or_nothing(place: Place, number: int, step: str) -> None:
    with Deliverer(Orders("postgresql", place.parameters(), step=step, at_unit=number, rows=200)) as killed:
        killed.killed()
    if step == "after _put":
        assert place.units() == expected(number, 200)
    else:
        assert place.units() in (expected(number - 1, 200), expected(number, 200))
    writer = place.writer()
    deliver_all(writer, 3, 200)
    writer.close()
    assert place.units() == expected(3, 200)


@pytest.mark.parametrize(
    ("step", "mode"),
    [
        ("before _stage", "append"),
        ("within _stage", "append"),
        ("before _put", "append"),
        ("after _put", "append"),
        ("before _put", "upsert"),
    ],
)
def test_a_frozen_writer_holds_nobody_up_and_does_no_harm_when_it_wakes(place: Place, step: str, mode: str) -> None:
    parameters = place.parameters()
    if mode == "upsert":
        parameters.update(mode="upsert", key=["stream", "unit", "row"])
    orders = Orders("postgresql", parameters, step=step, signal=signal.SIGSTOP, rows=200)
    with Deliverer(orders) as frozen:
        frozen.wait_frozen()
        writer = place.writer(**{name: parameters[name] for name in ("mode", "key") if name in parameters})
        began = time.monotonic()
        deliver_all(writer, 3, 200)
        assert time.monotonic() - began < BOUND_S
        writer.close()
        assert place.units() == expected(3, 200)
        frozen.wake()
        written = frozen.finished()
    assert written == [[STREAM, 1, True], [STREAM, 2, step == "after _put"], [STREAM, 3, False]]
    assert place.units() == expected(3, 200)


def test_the_server_ends_the_session_of_a_writer_that_sleeps_in_a_transaction(place: Place) -> None:
    orders = Orders("postgresql", {**place.parameters(), "timeout": 1.0}, step="before _put", signal=signal.SIGSTOP)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'unbroken orders/out'"
    with Deliverer(orders) as frozen:
        frozen.wait_frozen()
        wait_until(lambda: place.query(sessions) == [(0,)], 30, "the session is ended")
        frozen.wake()
        assert frozen.finished() == [[STREAM, 1, True], [STREAM, 2, True], [STREAM, 3, True]]
    assert place.units() == expected(3)


def test_many_writers_of_the_same_units_at_the_same_time(place: Place) -> None:
    streams = [STREAM, "totals.1>out.0"]
    orders = Orders("postgresql", place.parameters(), streams=streams, last=20)
    with ExitStack() as stack:
        writers = [stack.enter_context(Deliverer(orders)) for _ in range(3)]
        reports = [report for writer in writers for report in writer.finished()]
    assert place.units() == [row for stream in streams for row in expected(20, stream=stream)]
    written = sorted((stream, number) for stream, number, done in reports if done)
    assert written == [(stream, number) for stream in streams for number in range(1, 21)]


def test_a_storm_of_kills_and_freezes(place: Place) -> None:
    """Three replicas deliver; again and again one of them is killed or frozen, wherever it is, and replaced."""
    rng = random.Random(7)
    last = 60
    orders = Orders("postgresql", place.parameters(), last=last, rows=20)

    def delivered() -> int:
        return int(place.query("SELECT coalesce(max(number), 0) FROM ledger")[0][0])

    with ExitStack() as stack:
        running = [stack.enter_context(Deliverer(orders)) for _ in range(3)]
        frozen = []
        wait_until(lambda: place.query("SELECT to_regclass('ledger')") != [(None,)], 20, "there is a ledger")
        for turn in range(4):
            wait_until(lambda turn=turn: delivered() >= 12 * (turn + 1), 20, "units are delivered")  # type: ignore[misc]
            victim = running.pop(rng.randrange(3))
            if turn % 2:
                victim.process.kill()
            else:
                victim.process.send_signal(signal.SIGSTOP)
                frozen.append(victim)
            running.append(stack.enter_context(Deliverer(orders)))
        for replica in running:
            replica.finished()
        assert place.units() == expected(last, 20)
        for replica in frozen:
            replica.wake()
            replica.finished()
    assert place.units() == expected(last, 20)


def test_a_server_that_crashes_and_comes_back(place: Place, server: Server) -> None:
    writer = place.writer()
    assert writer.deliver(header(1), unit(1))
    server.stop()
    with pytest.raises(UnbrokenError, match=r"results of PostgreSQL at host=127\.0\.0\.1"):
        writer.deliver(header(2), unit(2))
    with pytest.raises(UnbrokenError, match="cannot be reached"):
        writer.deliver(header(2), unit(2))
    with pytest.raises(UnbrokenError, match="cannot be reached"):
        place.sink().occupied()
    server.start()
    assert writer.deliver(header(2), unit(2))
    assert writer.deliver(header(2), unit(2)) is False
    server.stop()
    server.start()
    with pytest.raises(UnbrokenError):
        writer.deliver(header(3), unit(3))
    assert writer.deliver(header(3), unit(3))
    writer.close()
    assert place.units() == expected(3)


def test_a_frozen_server_is_given_up(place: Place, server: Server) -> None:
    writer = place.writer(timeout=1.0)
    assert writer.deliver(header(1), unit(1))
    assert server.process is not None
    processes = [server.process.pid, *(child.pid for child in psutil.Process(server.process.pid).children())]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(UnbrokenError, match="no answer within 1 s"):
            writer.deliver(header(2), unit(2))
        with pytest.raises(UnbrokenError, match="cannot be reached"):
            place.sink(url=f"{place.url}?connect_timeout=2").occupied()
        assert time.monotonic() - began < BOUND_S + 3
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
    assert writer.deliver(header(2), unit(2))
    writer.close()
    assert place.units() == expected(2)


def test_a_lock_on_the_table_is_not_waited_for_without_end(place: Place) -> None:
    import psycopg

    writer = place.writer(timeout=1.0)
    assert writer.deliver(header(1), unit(1))
    with psycopg.connect(place.url) as other:
        other.execute(f"LOCK TABLE {place.schema}.results".encode())
        with pytest.raises(UnbrokenError, match="timeout=1 s"):
            writer.deliver(header(2), unit(2))
    # If it was this side that gave up, the server may have gone on as soon as it could.
    writer.deliver(header(2), unit(2))
    writer.close()
    assert place.units() == expected(2)
