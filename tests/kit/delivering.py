"""Units for sinks, and processes that deliver them and stop at a given step of it.

Run as a program it is such a process; see `Deliverer`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from kit.places import ROOT, TESTS
from unbroken.connectors.base import SinkConnector, SinkWriter
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import ShardId, StreamId, fork_of
from unbroken.protocol.values.run import NO_RUN
from unbroken.protocol.values.units import Digest, UnitHeader

IDENTITY = "orders/out"
STREAM = "totals.0>out.0"
PATIENCE_S = 30.0


def header(number: int, stream: str = STREAM, cut_ms: int | None = None) -> UnitHeader:
    cut = 1_000_000 + 500 * number if cut_ms is None else cut_ms
    return UnitHeader(StreamId.parse(stream), number, number, cut, Digest(number, number))


def tentative(since: int, pulse: int, stream: str = STREAM) -> UnitHeader:
    """A tentative unit of a stream, of the pulses after ``since`` up to ``pulse``."""
    home = header(pulse, stream)
    producer = home.stream.producer
    fork = StreamId(ShardId(fork_of(producer.part), producer.index), home.stream.consumer)
    return replace(home, stream=fork, number=1, stable=False, since=since)


def guess(pulse: int, rows: int = 5, stream: str = STREAM) -> pa.Table:
    """Some rows of a tentative unit: they say of which pulse, as a negative number."""
    return unit(-pulse, rows, stream)


def unit(number: int, rows: int = 5, stream: str = STREAM) -> pa.Table:
    """Some rows that say which unit they are of."""
    return pa.table(
        {
            "stream": pa.array([stream] * rows),
            "unit": pa.array([number] * rows, pa.int64()),
            "row": pa.array(range(rows), pa.int64()),
            "text": pa.array([f"{number}-{row}-" + "x" * 90 for row in range(rows)]),
        }
    )


def expected(last: int, rows: int = 5, stream: str = STREAM) -> list[tuple[str, int, int]]:
    """What a sink holds after units 1 to ``last``, sorted."""
    return [(stream, number, row) for number in range(1, last + 1) for row in range(rows)]


@dataclass(frozen=True)
class Orders:
    """What a process is to deliver, and where it stops: ``step`` is such as 'before _put'.

    ``units`` may say which units instead of 1 to ``last``: ``[number]``, or ``[since, pulse]`` for a tentative one. It
    stops at number or pulse ``at_unit``, or at the unit ``at``.
    """

    sink: str
    parameters: dict[str, Any]
    streams: list[str] = field(default_factory=lambda: [STREAM])
    last: int = 3
    rows: int = 5
    step: str | None = None
    at_unit: int = 2
    units: list[list[int]] | None = None
    at: list[int] | None = None
    signal: int = signal.SIGKILL


class Deliverer:
    """A process that delivers units 1 to ``last`` like a node does, again and again if the sink fails.

    It sends itself the signal when it comes to the step: killed, or frozen until it is woken.
    """

    def __init__(self, orders: Orders) -> None:
        source = ROOT / "src"
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(asdict(orders))],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(TESTS)])},
        )

    def __enter__(self) -> Deliverer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)

    def wait_frozen(self) -> None:
        # Not needed by the processes themselves, which have to start quickly.
        import psutil

        from kit.support import wait_until

        known = psutil.Process(self.process.pid)
        wait_until(lambda: known.status() == psutil.STATUS_STOPPED, PATIENCE_S, "the process freezes")

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def killed(self) -> None:
        """Wait until it has killed itself."""
        assert self.process.wait(PATIENCE_S) == -signal.SIGKILL

    def finished(self) -> list[list[Any]]:
        """Wait until it has delivered everything; stream, unit and whether it was written, for each that came back."""
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0
        return [json.loads(line) for line in out.splitlines()]


def deliver_all(writer: SinkWriter, last: int, rows: int = 5, stream: str = STREAM) -> list[bool]:
    return [writer.deliver(header(n, stream), unit(n, rows, stream)) for n in range(1, last + 1)]


def opened(orders: Orders) -> SinkWriter:
    if orders.sink == "postgresql":
        from unbroken import PostgreSQL

        sink: SinkConnector = PostgreSQL(**orders.parameters)
    elif orders.sink == "parquet":
        from unbroken import Parquet

        sink = Parquet(**orders.parameters)
    else:
        from unbroken import Delta

        sink = Delta(**orders.parameters)
    sink.identity = IDENTITY
    return sink.open(Path())


def stop_at(writer: SinkWriter, step: str, due: Callable[[], bool], how: int) -> None:
    """Let the process send itself a signal before, after or within a step; ``due`` says whether it is the time."""
    when, path = step.split()
    *owners, name = path.split(".")
    owner = reduce(getattr, owners, writer)
    original = getattr(owner, name)

    def stop() -> None:
        if due():
            os.kill(os.getpid(), how)

    if step == "within _stage":
        _stop_within_copy(stop)
    elif step == "within _put":
        # The message is with the server, its answer is not here.
        def sent(connection: Any, prepared: Any, header: UnitHeader) -> bool:
            if not due():
                return bool(original(connection, prepared, header))
            put = prepared.put(IDENTITY, NO_RUN, header)
            connection.pgconn.send_query(put.as_bytes(connection))
            connection.pgconn.flush()
            os.kill(os.getpid(), how)
            raise AssertionError("cannot go on from here")

        setattr(owner, name, sent)
    else:

        def stopping(*arguments: Any) -> Any:
            if when == "before":
                stop()
            answer = original(*arguments)
            if when == "after":
                stop()
            return answer

        setattr(owner, name, stopping)


def _stop_within_copy(stop: Callable[[], None]) -> None:
    from unbroken.connectors.postgres import sink as postgres

    original = postgres.copy_data

    def halves(*arguments: Any) -> Iterator[bytes]:
        for data in original(*arguments):
            middle = len(data) // 2
            yield data[:middle]
            stop()
            yield data[middle:]

    postgres.copy_data = halves  # type: ignore[assignment]


def main(orders: Orders) -> None:
    writer = opened(orders)
    now: list[list[int]] = [[]]
    stopped = [False]

    def due() -> bool:
        if stopped[0] or not (now[0] == orders.at if orders.at is not None else now[0][-1:] == [orders.at_unit]):
            return False
        stopped[0] = True
        return True

    if orders.step is not None:
        stop_at(writer, orders.step, due, orders.signal)
    end = time.monotonic() + PATIENCE_S
    units = [[number] for number in range(1, orders.last + 1)] if orders.units is None else orders.units
    for what in units:
        now[0] = what
        for stream in orders.streams:
            while True:
                try:
                    print(json.dumps([stream, what[-1], deliver(writer, what, stream, orders.rows)]), flush=True)
                    break
                except UnbrokenError as error:
                    print(f"again: {error}", file=sys.stderr, flush=True)
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.02)
    writer.close()


def deliver(writer: SinkWriter, what: list[int], stream: str = STREAM, rows: int = 5) -> bool:
    """Deliver the unit ``[number]``, or the tentative one ``[since, pulse]``."""
    if len(what) == 1:
        return writer.deliver(header(what[0], stream), unit(what[0], rows, stream))
    since, pulse = what
    return writer.deliver_tentative(tentative(since, pulse, stream), guess(pulse, rows, stream))


if __name__ == "__main__":
    main(Orders(**json.loads(sys.argv[1])))
