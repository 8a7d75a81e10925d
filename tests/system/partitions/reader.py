"""A client in a place of its own: a process that subscribes, and the reader of what it has received.

The process writes each result and each mark to a file, as its length and its pickle, because a subscription cannot be
had in another namespace than that of its process.
"""

from __future__ import annotations

import pickle
import struct
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from kit.support import wait_until
from unbroken.client import Result, SubscriptionEvent, subscribe
from unbroken.local.processes import OwnedProcess, spawn, tail

LENGTH = struct.Struct(">Q")


class Reader:
    """What a client has received so far, in the order of arrival; ``stop`` ends the client."""

    def __init__(self, process: OwnedProcess, file: Path) -> None:
        self.process = process
        self._file = file.open("rb")
        self._events: list[SubscriptionEvent] = []
        self._results: list[Result] = []

    @property
    def events(self) -> Sequence[SubscriptionEvent]:
        """Everything that has come up to now, results and marks; raises if the client has failed."""
        while (event := self._next()) is not None:
            self._events.append(event)
            if isinstance(event, Result):
                self._results.append(event)
        code = self.process.returncode
        if code:
            raise AssertionError(f"the client ended with code {code}:\n{tail(self.process.log_file)}")
        return self._events

    @property
    def results(self) -> Sequence[Result]:
        """The results that have come up to now; raises if the client has failed."""
        return self._results if self.events else []

    @property
    def pulse(self) -> int:
        """The pulse of the latest result; 0 before the first."""
        return self.results[-1].header.pulse if self.results else 0

    def ended(self) -> bool:
        """Whether the client has seen the end of the flow, and everything it has received is in ``results``."""
        return not self.process.alive() and bool(self.results)

    def wait_further(self, further: int, deadline_s: float) -> None:
        """Wait for so many results more."""
        wanted = len(self.results) + further
        wait_until(lambda: len(self.results) >= wanted, deadline_s, lambda: f"result {wanted}: {self._said()}")

    def wait_end(self, deadline_s: float) -> Sequence[Result]:
        """Wait for the end of the flow; all results."""
        wait_until(self.ended, deadline_s, lambda: f"the end of the flow: {self._said()}")
        return self.results

    def longest_gap_s(self, since_s: float, until_s: float | None = None) -> float:
        """The longest time without a result between two moments; the first one is that of an event."""
        arrived = [result.arrived_ms / 1000 for result in self.results]
        end = time.time() if until_s is None else until_s
        return max(b - a for a, b in pairwise([since_s, *(t for t in arrived if since_s < t < end), end]))

    def stop(self) -> None:
        self.process.stop(2.0)
        self._file.close()

    def _next(self) -> SubscriptionEvent | None:
        """The next result or mark, if the file has it whole."""
        place = self._file.tell()
        prefix = self._file.read(LENGTH.size)
        if len(prefix) == LENGTH.size:
            (length,) = LENGTH.unpack(prefix)
            data = self._file.read(length)
            if len(data) == length:
                event: SubscriptionEvent = pickle.loads(data)
                return event
        self._file.seek(place)
        return None

    def _said(self) -> str:
        return f"{len(self._results)} results up to now, the last of pulse {self.pulse}; {tail(self.process.log_file)}"


def start_reader(
    enter: Sequence[str],
    zookeeper: str,
    flow: str,
    sink: str,
    token_file: Path,
    file: Path,
    *,
    routes: Sequence[str] = (),
) -> Reader:
    """Start a client with the command prefix ``enter``; ``file`` is where its results go."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    arguments = [zookeeper, flow, sink, str(token_file), str(file), *routes]
    # The directory of the tests comes with the path of this process.
    command = [*enter, sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {RUN}", *arguments]
    return Reader(spawn(command, log_file=file.with_suffix(".log")), file)


RUN = "from system.partitions.reader import main; main(*sys.argv[1:])"


def main(zookeeper: str, flow: str, sink: str, token_file: str, file: str, *routes: str) -> None:
    """Read until the end of the flow."""
    with subscribe(zookeeper, flow, sink, token_file, routes=routes) as results, Path(file).open("ab") as out:
        for event in results.events():
            data = pickle.dumps(event)
            out.write(LENGTH.pack(len(data)) + data)
            out.flush()
