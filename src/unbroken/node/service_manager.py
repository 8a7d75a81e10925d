"""What a node tells the service manager that started it: that it is there, that it is well, that it ends.

The protocol is systemd's: datagrams of ``NAME=value`` lines to the socket that NOTIFY_SOCKET names. Where nobody sets
that variable nothing is told.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping

from unbroken.threads import LastingThread

log = logging.getLogger(__name__)

STUCK_S = 30.0
"""Silence of the node's loop from which on it is not said to be well, as at the endpoint ``/live``."""

BEAT_S = 5.0
"""How often a node says how it is when nobody watches over it; with a watchdog, twice in the time that has."""

SEND_S = 1.0


class Supervision:
    """Tells the service manager how a node is, from a thread of its own.

    Parameters
    ----------
    silence_s
        For how long the node's loop has not turned; None while it has not begun. It must answer at once.
    hung
        Which thread has hung for so long that only a restart helps; None if none has. It must answer at once.
    environment
        Where the socket is named, and how much time the watchdog has.
    """

    def __init__(
        self,
        silence_s: Callable[[], float | None],
        environment: Mapping[str, str] = os.environ,
        hung: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._silence_s = silence_s
        self._hung = hung
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        watchdog_us = environment.get("WATCHDOG_USEC", "")
        self._beat_s = int(watchdog_us) / 2e6 if watchdog_us.isdigit() and int(watchdog_us) else BEAT_S
        self._told = ""
        self._stopping = threading.Event()
        self._thread = LastingThread(self._run, "supervision")

    def ready(self) -> None:
        """The node is a member of its flow; from here on it is said how it is."""
        if self._address is not None:
            self._send("READY=1")
            self._thread.start()

    def stopping(self) -> None:
        """The node ends because it wants to."""
        self._stopping.set()
        if self._address is not None:
            self._send("STOPPING=1\nSTATUS=ends")

    def beat(self) -> str:
        """What is said at this moment; nothing of being well if the loop is stuck, so that the watchdog acts."""
        silence_s = self._silence_s()
        if silence_s is None:
            return "WATCHDOG=1\nSTATUS=has joined the flow and waits for its place in it"
        hung = self._hung()
        if hung is not None:
            return f"STATUS=is stuck: {hung}"
        if silence_s < STUCK_S:
            return "WATCHDOG=1\nSTATUS=works"
        return f"STATUS=is stuck: its loop has not turned for {silence_s:.0f} s"

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._send(self.beat())
            self._stopping.wait(self._beat_s)

    def _send(self, text: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.settimeout(SEND_S)
                out.sendto(text.encode(), self._address or "")
        except OSError as error:
            if str(error) != self._told:
                self._told = str(error)
                log.warning("the service manager cannot be told how this node is: %s", error)


def _address(name: str) -> str | None:
    """The address of a socket in a directory, or (with an @) of one that only has a name."""
    return f"\0{name[1:]}" if name.startswith("@") else name or None
