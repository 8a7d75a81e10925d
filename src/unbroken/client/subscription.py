"""Reading a dataflow's results over Arrow Flight: from every replica, the first copy of each unit, once.

from unbroken.client.subscription import subscribe

for result in subscribe("127.0.0.1:2181", "orders", "live", ".unbroken/orders/token"):
    print(result.status, result.table)
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from unbroken.client.arrivals import Arrivals, StreamAtNode, at_home
from unbroken.client.hosts import Hosts, UnitHandlers
from unbroken.client.tentative_view import SILENCE_S, Reconciled, Result, SubscriptionEvent, Undo
from unbroken.coordination.directory import Directory
from unbroken.coordination.routes import Routes
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import NodeId, StreamId
from unbroken.protocol.values.units import UnitHeader
from unbroken.transport.auth import read_token

__all__ = ["Reconciled", "Result", "Subscription", "Undo", "push_addresses", "subscribe"]

BUFFERED_UNITS = 1_024
"""Units waiting for the reader of a subscription; links wait when it is full."""

OPEN_DEADLINE_S = 60.0
LOOK_S = 0.2
"""A waiting reader looks after its links this often."""

GAP_S = 2.0
"""How long a unit that every linked node has passed over is still hoped for: another node may be about to link."""


def subscribe(
    zookeeper: str,
    flow: str,
    sink: str,
    token_file: str | os.PathLike[str],
    *,
    after: int = 0,
    stable_only: bool = False,
    silence_s: float = SILENCE_S,
    routes: Iterable[str] = (),
) -> Subscription:
    """Results of a ``Client()`` or ``Console()`` sink of a running flow, to iterate over or to use in ``with``.

    ``zookeeper`` is the HOST:PORT that `unbroken run` prints, ``token_file`` the ``token`` in the flow's directory.
    See `Subscription` for the rest.
    """
    token = read_token(Path(token_file))
    return Subscription.of(
        zookeeper, flow, sink, token, after=after, stable_only=stable_only, silence_s=silence_s, routes=routes
    )


def push_addresses(zookeeper: str, flow: str, token_file: str | os.PathLike[str]) -> list[str]:
    """Where the nodes of a running flow take pushed rows, for `unbroken.client.push.PushClient`."""
    directory = Directory(zookeeper, flow, token=read_token(Path(token_file)))
    try:
        directory.refresh()
        return [member.push for member in directory.members.values() if member.push]
    finally:
        directory.close()


class Subscription:
    """Results of a sink that clients read, in unit order per shard, each unit once.

    All replicas of the last segment are asked and whichever answers first wins, so a node that dies while
    this runs is not noticed here. Iterating ends after the final unit of every shard of a bounded flow.

    ``after`` is the number of the unit to begin behind, in every shard. With 0 the subscription begins with the
    oldest unit that the nodes still keep. With another number it is all or nothing: ``next`` raises
    UnbrokenError when a unit behind that number is not kept any more. The same happens to a reader that is so
    slow that units are dropped before it has read them: units are never left out silently.

    In a flow with a bound on its delay, tentative results come as well while input is missing, unless ``stable_only``
    leaves them out. What holds for units above holds for stable ones, whatever comes between them; the rules for
    tentative ones are those of `unbroken.client.tentative_view.TentativeView`, which also explains ``silence_s``.
    ``events`` tells when corrections begin and when all of them are there.

    ``routes`` has a ``NODE=HOST:PORT`` for each node that is not reached from here at the address that it announces,
    as ``--route`` of `unbroken node` does.

    When the flow goes over to another generation of its code, the results of one shard come from another part of the
    flow from some unit on. They go on in the same order and under the same stream, that of the segment.
    """

    def __init__(
        self,
        zookeeper: str,
        flow: str,
        sink: str,
        token: str,
        *,
        after: int = 0,
        stable_only: bool = False,
        silence_s: float = SILENCE_S,
        routes: Iterable[str] = (),
    ) -> None:
        self._after = after
        self._stable_only = stable_only
        self._silence_s = silence_s
        self._arrivals = Arrivals([], after, stable_only=stable_only, silence_s=silence_s)
        reader = UnitHandlers(self._begin, self._unit, self._lost)
        self._hosts = Hosts(zookeeper, flow, sink, token, reader, Routes.parse(routes))
        self._results: queue.Queue[SubscriptionEvent | None] = queue.Queue(BUFFERED_UNITS)
        self._overdue: deque[SubscriptionEvent] = deque()
        self._gaps: dict[tuple[StreamId, int], float] = {}
        self._waited_s = 0.0
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @classmethod
    def of(
        cls,
        zookeeper: str,
        flow: str,
        sink: str,
        token: str,
        *,
        after: int = 0,
        stable_only: bool = False,
        silence_s: float = SILENCE_S,
        routes: Iterable[str] = (),
    ) -> Subscription:
        """An open subscription; what has to be known about the sink is read from ZooKeeper."""
        subscription = cls(
            zookeeper, flow, sink, token, after=after, stable_only=stable_only, silence_s=silence_s, routes=routes
        )
        try:
            subscription._open(None, OPEN_DEADLINE_S)
        except BaseException:
            subscription.close()
            raise
        return subscription

    def open(self, part: str, shards: int, deadline_s: float = OPEN_DEADLINE_S) -> None:
        """Link to the nodes that host segment ``part``, whose ``shards`` feed the sink."""
        self._open((part, shards), deadline_s)

    def __iter__(self) -> Iterator[Result]:
        while (result := self.next(None)) is not None:
            yield result
        self.close()

    def events(self) -> Iterator[SubscriptionEvent]:
        """Results to the end, and the marks between them: `Undo` before corrections, `Reconciled` behind the last."""
        while (event := self.next_event(None)) is not None:
            yield event
        self.close()

    def next(self, timeout_s: float | None) -> Result | None:
        """The next result; None after the end, or when none came in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            event = self.next_event(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if event is None or isinstance(event, Result):
                return event

    def next_event(self, timeout_s: float | None) -> SubscriptionEvent | None:
        """The next result or mark; None after the end, or when none came in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed.is_set():
            if self._overdue:
                return self._overdue.popleft()
            wait = LOOK_S if deadline is None else min(LOOK_S, max(0.0, deadline - time.monotonic()))
            try:
                return self._results.get(timeout=wait)
            except queue.Empty:
                self._look_after_links()
            if self.ended and self._results.empty() and not self._overdue:
                return None
            if deadline is not None and time.monotonic() >= deadline and not self._overdue:
                return None
        return None

    @property
    def ended(self) -> bool:
        """Whether the final unit of every shard has arrived; ``next`` may still have some of them to give."""
        return self._arrivals.ended

    @property
    def duplicates(self) -> int:
        """Copies of stable units that came second and were dropped."""
        return self._arrivals.duplicates

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._hosts.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, source: tuple[str, int] | None, deadline_s: float) -> None:
        streams = self._hosts.find(source, deadline_s)
        self._arrivals = Arrivals(streams, self._after, stable_only=self._stable_only, silence_s=self._silence_s)
        self._hosts.start()

    def _look_after_links(self) -> None:
        """Called while no result waits: then a silent link means a silent node, and a hole is not the reader's."""
        self._hosts.check_alive()
        now = time.monotonic()
        if not self._lock.acquire(timeout=LOOK_S):
            return  # a link hands results over just now
        try:
            if self._results.empty():
                # Not into the queue, which only the reader empties, and that is who calls this.
                self._overdue.extend(self._arrivals.tick(self._now_s()))
            self._gaps = {gap: self._gaps.get(gap, now) for gap in self._find_gaps()}
        finally:
            self._lock.release()
        for (stream, wanted), since in self._gaps.items():
            if now - since > GAP_S:
                raise self._gap_error(stream, wanted)

    def _find_gaps(self) -> list[tuple[StreamId, int]]:
        """Streams whose next unit has been passed over by every linked node."""
        found = {stream: self._arrivals.gap(stream, self._hosts.linked(stream)) for stream in self._hosts.streams}
        return [(stream, wanted) for stream, wanted in found.items() if wanted is not None]

    def _gap_error(self, stream: StreamId, wanted: int) -> UnbrokenError:
        kept = self._arrivals.kept(stream, wanted)
        why = (
            "begin with the oldest unit that is kept (after=0)"
            if wanted == self._after + 1
            else "read faster, or let the flow keep more with its setting client_retain"
        )
        return UnbrokenError(
            f"unit {wanted} of {stream} is not kept any more, no node has it and they are at unit {kept}; {why}"
        )

    # --- called from the links' threads ---------------------------------------------------------------

    def _begin(self, stream: StreamId, origin: StreamAtNode) -> tuple[int, int]:
        with self._lock:
            self._arrivals.begins_anew(origin)
            return self._arrivals.wanted(stream)

    def _lost(self, node: NodeId) -> None:
        # What another node has waiting is given out by whoever comes next, a unit or the reader.
        with self._lock:
            self._arrivals.lost(node)

    def _unit(self, node: NodeId, header: UnitHeader, data: pa.Buffer) -> None:
        arrived_ms = time.time() * 1000
        with self._lock:
            ended = self.ended
            ready = self._arrivals.unit(node, header, data, arrived_ms, self._now_s())
            # Handed over under the lock, or another link could overtake with what comes behind these.
            for event in ready:
                self._offer(event)
            if self.ended and not ended:
                self._offer(None)
            through = self._arrivals.consumed(header.stream)
        if header.stable and through is not None:
            self._hosts.acknowledge(at_home(header.stream), through)

    def _now_s(self) -> float:
        """A clock that stands still while results wait for the reader: that is nobody's silence."""
        return time.monotonic() - self._waited_s

    def _offer(self, event: SubscriptionEvent | None) -> None:
        """Wait for room in front of the reader; given up when the subscription is closed."""
        began = time.monotonic()
        while not self._closed.is_set():
            try:
                self._results.put(event, timeout=LOOK_S)
                break
            except queue.Full:
                continue
        self._waited_s += time.monotonic() - began
