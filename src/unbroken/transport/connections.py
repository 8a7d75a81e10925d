"""The TCP connections of a port of this process: how they are cut, and how many strangers may hold.

gRPC for Python can neither end a call whose peer neither reads, closes nor dies, nor bound the connections that never
complete TLS. Both are done from outside, on the sockets that this process has open.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import socket
import threading
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from unbroken.threads import LastingThread

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""Time between two looks at how many files are open, which takes a fraction of a millisecond."""

CROWD = 256
"""Open files from which connections are looked at one by one."""

MOST_STRANGERS = 128
"""Connections that have made no call yet, which takes the token; beyond it the oldest ones are cut."""

FULL = (errno.EMFILE, errno.ENFILE)

Address = tuple[str, int]


def address_of(peer: str) -> Address:
    """The address of a peer, as gRPC writes it."""
    _, _, address = unquote(peer).partition(":")
    host, _, number = address.rpartition(":")
    return _plain(host), int(number)


def open_files() -> Iterable[int]:
    """The numbers of the open files, or those that can be: a process that can open no more has nearly all of them."""
    try:
        return [int(name) for name in os.listdir("/dev/fd")]
    except OSError as error:
        if error.errno not in FULL:
            raise
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def connections(port: int, slot: int | None = None) -> Iterator[tuple[Address, socket.socket]]:
    """The connections that arrived at a port of this process; each socket is a copy, good for its turn only.

    With ``slot``, an open file of the caller's that each copy replaces, no further file is opened.
    """
    for number in open_files():
        if number == slot:
            continue
        try:
            copy = os.dup(number) if slot is None else os.dup2(number, slot, inheritable=False)
        except OSError:
            continue  # closed since, or that of the listing
        try:
            connection = socket.socket(fileno=copy)
        except OSError:  # no socket
            if slot is None:
                os.close(copy)
            continue
        with contextlib.suppress(OSError):
            there, here = connection.getpeername(), connection.getsockname()
            if len(there) >= 2 and isinstance(here, tuple) and here[1] == port:
                yield (_plain(there[0]), there[1]), connection
        if slot is None:
            connection.close()
        else:
            connection.detach()


def cut_connections(addresses: Iterable[Address], port: int, slot: int | None = None) -> int:
    """Break the connections between these addresses and a port of this process; how many there were."""
    unwanted = set(addresses)
    count = 0
    for address, connection in connections(port, slot):
        if address in unwanted:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


class Strangers:
    """Tells the connections that have made a call from those that have not, the oldest first."""

    def __init__(self, most: int = MOST_STRANGERS) -> None:
        self._most = most
        self._known: set[Address] = set()
        self._waiting: dict[Address, None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._known)

    def called(self, address: Address) -> None:
        """A call has come from this address: it has the token."""
        with self._lock:
            self._known.add(address)

    def beyond(self, present: Iterable[Address]) -> list[Address]:
        """Those to be cut of the connections that there are; what is no longer there is forgotten."""
        there = dict.fromkeys(present)
        with self._lock:
            self._known &= there.keys()
            waiting = [each for each in self._waiting if each in there]
            waiting += [each for each in there if each not in self._waiting]
            waiting = [each for each in waiting if each not in self._known]
            self._waiting = dict.fromkeys(waiting)
        return waiting[: max(0, len(waiting) - self._most)]


class ConnectionGuard:
    """Keeps the connections of strangers to a port below a bound, from a thread of its own.

    It opens its two files at once and needs no others: strangers may have left none.
    """

    def __init__(self, port: int, strangers: Strangers, crowd: int = CROWD) -> None:
        self._port = port
        self._strangers = strangers
        self._crowd = crowd
        self._nothing = os.open(os.devnull, os.O_RDONLY)
        self._slot = os.dup(self._nothing)
        self._closed = threading.Event()
        self._told = False
        self._thread = LastingThread(self._watch, f"connections {port}")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_S):
            try:
                self._look()
            except OSError as error:
                log.warning("the connections of port %d cannot be looked at: %s", self._port, error)
            except Exception:
                log.exception("the connections of port %d cannot be looked at", self._port)
            finally:
                os.dup2(self._nothing, self._slot, inheritable=False)
        os.close(self._slot)
        os.close(self._nothing)

    def _look(self) -> None:
        """Cut what is beyond the bound, if many files are open."""
        if max(len(list(open_files())), len(self._strangers)) < self._crowd:
            self._told = False
            return
        beyond = self._strangers.beyond([address for address, _ in connections(self._port, self._slot)])
        if not beyond:
            return
        if not self._told:
            self._told = True
            said = "connections to port %d have made no call; the oldest ones are cut, the first from %s"
            log.warning(f"more than %d {said}", MOST_STRANGERS, self._port, beyond[0][0])
        cut_connections(beyond, self._port, self._slot)


def _plain(host: str) -> str:
    """An address without what says that it was reached over a socket for both kinds of addresses."""
    return host.strip("[]").removeprefix("::ffff:")
