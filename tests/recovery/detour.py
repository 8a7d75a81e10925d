"""A way to ZooKeeper that can be cut: a TCP proxy for one node."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

CONNECT_S = 5.0
ACCEPT_S = 0.2
CHUNK = 65_536


class Detour:
    """Passes bytes on between its clients and ``target`` until it is cut.

    A cut is silent, as that of a network is: connections stay open, and nothing comes through. Healing ends the
    connections of before, so that whatever was held up in them is lost. Threads end with ``close``.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(ACCEPT_S)
        self._through = threading.Event()
        self._through.set()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        self._through.clear()

    def heal(self) -> None:
        self._end_connections()
        self._through.set()

    def close(self) -> None:
        self._closed.set()
        self._through.set()
        self._end_connections()
        for thread in self._threads:
            thread.join(timeout=CONNECT_S + 1)
        self._listener.close()

    def __enter__(self) -> Detour:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, work: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, name="detour", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            if not self._through.wait(ACCEPT_S):
                continue
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            try:
                far = socket.create_connection(self._target, timeout=CONNECT_S)
            except OSError:
                near.close()
                continue
            for each in (near, far):
                each.settimeout(None)
            with self._lock:
                self._sockets |= {near, far}
            self._start(self._pump, near, far)
            self._start(self._pump, far, near)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                self._through.wait()
                target.sendall(data)
        self._end({source, target})

    def _end_connections(self) -> None:
        with self._lock:
            sockets = set(self._sockets)
        self._end(sockets)

    def _end(self, sockets: set[socket.socket]) -> None:
        with self._lock:
            self._sockets -= sockets
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
