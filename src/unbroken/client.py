"""Reading a dataflow's results over Arrow Flight: from every replica, the first copy of each unit, once.

from unbroken.client import subscribe

for result in subscribe("127.0.0.1:2181", "orders", "live", ".unbroken/orders/token"):
    print(result.table)
"""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from unbroken.cluster.directory import Directory
from unbroken.errors import UnbrokenError
from unbroken.protocol.ids import NodeId, ReplicaId, ShardId, StreamId, segment_of
from unbroken.protocol.inbox import Arrival, Inbox
from unbroken.protocol.messages import Ack, Subscribe
from unbroken.protocol.units import UnitHeader
from unbroken.transport.auth import read_token
from unbroken.transport.link import Latest, Link, LinkHandlers
from unbroken.transport.store import decode_unit

HEARTBEAT_S = 0.2
LINK_TIMEOUT_S = 2.0
BUFFERED_UNITS = 1_024
"""Units waiting for the reader of a subscription; links wait when it is full."""

OPEN_DEADLINE_S = 60.0
LOOK_S = 0.2
"""A waiting reader looks after its links this often."""

REFRESH_S = 2.0
"""Nodes that joined or moved are looked for this often; the nodes known already go on being heard."""

LOST_REFRESH_S = 0.2
LOST_S = 15.0
"""After a node is lost its results may move to another one: for this long it is looked for more often."""

CLOSE_S = 2.0
"""Longest wait for the search for nodes to end; a read from ZooKeeper takes at most half of it."""

GAP_S = 2.0
"""How long a unit that every linked node has passed over is still hoped for: another node may be about to link."""


@dataclass(frozen=True)
class Result:
    """One unit of results: its header, its rows, and when it arrived here."""

    header: UnitHeader
    table: pa.Table
    arrived_ms: float


def subscribe(
    zookeeper: str, flow: str, sink: str, token_file: str | os.PathLike[str], *, after: int = 0
) -> Subscription:
    """Results of a ``Client()`` or ``Console()`` sink of a running flow, to iterate over or to use in ``with``.

    ``zookeeper`` is the HOST:PORT that `unbroken run` prints, ``token_file`` the ``token`` in the flow's directory.
    See :class:`Subscription` for ``after``.
    """
    return Subscription.of(zookeeper, flow, sink, read_token(Path(token_file)), after=after)


