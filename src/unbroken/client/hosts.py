"""The nodes that the results of a sink are read from."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from unbroken.client.arrivals import StreamAtNode, of_segment
from unbroken.coordination.directory import Directory
from unbroken.coordination.routes import Routes
from unbroken.errors import UnbrokenError
from unbroken.protocol.messages import Ack, Subscribe
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import UnitHeader
from unbroken.transport.link import Latest, Link, LinkHandlers, WholeUnit

HEARTBEAT_S = 0.2
LINK_TIMEOUT_S = 2.0

REFRESH_S = 2.0
"""Nodes that joined or moved are looked for this often; the nodes known already go on being heard."""

LOST_REFRESH_S = 0.2
LOST_S = 15.0
"""After a node is lost its results may move to another one: for this long it is looked for more often."""

CLOSE_S = 2.0
"""Longest wait for the search for nodes to end; a read from ZooKeeper takes at most half of it."""


@dataclass(frozen=True)
class UnitHandlers:
    """What the nodes are asked for and what becomes of their answers; called from several threads.

    ``begin`` is called before a stream is asked for at a place. It says which stable unit is the last that is not
    needed, and the pulse up to which tentative ones are not; -1 if none of them are wanted.
    """

    begin: Callable[[StreamId, StreamAtNode], tuple[int, int]]
    unit: Callable[[NodeId, UnitHeader, pa.Buffer], None]
    lost: Callable[[NodeId], None]


class Hosts:
    """Finds the nodes with replicas of a sink's segment in ZooKeeper, links to each and asks all for its streams.

    Nodes that come later are found, and asked for what has not come from others until then.
    """

    def __init__(
        self, zookeeper: str, flow: str, sink: str, token: str, reader: UnitHandlers, routes: Routes | None = None
    ) -> None:
        self.streams: list[StreamId] = []
        self._zookeeper = zookeeper
        self._flow = flow
        self._sink = sink
        self._token = token
        self._reader = reader
        self._routes = routes or Routes()
        self._name = f"client-{uuid.uuid4().hex[:12]}"
        self._directory: Directory | None = None
        self._links: dict[NodeId, Link] = {}
        self._linked: set[NodeId] = set()
        self._sources: dict[StreamAtNode, ReplicaId] = {}
        self._lock = threading.Lock()
        self._latest = Latest()
        self._closed = threading.Event()
        self._refresh_at = 0.0
        self._lost_at = float("-inf")
        self._link_lock = threading.Lock()
        # On a thread of its own: a ZooKeeper that hangs must not hold results up.
        self._finder = threading.Thread(target=self._find_hosts, name="find-hosts", daemon=True)

    def find(self, source: tuple[str, int] | None, deadline_s: float) -> list[StreamId]:
        """The streams of the sink, of ``source`` (a segment and its number of shards) or whatever ZooKeeper says."""
        deadline = time.monotonic() + deadline_s
        self._directory = Directory(self._zookeeper, self._flow, token=self._token)
        while not (self._directory.refresh() and self._directory.layout is not None):
            if time.monotonic() > deadline:
                raise UnbrokenError(f"flow {self._flow} has no layout yet; are all its nodes started?")
            time.sleep(0.1)
        part, shards = source or self._source(self._directory)
        self.streams = [StreamId(ShardId(part, i), ShardId(self._sink, 0)) for i in range(shards)]
        return self.streams

    def start(self) -> None:
        """Link to the nodes that are there, and go on looking for others."""
        self._link()
        self._finder.start()

    def close(self) -> None:
        with self._link_lock:
            self._closed.set()
        for link in self._links.values():
            link.close()
        if self._finder.is_alive():
            self._finder.join(timeout=CLOSE_S)
        if self._directory is not None:
            self._directory.close()

    def check_alive(self) -> None:
        """Give up the links to nodes that are silent."""
        for link in list(self._links.values()):
            link.check_alive()

    def acknowledge(self, stream: StreamId, through: int) -> None:
        """Tell everybody who has a stream that its units up to ``through`` are here."""
        for there, node in self._origins(stream):
            if (link := self._links.get(node)) is not None:
                link.send(Ack(there, self._name, through))

    def linked(self, stream: StreamId) -> list[StreamAtNode]:
        """Where a stream comes from at this moment."""
        with self._lock:
            linked = set(self._linked)
        return [origin for origin in self._origins(stream) if origin[1] in linked]

    def _source(self, directory: Directory) -> tuple[str, int]:
        """The segment behind the sink and its number of shards."""
        sinks = directory.sinks()
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

    def _origins(self, stream: StreamId) -> dict[StreamAtNode, ReplicaId]:
        """Where a stream can be read, by the name it has there. Who is given up by the layout may still send.

        One that takes over alone is asked before it has caught up: nobody else will send what comes next.
        """
        layout = None if self._directory is None else self._directory.layout
        if layout is None:
            return {}
        return {
            (StreamId(replica.shard, stream.consumer), node): replica
            for replica, node in layout.placement.items()
            if of_segment(replica.shard) == stream.producer
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
        """Link to every host that is a member, at the address it has for this client."""
        assert self._directory is not None
        members = self._routes.applied(self._directory.members)
        hosts = {node for stream in self.streams for _, node in self._origins(stream)}
        for node in sorted(hosts & set(members)):
            with self._link_lock:
                if not self._closed.is_set():
                    self._link_to(node, members[node].address)
        self._turn_to_newcomers()

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

    def _turn_to_newcomers(self) -> None:
        """Subscribe at linked nodes that have a replica to read from and have not been asked yet."""
        for stream in self.streams:
            for origin, replica in self._origins(stream).items():
                there, node = origin
                with self._lock:
                    if self._sources.get(origin) == replica or node not in self._linked:
                        continue
                    self._sources[origin] = replica
                after, heard = self._reader.begin(stream, origin)
                self._links[node].send(Subscribe(there, self._name, after, heard=heard))

    # --- called from the links' threads ---------------------------------------------------------------

    def _unit(self, node: NodeId, header: UnitHeader) -> WholeUnit:
        return WholeUnit(node, header, self._reader.unit)

    def _up(self, node: NodeId) -> None:
        with self._lock:
            self._linked.add(node)
        self._turn_to_newcomers()

    def _lost(self, node: NodeId) -> None:
        self._lost_at = time.monotonic()
        with self._lock:
            self._linked.discard(node)
            self._sources = {key: replica for key, replica in self._sources.items() if key[1] != node}
        self._reader.lost(node)
