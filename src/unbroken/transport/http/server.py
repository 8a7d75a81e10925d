"""Serves an application over HTTP from a thread of this process, and ends it within a deadline."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from unbroken.errors import UnbrokenError
from unbroken.threads import LastingThread
from unbroken.transport.http.deadlines import GuardedProtocol, HttpLimits

START_DEADLINE_S = 10.0
LOOK_S = 0.005

ACCEPTED_AT_ONCE = 16
"""Connections that are taken before those that are there are read again: many that arrive at once must not delay the
header of one among them until it has lost its place."""

BACKLOG = 2048
"""Connections that the operating system keeps until they are taken."""


class AppServer:
    """An application on a port of its own; with port 0 on a free one, see ``port`` after `start`.

    ``purpose`` is what it listens for, in a word or two. Connections without requests are kept for ``keep_alive_s``,
    and strangers are held to ``limits``.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        purpose: str,
        *,
        keep_alive_s: int = 5,
        limits: HttpLimits = HttpLimits(),  # noqa: B008
    ) -> None:
        self.app = app
        self._limits = limits
        self.host = host
        self.port = port
        self._purpose = purpose
        self._keep_alive_s = keep_alive_s
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def start(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Listen; returns when requests are answered. UnbrokenError if the port cannot be had."""
        listener = self._listen()
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self.app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            http=GuardedProtocol.limited(self._limits),
            backlog=ACCEPTED_AT_ONCE,
            timeout_keep_alive=self._keep_alive_s,
            timeout_graceful_shutdown=1,
        )
        self._server = server = _Server(config)

        def serve() -> None:
            with listener:
                server.run(sockets=[listener])

        self._thread = LastingThread(serve, f"{self._purpose} {self.port}")
        self._thread.start()
        deadline = time.monotonic() + deadline_s
        while not server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                self.stop(1.0)
                late = f"did not start within {deadline_s:g} s"
                raise UnbrokenError(f"The server for {self._purpose} on {self.address} {late}.")
            time.sleep(LOOK_S)
        # The event loop takes one number for both, and the operating system the last one that it is given.
        listener.listen(BACKLOG)

    def stop(self, deadline_s: float = 5.0) -> bool:
        """Stop listening and end the thread; False if it did not end in time (it ends with the process)."""
        if self._server is None or self._thread is None:
            return True
        self._server.should_exit = True
        self._thread.join(deadline_s / 2)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(deadline_s / 2)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
        except OSError as error:
            listener.close()
            raise UnbrokenError(
                f"Cannot listen on {self.address} for {self._purpose}: {error}. Choose another port, or 0 for any."
            ) from error
        return listener


class _Server(uvicorn.Server):
    """A server that leaves the signals to the process it is part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