def push_addresses(zookeeper: str, flow: str) -> list[str]:
    """Where the nodes of a running flow take pushed rows, for :class:`unbroken.push_client.PushClient`."""
    directory = Directory(zookeeper, flow)
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

    When the flow goes over to another generation of its code, the results of one shard come from another part of the
    flow from some unit on. They go on in the same order and under the same stream, that of the segment.
    """

    def __init__(self, zookeeper: str, flow: str, sink: str, token: str, *, after: int = 0) -> None:
        self._zookeeper = zookeeper
        self._flow = flow
        self._sink = sink
        self._token = token
        self._name = f"client-{uuid.uuid4().hex[:12]}"
        self._after = after
        self._directory: Directory | None = None
        self._inboxes: dict[StreamId, Inbox] = {}
        self._begun: set[StreamId] = set()
        self._links: dict[NodeId, Link] = {}
        self._linked: set[NodeId] = set()
        self._sources: dict[tuple[StreamId, NodeId], ReplicaId] = {}
        self._passed: dict[tuple[StreamId, NodeId], int] = {}
        self._gaps: dict[tuple[StreamId, int], float] = {}
        self._results: queue.Queue[Result | None] = queue.Queue(BUFFERED_UNITS)
        self._held: dict[tuple[StreamId, int], Result] = {}
        self._final: set[StreamId] = set()
        self._lock = threading.Lock()
        self._latest = Latest()
        self._closed = threading.Event()
        self._refresh_at = 0.0
        self._lost_at = float("-inf")
        self._link_lock = threading.Lock()
        # On a thread of its own: a ZooKeeper that hangs must not hold results up.
        self._finder = threading.Thread(target=self._find_hosts, name="find-hosts", daemon=True)

    @classmethod
    def of(cls, zookeeper: str, flow: str, sink: str, token: str, *, after: int = 0) -> Subscription:
        """An open subscription; what has to be known about the sink is read from ZooKeeper."""
        subscription = cls(zookeeper, flow, sink, token, after=after)
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

    def next(self, timeout_s: float | None) -> Result | None:
        """The next result; None after the end, or when none came in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed.is_set():
            wait = LOOK_S if deadline is None else min(LOOK_S, max(0.0, deadline - time.monotonic()))
            try:
                return self._results.get(timeout=wait)
            except queue.Empty:
                self._look_after_links()
            if self.ended and self._results.empty():
                return None
            if deadline is not None and time.monotonic() >= deadline:
                return None
        return None

    @property
    def ended(self) -> bool:
        """Whether the final unit of every shard has arrived; ``next`` may still have some of them to give."""
        return bool(self._inboxes) and self._final == set(self._inboxes)

    @property
    def duplicates(self) -> int:
        """Copies of units that came second and were dropped."""
        return sum(inbox.duplicates for inbox in self._inboxes.values())

    def close(self) -> None:
        with self._link_lock:
            if self._closed.is_set():
                return
            self._closed.set()
        for link in self._links.values():
            link.close()
        if self._finder.is_alive():
            self._finder.join(timeout=CLOSE_S)
        if self._directory is not None:
            self._directory.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- where the results come from ------------------------------------------------------------------

    def _open(self, source: tuple[str, int] | None, deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s
        self._directory = Directory(self._zookeeper, self._flow)
        while not (self._directory.refresh() and self._directory.layout is not None):
            if time.monotonic() > deadline:
                raise UnbrokenError(f"flow {self._flow} has no layout yet; are all its nodes started?")
            time.sleep(0.1)
        part, shards = source or self._source()
        streams = [StreamId(ShardId(part, i), ShardId(self._sink, 0)) for i in range(shards)]
        self._inboxes = {s: Inbox(s, consumed=self._after, available=self._after) for s in streams}
        self._link()
        self._finder.start()

    def _source(self) -> tuple[str, int]:
        """The segment behind the sink and its number of shards."""
        assert self._directory is not None
        sinks = self._directory.sinks()
        readable = ", ".join(sorted(name for name, sink in sinks.items() if sink.client)) or "none"
        found = sinks.get(self._sink)
        if found is None:
            raise UnbrokenError(f"flow {self._flow} has no sink {self._sink!r}; sinks that can be read: {readable}")
        if not found.client:
            raise UnbrokenError(
                f"sink {self._sink} of flow {self._flow} is written by the nodes, who keep nothing for subscribers. "
                f"Sinks that can be read: {readable}; add a Client() sink to the flow to have one."
            )
        return found.part, found.shards

    def _origins(self, stream: StreamId) -> dict[tuple[StreamId, NodeId], ReplicaId]:
        """Where a stream can be read, by the name it has there. Who is given up by the layout may still send.

        One that takes over alone is asked before it has caught up: nobody else will send what comes next.
        """
        layout = None if self._directory is None else self._directory.layout
        if layout is None:
            return {}
        return {
            (StreamId(replica.shard, stream.consumer), node): replica
            for replica, node in layout.placement.items()
            if _of_segment(replica.shard) == stream.producer
            and replica in (layout.full(replica.shard) or layout.working(replica.shard))
        }

    def _find_hosts(self) -> None:
        """Look for nodes that joined or moved until the subscription is closed."""
        assert self._directory is not None
        while not self._closed.wait(LOST_REFRESH_S):
            now = time.monotonic()
            if now < self._refresh_at and now > self._lost_at + LOST_S:
                continue
            self._refresh_at = now + REFRESH_S
            if self._directory.refresh():
                self._link()

    def _link(self) -> None:
        """Link to every host that is a member, at the address it has."""
        assert self._directory is not None
        members = self._directory.members
        hosts = {node for stream in self._inboxes for _, node in self._origins(stream)}
        for node in sorted(hosts & set(members)):
            with self._link_lock:
                if not self._closed.is_set():
                    self._link_to(node, members[node].address)
        self._turn_to_newcomers()

    def _turn_to_newcomers(self) -> None:
        """Subscribe at linked nodes that have a replica to read from and have not been asked yet."""
        for stream in self._inboxes:
            for origin, replica in self._origins(stream).items():
                there, node = origin
                with self._lock:
                    wanted = self._inboxes[stream].available
                    if self._sources.get(origin) == replica or node not in self._linked:
                        continue
                    self._sources[origin] = replica
                    self._passed.pop(origin, None)
                self._links[node].send(Subscribe(there, self._name, wanted))

    def _link_to(self, node: NodeId, address: str) -> None:
        known = self._links.get(node)
        if known is not None and known.address == address:
            return
        if known is not None:
            known.close()
        handlers = self._latest.replace(node, LinkHandlers(up=self._up, lost=self._lost, unit=self._unit))
        self._links[node] = Link(
            self._name, node, address, self._token, handlers, heartbeat_s=HEARTBEAT_S, timeout_s=LINK_TIMEOUT_S
        )
        self._links[node].start()

    def _look_after_links(self) -> None:
        """Called while no result waits: then a silent link means a silent node, and a hole is not the reader's."""
        for link in list(self._links.values()):
            link.check_alive()
        now = time.monotonic()
        if not self._lock.acquire(timeout=LOOK_S):
            return  # a link hands results over just now
        try:
            self._gaps = {gap: self._gaps.get(gap, now) for gap in self._find_gaps()}
        finally:
            self._lock.release()
        for (stream, wanted), since in self._gaps.items():
            if now - since > GAP_S:
                raise self._gap_error(stream, wanted)

    def _find_gaps(self) -> list[tuple[StreamId, int]]:
        """Streams whose next unit has been passed over by every linked node.

        A node sends the units of a stream in order: once it has sent a later one, it has dropped what is missing.
        """
        out: list[tuple[StreamId, int]] = []
        for stream, inbox in self._inboxes.items():
            wanted = inbox.available + 1
            heard = [self._passed.get(origin, 0) for origin in self._origins(stream) if origin[1] in self._linked]
            if heard and min(heard) > wanted and stream not in self._final:
                out.append((stream, wanted))
        return out

    def _gap_error(self, stream: StreamId, wanted: int) -> UnbrokenError:
        kept = min(n for (there, _), n in self._passed.items() if _at_home(there) == stream and n > wanted)
        why = (
            "begin with the oldest unit that is kept (after=0)"
            if wanted == self._after + 1
            else "read faster, or let the flow keep more with its setting client_retain"
        )
        return UnbrokenError(
            f"unit {wanted} of {stream} is not kept any more, no node has it and they are at unit {kept}; {why}"
        )

    # --- called from the links' threads ---------------------------------------------------------------

    def _up(self, node: NodeId) -> None:
        with self._lock:
            self._linked.add(node)
        self._turn_to_newcomers()

    def _lost(self, node: NodeId) -> None:
        self._lost_at = time.monotonic()
        with self._lock:
            self._linked.discard(node)
            self._sources = {key: replica for key, replica in self._sources.items() if key[1] != node}

    def _unit(self, node: NodeId, header: UnitHeader, data: pa.Buffer) -> None:
        arrived_ms = time.time() * 1000
        there, stream = header.stream, _at_home(header.stream)
        if there != stream:
            header = replace(header, stream=stream)
        with self._lock:
            self._passed[there, node] = header.number
            if stream not in self._begun:
                self._begun.add(stream)
                if self._after == 0 and header.number > 1:
                    # Older units are dropped: this is the oldest one there is.
                    self._inboxes[stream] = Inbox(stream, header.number - 1, header.number - 1)
            inbox = self._inboxes[stream]
            if inbox.arrive(header) is Arrival.ACCEPTED:
                self._held[stream, header.number] = Result(header, decode_unit(data)[1], arrived_ms)
            ready = self._take(inbox)
            through = inbox.consumed
            # Handed over under the lock, or another link could overtake with the units behind these.
            for result in ready:
                self._offer(result)
            if ready and self.ended:
                self._offer(None)
        for origin, host in self._origins(stream):
            if (link := self._links.get(host)) is not None:
                link.send(Ack(origin, self._name, through))

    def _take(self, inbox: Inbox) -> list[Result]:
        """The results that are next in order."""
        numbers = range(inbox.consumed + 1, inbox.available + 1)
        ready = [self._held.pop((inbox.stream, number)) for number in numbers]
        inbox.consume(inbox.available)
        self._final |= {result.header.stream for result in ready if result.header.final}
        return ready

    def _offer(self, result: Result | None) -> None:
        """Wait for room in front of the reader; given up when the subscription is closed."""
        while not self._closed.is_set():
            try:
                self._results.put(result, timeout=LOOK_S)
                return
            except queue.Full:
                continue


def _of_segment(shard: ShardId) -> ShardId:
    """The shard by the name of its segment, whatever generation of its code it runs."""
    return ShardId(segment_of(shard.part), shard.index)


def _at_home(stream: StreamId) -> StreamId:
    """A stream as subscribers know it."""
    return StreamId(_of_segment(stream.producer), stream.consumer)
