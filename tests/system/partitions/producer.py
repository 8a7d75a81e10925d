"""A producer in a place of its own: a process that pushes the rows of a stream when they are due.

The time of row ``n`` follows from ``n`` alone. A batch has all rows that have become due since the one before, so what
could not be pushed for a while comes as soon as it can be.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kit.support import wait_until
from unbroken.client import PushClient
from unbroken.client.push import _Answer, _Batch
from unbroken.errors import UnbrokenError
from unbroken.local.processes import OwnedProcess, spawn, tail
from unbroken.transport.auth import read_token
from unbroken_lab.experiments.flows.interrupted import Stream

RATE = 20
LEAST_ROWS = 4
"""Rows of a batch; more if these had to wait."""

ATTEMPT_S = 2.0
END_S = 60.0


class KeepsWays(PushClient):
    """Goes to the addresses that it was given and to no others.

    A node that does not lead names the leader's own address. Behind proxies that way cannot be cut.
    """

    def _attempt(self, address: str, batch: _Batch, timeout_s: float) -> _Answer:
        return replace(super()._attempt(address, batch, timeout_s), leader=None)


class Producer:
    """A running producer; ``finish`` lets it push what is due and end."""

    def __init__(self, process: OwnedProcess, directory: Path) -> None:
        self.process = process
        self._directory = directory

    def finish(self) -> int:
        """How many rows were pushed, and acknowledged, in all."""
        (self._directory / "stop").touch()
        wait_until(
            lambda: not self.process.alive(), END_S, lambda: f"the producer to end: {tail(self.process.log_file)}"
        )
        assert self.process.returncode == 0, tail(self.process.log_file)
        return int((self._directory / "pushed").read_text())


def start_producer(
    enter: Sequence[str], addresses: Sequence[str], token_file: Path, source: str, directory: Path, *, routed: bool
) -> Producer:
    """Start a producer with the command prefix ``enter``; ``routed`` if the addresses are not those of the nodes."""
    directory.mkdir(parents=True)
    arguments = [str(token_file), source, str(directory), "routed" if routed else "", *addresses]
    command = [*enter, sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {RUN}", *arguments]
    return Producer(spawn(command, log_file=directory / "log"), directory)


RUN = "from system.partitions.producer import main; main(*sys.argv[1:])"


def main(token_file: str, source: str, directory: str, routed: str, *addresses: str) -> None:
    """Push until there is a file ``stop`` in the directory; ``pushed`` then says how many rows that were."""
    make = KeepsWays if routed else PushClient
    place = Path(directory)
    stream = Stream(_now_ms(), RATE)
    pushed = 0

    def told_to_stop() -> bool:
        return (place / "stop").exists()

    def due() -> bool:
        return stream.due(_now_ms()) >= pushed + LEAST_ROWS

    token = read_token(Path(token_file))
    # No node knows itself by the address of a proxy.
    with make(list(addresses), token, source, "till", attempt_s=ATTEMPT_S, bearer=bool(routed)) as client:
        while not told_to_stop():
            wait_until(lambda: due() or told_to_stop(), END_S, "rows to be due")
            through = stream.due(_now_ms())
            _push(client, stream, pushed, through)
            pushed = through
    (place / "pushed").write_text(str(pushed))


def _push(client: PushClient, stream: Stream, start: int, stop: int) -> None:
    """Push rows as one batch, again and again until it is logged."""
    rows = stream.rows(start, stop).select(["at", "number"]).to_pylist()
    logged = False
    while rows and not logged:
        try:
            client.send(rows)
            logged = True
        except UnbrokenError as error:
            print(error, flush=True)


def _now_ms() -> int:
    return int(time.time() * 1000)
