"""A network that needs no privileges: everybody is at the loopback address, and links lead through TCP proxies.

Other than in a real network a connection attempt succeeds during a cut (the proxy takes it) and is then silent, and
when one direction is cut the other one goes on for any number of bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from unbroken.testing.network.partitions import Direction, Partitions, T

LOOPBACK = "127.0.0.1"
CHUNK = 65_536
"""Bytes passed on at once; as many may still arrive after a cut, as if they had been on their way."""

ORDER_S = 10.0
"""How long the thread of the proxies may take for an order; it does nothing but pass bytes on."""


class Proxies(Partitions):
    """One listening port for each way that somebody asks for; only what uses such ways can be cut."""

    def __init__(self, members: Iterable[str]) -> None:
        super().__init__(members)
        self._loop = asyncio.new_event_loop()
        self._gates: dict[Direction, asyncio.Event] = {}
        self._ways: dict[tuple[str, str, int], asyncio.Server] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def host(self, member: str) -> str:
        self._require(member)
        return LOOPBACK

    def free_port(self, member: str) -> int:
        with socket.create_server((self.host(member), 0)) as probe:
            return int(probe.getsockname()[1])

    def enter(self, member: str) -> list[str]:
        self._require(member)
        return []

    def within(self, member: str, make: Callable[[], T]) -> T:
        self._require(member)
        return make()

    def way(self, a: str, b: str, port: int) -> str:
        self._directions(a, b, False)
        if (a, b, port) not in self._ways:
            self._ways[a, b, port] = self._do(self._listen(a, b, port))
        host, own_port = self._ways[a, b, port].sockets[0].getsockname()
        return f"{host}:{own_port}"

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=ORDER_S)
        self._loop.close()

    def _apply(self, added: set[Direction], removed: set[Direction]) -> None:
        async def change() -> None:
            for direction in added:
                self._gate(direction).clear()
            for direction in removed:
                self._gate(direction).set()

        self._do(change())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=ORDER_S)

    # --- on the thread of the proxies -----------------------------------------------------------------

    def _gate(self, direction: Direction) -> asyncio.Event:
        if direction not in self._gates:
            self._gates[direction] = asyncio.Event()
            self._gates[direction].set()
        return self._gates[direction]

    async def _listen(self, a: str, b: str, port: int) -> asyncio.Server:
        there, back = self._gate((a, b)), self._gate((b, a))

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                # Whoever is cut off in one direction cannot open a connection: that takes both.
                while not (there.is_set() and back.is_set()):
                    await there.wait()
                    await back.wait()
                await _connect((reader, writer), port, there, back)
            except asyncio.CancelledError:
                pass  # at the end of the network
            finally:
                self._connections.discard(task)
                writer.transport.abort()

        return await asyncio.start_server(take, LOOPBACK, 0)

    async def _end(self) -> None:
        for server in self._ways.values():
            server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connect(near: End, port: int, there: asyncio.Event, back: asyncio.Event) -> None:
    """Pass on in both directions until both have ended."""
    try:
        far = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return  # nobody listens there; the near end sees its connection end
    try:
        await asyncio.gather(_pass_on(near[0], far[1], there), _pass_on(far[0], near[1], back))
    finally:
        far[1].transport.abort()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, gate: asyncio.Event) -> None:
    """Pass bytes on, and how they end, while the gate is open; while it is not, the sender finds its buffers full."""
    target.transport.set_write_buffer_limits(high=0)
    ended_well = False
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK):
            await _opened(gate)
            target.write(data)
            await target.drain()
        ended_well = True
    await _opened(gate)
    with contextlib.suppress(OSError):
        if ended_well:
            target.write_eof()
        else:
            target.transport.abort()


async def _opened(gate: asyncio.Event) -> None:
    # One that is opened and shut again before the waiting task has its turn is shut.
    while not gate.is_set():
        await gate.wait()
