"""Simulated links: latency, bandwidth, order, and connections that are lost and found out to be lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from unbroken.protocol.events import Event, LinkLost, LinkUp, Received, SubscriberGone, UnitArrived
from unbroken.protocol.messages import Message
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.content import Content
from unbroken_lab.sim.kernel import Kernel
from unbroken_lab.sim.pairs import ByPair
from unbroken_lab.sim.traffic import Traffic


@dataclass(frozen=True)
class LinkModel:
    """How a network behaves. Times are in milliseconds.

    A killed process is noticed by its peers at once, as its system closes the connections. Silence is noticed after
    ``timeout_ms``; a server, which listens less closely, takes ``slow`` times as long. With ``shared`` all that a node
    sends goes through one line; without, every connection has the whole bandwidth. Messages of the ``prompt`` types
    take no time and overtake others, for studies that count them to something else.
    """

    latency_ms: float = 0.5
    jitter_ms: float = 0.3
    bytes_per_ms: float = 125_000.0
    message_bytes: int = 200
    timeout_ms: float = 2_000.0
    heartbeat_ms: float = 200.0
    reconnect_ms: float = 100.0
    slow: float = 2.0
    lately: float = 4.0
    shared: bool = True
    prompt: frozenset[type] = frozenset()


class Process(Protocol):
    """What runs on a machine, as links see it."""

    @property
    def name(self) -> NodeId: ...

    @property
    def alive(self) -> bool: ...

    @property
    def frozen(self) -> bool: ...

    def post(self, event: Event, payload: Any = None) -> None:
        """Give it an event; a frozen one takes it when it goes on."""


class Arrivals(Protocol):
    """Whoever wants to know what arrives over links."""

    def message(self, sender: NodeId, receiver: NodeId, message: Message) -> None: ...

    def unit(self, sender: NodeId, receiver: NodeId, header: UnitHeader) -> None: ...


@dataclass(slots=True, eq=False)
class Connection:
    """One connection made by ``client`` to ``server``: messages go there, units come back, both in order.

    What is sent while the way is blocked is held until it is free again, or lost with the connection.
    """

    client: Process
    server: Process
    messages_ms: float = 0.0
    units_ms: float = 0.0
    open_for_client: bool = True
    open_for_server: bool = True
    units_lost: bool = False
    messages_lost: bool = False
    held_messages: list[Message] = field(default_factory=list)
    held_units: list[tuple[UnitHeader, Content]] = field(default_factory=list)


class Network:
    """All connections, and which ways are blocked.

    Invariants: what is sent over a connection arrives in order or not at all; there is at most one connection from a
    client to a server that both believe in.
    """

    def __init__(self, kernel: Kernel, model: LinkModel) -> None:
        self.kernel = kernel
        self.model = model
        self.processes: dict[NodeId, Process] = {}
        self.connections: ByPair[Connection] = ByPair()
        self.traffic: Counter[str] = Counter()
        self.meter: Traffic | None = None
        self.arrivals: Arrivals | None = None
        self.units_delivered = 0
        self.messages_delivered = 0
        self.known: dict[NodeId, dict[NodeId, None]] = {}
        self._serving: ByPair[Connection] = ByPair()
        self._blocked: dict[tuple[NodeId, NodeId], float] = {}
        self._breaks: Counter[tuple[NodeId, NodeId]] = Counter()
        self._wanted: ByPair[None] = ByPair()
        self._frozen_ms: dict[NodeId, float] = {}
        self._uplink_ms: dict[tuple[NodeId, NodeId], float] = {}
        self._slow: dict[NodeId, float] = {}
        self._random = kernel.random("links")
        self._resets = kernel.random("resets")

    # --- sending --------------------------------------------------------------------------------------

    def send(self, client: NodeId, server: NodeId, message: Message) -> None:
        """Send a message; it is lost while there is no connection."""
        connection = self.connections.get((client, server))
        if connection is None or not connection.open_for_client:
            return
        if self.meter is not None:
            self.meter.sent(message)
        if self._blocked and (client, server) in self._blocked:
            connection.held_messages.append(message)
        else:
            self._send_message(connection, client, message)

    def send_unit(self, server: NodeId, client: NodeId, header: UnitHeader, content: Content) -> None:
        """Send a unit to a subscriber over the connection that it has made; lost if there is none."""
        connection = self._serving.get((client, server))
        if connection is None or not connection.open_for_server:
            return
        if self._blocked and (server, client) in self._blocked:
            connection.held_units.append((header, content))
        else:
            self._send_unit(connection, server, header, content)

    def _send_message(self, connection: Connection, client: NodeId, message: Message) -> None:
        if type(message) in self.model.prompt:
            self.kernel.at(self.kernel.now_ms, self._message, (connection, message))
            return
        at = self.kernel.now_ms + self._delay_ms(client)
        if at < connection.messages_ms:
            at = connection.messages_ms
        connection.messages_ms = at
        self.kernel.at(at, self._message, (connection, message))

    def _send_unit(self, connection: Connection, server: NodeId, header: UnitHeader, content: Content) -> None:
        line = (server, "" if self.model.shared else connection.client.name)
        begin = max(self.kernel.now_ms, self._uplink_ms.get(line, 0.0))
        end = self._uplink_ms[line] = begin + header.size / self.model.bytes_per_ms
        at = end + self._delay_ms(server)
        if at < connection.units_ms:
            at = connection.units_ms
        connection.units_ms = at
        self.kernel.at(at, self._unit, (connection, header, content))

    def _delay_ms(self, sender: NodeId) -> float:
        delay = self.model.latency_ms + self.model.jitter_ms * self._random.random()
        return delay * self._slow[sender] if sender in self._slow else delay

    def _message(self, sent: tuple[Connection, Message]) -> None:
        connection, message = sent
        if connection.open_for_server and not connection.messages_lost and connection.server.alive:
            self.messages_delivered += 1
            self.traffic["messages"] += self.model.message_bytes
            if self.arrivals is not None:
                self.arrivals.message(connection.client.name, connection.server.name, message)
            connection.server.post(Received(connection.client.name, message))

    def _unit(self, sent: tuple[Connection, UnitHeader, Content]) -> None:
        connection, header, content = sent
        if connection.open_for_client and not connection.units_lost and connection.client.alive:
            self.units_delivered += 1
            self.traffic["units"] += header.size
            if self.arrivals is not None:
                self.arrivals.unit(connection.server.name, connection.client.name, header)
            connection.client.post(UnitArrived(header, connection.server.name, header.size), content)

    # --- connections ----------------------------------------------------------------------------------

    def join(self, process: Process, peers: list[NodeId]) -> None:
        """A process has begun: it connects to its peers and they to it."""
        name = process.name
        before = self.processes.get(name)
        self.processes[name] = process
        self._frozen_ms.pop(name, None)
        self.known[name] = {name: None}
        for peer in peers:
            if peer != name:
                self.want(name, peer)
                self.want(peer, name)
        # Whoever still believes in a connection to an earlier process learns better from the system that is up again.
        for connection in [] if before is None else self._of(name):
            if connection.server.name == name and connection.server is not process:
                self.kernel.after(self._delay_ms(name), self._client_notices, connection)
            if connection.client.name == name and connection.client is not process:
                self.kernel.after(self._delay_ms(name), self._server_notices, connection)

    def want(self, client: NodeId, server: NodeId) -> None:
        """Keep a connection from a client to a server from here on, as soon as it is possible."""
        self._wanted[client, server] = None
        self.kernel.after(self._random.random() * self.model.reconnect_ms, self._connect, (client, server))

    def connected(self, name: NodeId) -> set[NodeId]:
        """The nodes that one is connected to at this moment."""
        mine = self.connections.of(name).items()
        return {name, *(server for (client, server), found in mine if client == name and found.open_for_client)}

    def hears(self, name: NodeId, other: NodeId) -> bool:
        """Whether a node has had a sign of life from another one lately."""
        process = self.processes.get(other)
        lately = self.kernel.now_ms - self.model.lately * self.model.heartbeat_ms
        silent = min(
            self._blocked.get((other, name), self.kernel.now_ms), self._frozen_ms.get(other, self.kernel.now_ms)
        )
        return process is not None and process.alive and (name, other) in self.connections and silent > lately

    def _connect(self, pair: tuple[NodeId, NodeId]) -> None:
        client, server = (self.processes.get(name) for name in pair)
        if client is None or server is None or pair in self.connections or pair not in self._wanted:
            return
        ready = client.alive and server.alive and not client.frozen and not server.frozen
        if ready and self.reaches(*pair) and self.reaches(pair[1], pair[0]):
            connection = Connection(client, server)
            self.connections[pair] = self._serving[pair] = connection
            self.known[pair[0]][pair[1]] = None
            client.post(LinkUp(pair[1]))

    def _client_notices(self, connection: Connection) -> None:
        """A client finds its connection broken; it tries to make another one at once."""
        if not connection.open_for_client or not connection.client.alive:
            return
        if connection.client.frozen:
            return  # it finds out when it goes on
        pair = (connection.client.name, connection.server.name)
        connection.open_for_client = False
        connection.held_units.clear()
        if self.connections.get(pair) is connection:
            del self.connections[pair]
            self.kernel.after(self.model.reconnect_ms, self._connect, pair)
            if self.reaches(*pair):
                self.kernel.after(self._delay_ms(pair[0]), self._server_notices, connection)
            connection.client.post(LinkLost(pair[1]))

    def _server_notices(self, connection: Connection) -> None:
        """A server finds a connection broken. One that has replaced it keeps the subscriptions."""
        if not connection.open_for_server:
            return
        connection.open_for_server = False
        connection.held_messages.clear()
        pair = (connection.client.name, connection.server.name)
        if self._serving.get(pair) is connection:
            del self._serving[pair]
            if connection.server.alive:
                connection.server.post(SubscriberGone(pair[0]))
            if self.reaches(pair[1], pair[0]):
                self.kernel.after(self._delay_ms(pair[1]), self._client_notices, connection)

    # --- what goes wrong ------------------------------------------------------------------------------

    def ended(self, name: NodeId, *, silently: bool) -> None:
        """The process of a node is gone; ``silently`` if its system is, too, and nobody is told."""
        for connection in self._of(name):
            pair = (connection.client.name, connection.server.name)
            if connection.server.name == name:
                connection.units_lost = connection.units_lost or silently or self._random.random() < 0.5
                after = self._silence_ms(1.0) if silently or (name, pair[0]) in self._blocked else self._delay_ms(name)
                self.kernel.after(after, self._client_notices, connection)
            else:
                # What a process has sent is lost with its system, and may be with the process: a reset overtakes it.
                connection.messages_lost = connection.messages_lost or silently or self._resets.random() < 0.5
                connection.open_for_client = False
                if pair in self.connections:
                    del self.connections[pair]
                slow = silently or (name, pair[1]) in self._blocked
                after = self._silence_ms(self.model.slow) if slow else self._delay_ms(name) + self.model.jitter_ms
                self.kernel.after(after, self._server_notices, connection)

    def froze(self, name: NodeId) -> None:
        """A node does nothing any more; its connections stay until somebody misses it."""
        self._frozen_ms[name] = self.kernel.now_ms
        for connection in self._of(name):
            if connection.server.name == name:
                self.kernel.after(self._silence_ms(1.0), self._miss_frozen, connection)

    def thawed(self, name: NodeId) -> None:
        """It goes on. Some find their connections silent before they read what has come meanwhile."""
        since = self._frozen_ms.pop(name, self.kernel.now_ms)
        if self.kernel.now_ms - since > self.model.timeout_ms and self._random.random() < 0.5:
            for connection in self._of(name):
                if connection.client.name == name:
                    self._client_notices(connection)
        for connection in self._of(name):
            if connection.client.name == name and self._is_over(connection):
                self._client_notices(connection)
        self._retry(name)

    def block(self, sender: NodeId, receiver: NodeId) -> None:
        """Nothing gets from one node to the other. That is noticed later, as if one of them were silent."""
        if (sender, receiver) in self._blocked:
            return
        self._blocked[sender, receiver] = self.kernel.now_ms
        self._breaks[sender, receiver] += 1
        for pair in ((sender, receiver), (receiver, sender)):
            connection = self.connections.get(pair)
            if connection is not None:
                self.kernel.after(self._silence_ms(1.0), self._miss_blocked, (connection, sender, receiver))
                self.kernel.after(self._silence_ms(self.model.slow), self._miss_served, (connection, sender, receiver))

    def unblock(self, sender: NodeId, receiver: NodeId) -> None:
        """The way is free again: what was held flows, and connections that were lost are made again."""
        if self._blocked.pop((sender, receiver), None) is None:
            return
        for connection in self._serving.of(sender).values():
            if (connection.client.name, connection.server.name) == (sender, receiver):
                messages, connection.held_messages = connection.held_messages, []
                for message in messages:
                    self._send_message(connection, sender, message)
                if not connection.open_for_client:
                    self.kernel.after(self._delay_ms(sender), self._server_notices, connection)
            elif (connection.server.name, connection.client.name) == (sender, receiver):
                units, connection.held_units = connection.held_units, []
                for header, content in units:
                    self._send_unit(connection, sender, header, content)
        over = self.connections.get((receiver, sender))
        if over is not None and self._is_over(over):
            self.kernel.after(self._delay_ms(sender), self._client_notices, over)
        self._retry(sender)

    def cut(self, client: NodeId, server: NodeId) -> None:
        """Break one connection, for both ends at once."""
        connection = self.connections.get((client, server))
        if connection is not None:
            connection.units_lost = True
            if connection.client.frozen:
                self._server_notices(connection)  # the client finds out when it goes on
            else:
                self._client_notices(connection)

    def fail(self, client: NodeId, server: NodeId, *, late: bool) -> None:
        """Break one connection; each end finds out for itself, and with ``late`` messages under way arrive until the
        server does."""
        connection = self.connections.get((client, server))
        if connection is not None:
            connection.units_lost, connection.messages_lost = True, not late
            self.kernel.after(self._delay_ms(client), self._client_notices, connection)
            self.kernel.after(self._delay_ms(server), self._server_notices, connection)

    def slow_down(self, name: NodeId, factor: float) -> None:
        """Whatever a node sends takes so many times as long."""
        self._slow.pop(name, None)
        if factor != 1.0:
            self._slow[name] = factor

    def reaches(self, sender: NodeId, receiver: NodeId) -> bool:
        return (sender, receiver) not in self._blocked

    def breaks(self, sender: NodeId, receiver: NodeId) -> int:
        """How often the way was blocked so far: what takes a while finds out whether it was interrupted."""
        return self._breaks[sender, receiver] + self._breaks[receiver, sender]

    def blocked_ways(self) -> list[tuple[NodeId, NodeId]]:
        return list(self._blocked)

    def _is_over(self, connection: Connection) -> bool:
        """Whether the server's end of a connection is gone, which its client finds out when it hears of it."""
        return not connection.open_for_server or not connection.server.alive

    def _silence_ms(self, times: float) -> float:
        """When silence is noticed: the last sign of life was up to a heartbeat ago."""
        return self.model.timeout_ms * times - self._random.random() * self.model.heartbeat_ms

    def _miss_frozen(self, connection: Connection) -> None:
        since = self._frozen_ms.get(connection.server.name)
        silent = since is not None and self.kernel.now_ms - since >= self.model.timeout_ms - self.model.heartbeat_ms
        if silent and connection.server.frozen:
            self._client_notices(connection)

    def _miss_blocked(self, missed: tuple[Connection, NodeId, NodeId]) -> None:
        connection, sender, receiver = missed
        since = self._blocked.get((sender, receiver))
        if since is not None and self.kernel.now_ms - since >= self.model.timeout_ms - self.model.heartbeat_ms:
            self._client_notices(connection)

    def _miss_served(self, missed: tuple[Connection, NodeId, NodeId]) -> None:
        connection, sender, receiver = missed
        since = self._blocked.get((sender, receiver))
        if since is not None and self.kernel.now_ms - since > self.model.timeout_ms:
            self._server_notices(connection)

    def _retry(self, name: NodeId) -> None:
        for pair in self._wanted.of(name):
            if pair not in self.connections:
                self.kernel.after(self._random.random() * self.model.reconnect_ms, self._connect, pair)

    def _of(self, name: NodeId) -> list[Connection]:
        made, serving = self.connections.of(name).values(), self._serving.of(name).values()
        return list({id(connection): connection for connection in [*made, *serving]}.values())
