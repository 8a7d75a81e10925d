"""Reading a dataflow's results over Arrow Flight: from every replica, the first copy of each unit, once."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from unbroken.cluster.coordination import connect, read_layout, read_members
from unbroken.errors import UnbrokenError
from unbroken.protocol.ids import NodeId, ShardId, StreamId
from unbroken.protocol.inbox import Arrival, Inbox
from unbroken.protocol.messages import Ack, Subscribe
from unbroken.protocol.units import UnitHeader
from unbroken.transport.link import Link, LinkHandlers
from unbroken.transport.store import decode_unit

HEARTBEAT_S = 0.2
LINK_TIMEOUT_S = 2.0
BUFFERED_UNITS = 1_024
"""Units waiting for the reader of a subscription; links wait when it is full."""


@dataclass(frozen=True)
class Result:
    """One unit of results: its header, its rows, and when it arrived here."""

    header: UnitHeader
    table: pa.Table
    arrived_ms: float


class Subscription:
    """Results of a ``Client()`` or ``Console()`` sink, in unit order per shard, each unit once.

    All replicas of the last segment are asked and whichever answers first wins, so a node that dies while
    this runs is not noticed here. Iterating ends after the final unit of every shard of a bounded flow.
    """

    def __init__(self, zookeeper: str, flow: str, sink: str, token: str, *, after: int = 0) -> None:
        self._zookeeper = zookeeper
        self._flow = flow
        self._sink = sink
        self._token = token
        self._name = f"client-{uuid.uuid4().hex[:12]}"
        self._after = after
        self._inboxes: dict[StreamId, Inbox] = {}
        self._hosts: dict[StreamId, set[NodeId]] = {}
        self._links: dict[NodeId, Link] = {}
        self._results: queue.Queue[Result | None] = queue.Queue(BUFFERED_UNITS)
        self._held: dict[tuple[StreamId, int], Result] = {}
        self._final: set[StreamId] = set()
        self._lock = threading.Lock()
        self._closed = False

    def open(self, part: str, shards: int, deadline_s: float = 60) -> None:
        """Link to the nodes that host segment ``part``, whose ``shards`` feed the sink."""
        client = connect(self._zookeeper, 10)
        try:
            self._find(client, part, shards, time.monotonic() + deadline_s)
        finally:
            client.stop()
            client.close()
        for link in self._links.values():
            link.start()

    def __iter__(self) -> Iterator[Result]:
        while (result := self.next(None)) is not None:
            yield result

    def next(self, timeout_s: float | None) -> Result | None:
        """The next result; None after the end, or when none came in time."""
        try:
            return self._results.get(timeout=timeout_s)
        except queue.Empty:
            for link in self._links.values():
                link.check_alive()
            return None

    @property
    def ended(self) -> bool:
        """Whether the final unit of every shard has arrived."""
        return bool(self._inboxes) and self._final == set(self._inboxes)

    @property
    def duplicates(self) -> int:
        """Copies of units that came second and were dropped."""
        return sum(inbox.duplicates for inbox in self._inboxes.values())

    def close(self) -> None:
        self._closed = True
        for link in self._links.values():
            link.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _find(self, client: object, part: str, shards: int, deadline: float) -> None:
        streams = [StreamId(ShardId(part, i), ShardId(self._sink, 0)) for i in range(shards)]
        self._inboxes = {s: Inbox(s, consumed=self._after, available=self._after) for s in streams}
        while True:
            layout, members = read_layout(client, self._flow), read_members(client, self._flow)
            if layout is not None and set(layout.nodes) <= set(members) | {layout.placement[r] for r in layout.lost}:
                break
            if time.monotonic() > deadline:
                raise UnbrokenError(f"flow {self._flow} has no layout yet; are all its nodes started?")
            time.sleep(0.1)
        for stream in streams:
            self._hosts[stream] = set(layout.nodes_of(stream.producer))
        handlers = LinkHandlers(up=self._up, lost=lambda _: None, unit=self._unit)
        for node in sorted(set().union(*self._hosts.values())):
            self._links[node] = Link(
                self._name,
                node,
                members[node].address,
                self._token,
                handlers,
                heartbeat_s=HEARTBEAT_S,
                timeout_s=LINK_TIMEOUT_S,
            )

    def _up(self, node: NodeId) -> None:
        for stream, hosts in self._hosts.items():
            if node in hosts:
                self._links[node].send(Subscribe(stream, self._name, self._inboxes[stream].available))

    def _unit(self, node: NodeId, header: UnitHeader, data: pa.Buffer) -> None:
        arrived_ms = time.time() * 1000
        with self._lock:
            inbox = self._inboxes[header.stream]
            if inbox.arrive(header) is Arrival.ACCEPTED:
                self._held[header.stream, header.number] = Result(header, decode_unit(data)[1], arrived_ms)
                self._pass_on(inbox)
            through = inbox.consumed
            hosts = self._hosts[header.stream]
        for host in hosts:
            self._links[host].send(Ack(header.stream, self._name, through))

    def _pass_on(self, inbox: Inbox) -> None:
        for number in range(inbox.consumed + 1, inbox.available + 1):
            result = self._held.pop((inbox.stream, number))
            self._results.put(result)
            if result.header.final:
                self._final.add(inbox.stream)
        inbox.consume(inbox.available)
        if self.ended:
            self._results.put(None)
