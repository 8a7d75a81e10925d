"""A real network on one machine: a Linux network namespace for each member, and a router between them.

Each member has an Ethernet pair to the router, a namespace of its own in which nothing runs::

    member 1 (198.18.7.2/30) ---- (198.18.7.1/30) router (198.18.7.5/30) ---- (198.18.7.6/30) member 2

A cut is a routing rule of the router that drops what one address sends to another. So neither end is told: bytes are
not acknowledged, connection attempts hang, as they do when a cable is pulled. A rule at the sender would be no such
thing, because the kernel tells its own processes that there is no route.

When one direction is cut, TCP cannot use the other one for long either: what arrives there is not acknowledged.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import ipaddress
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from unbroken.testing.network.partitions import HERE, Direction, Partitions, T

ADDRESSES = ipaddress.ip_network("198.18.0.0/15")
"""Set aside for tests of networks (RFC 2544): nobody's own network is in the way. A network takes a /24 of it."""

MOST_MEMBERS = 64
NAMES = Path("/run/netns")
NAMESPACE = re.compile(r"unbroken-(\d+)-\d+-.*")
LINK = re.compile(r"ub(\d+)-\d+")
"""Names begin with the process that they belong to, so that what a killed one has left can be told."""

COMMAND_S = 20.0
CLONE_NEWNET = 0x40000000

_numbers = itertools.count(1)


class NetworkError(Exception):
    """The operating system does not give what the network needs."""


@functools.cache
def available() -> tuple[bool, str]:
    """Whether this machine lets tests make networks, and if not why; found out by trying."""
    if not sys.platform.startswith("linux"):
        return False, "network namespaces need Linux"
    missing = [tool for tool in ("ip", "nsenter") if shutil.which(tool) is None]
    if missing:
        return False, f"network namespaces need the commands ip (iproute2) and nsenter; missing: {', '.join(missing)}"
    if os.geteuid() != 0:
        return False, "network namespaces can only be made by root"
    try:
        with NamespaceNetwork(["a", "b"]) as network:
            network.cut("a", "b")
    except (NetworkError, OSError, subprocess.SubprocessError) as error:
        return False, f"network namespaces cannot be made here: {error}"
    return True, ""


class NamespaceNetwork(Partitions):
    """Every member in a namespace of its own; the test process, as ``here``, stays in the namespace it is in."""

    def __init__(self, members: Iterable[str]) -> None:
        super().__init__(members)
        if len(self.members) > MOST_MEMBERS:
            raise ValueError(f"a network has {MOST_MEMBERS} members at most, {HERE} included")
        number = next(_numbers)
        self._prefix = f"unbroken-{os.getpid()}-{number}"
        self._router = f"{self._prefix}-router."
        self._link = f"ub{os.getpid()}-{number}"
        remove_stale()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def host(self, member: str) -> str:
        return str(self._end(member, 2))

    def free_port(self, member: str) -> int:
        def pick() -> int:
            with socket.create_server((self.host(member), 0)) as probe:
                return int(probe.getsockname()[1])

        return self.within(member, pick)

    def enter(self, member: str) -> list[str]:
        self._require(member)
        return [] if member == HERE else _in_namespace(self._namespace(member))

    def within(self, member: str, make: Callable[[], T]) -> T:
        """As promised; on a thread of its own, because a namespace is that of a thread."""
        self._require(member)
        if member == HERE:
            return make()
        made: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                _enter_namespace(NAMES / self._namespace(member))
                made.append(make())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work, name=f"within-{member}", daemon=True)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return made[0]

    def way(self, a: str, b: str, port: int) -> str:
        self._require(a)
        return f"{self.host(b)}:{port}"

    def close(self) -> None:
        with contextlib.suppress(NetworkError):
            _ip(f"link delete {self._link}")
        for name in _namespaces():
            if name.startswith(f"{self._prefix}-"):
                _ip(f"netns delete {name}")

    def _apply(self, added: set[Direction], removed: set[Direction]) -> None:
        changes = {"add": added, "delete": removed}
        rules = [
            f"rule {verb} from {self.host(a)} to {self.host(b)} priority 100 blackhole"
            for verb, directions in changes.items()
            for a, b in sorted(directions)
        ]
        _ip(*rules, inside=self._router)

    def _end(self, member: str, which: int) -> ipaddress.IPv4Address:
        """The address of the router (1) or of the member itself (2) on the way between them."""
        self._require(member)
        return self._addresses[4 * self.members.index(member) + which]

    def _namespace(self, member: str) -> str:
        return f"{self._prefix}-{member}"

    def _make(self) -> None:
        _ip(f"netns add {self._router}")
        with _alone():
            # What is taken can be told by the addresses of links, so nobody else may choose before this one has some.
            self._addresses = _free_addresses()
            _ip(
                f"link add {self._link} type veth peer name m0 netns {self._router}",
                f"address add {self._end(HERE, 2)}/30 dev {self._link}",
                f"link set {self._link} up",
            )
        router = ["link set lo up", f"address add {self._end(HERE, 1)}/30 dev m0", "link set m0 up"]
        for index, member in enumerate(self.members[1:], start=1):
            name = self._namespace(member)
            _ip(f"netns add {name}")
            _ip(f"link add m{index} type veth peer name eth0 netns {name}", inside=self._router)
            _ip(
                "link set lo up",
                f"address add {self._end(member, 2)}/30 dev eth0",
                "link set eth0 up",
                f"route add default via {self._end(member, 1)}",
                inside=name,
            )
            router += [f"address add {self._end(member, 1)}/30 dev m{index}", f"link set m{index} up"]
        _ip(*router, inside=self._router)
        _ip(f"route add {self._addresses} via {self._end(HERE, 1)}")
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        _run([*_in_namespace(self._router), "sh", "-c", forward])


def remove_stale() -> None:
    """Remove what processes have left that did not live to do so themselves."""
    for name in _namespaces():
        if _orphaned(NAMESPACE, name):
            with contextlib.suppress(NetworkError):  # somebody else may do the same
                _ip(f"netns delete {name}")
    for link in _json("link", "show"):
        name = str(link["ifname"])
        if _orphaned(LINK, name):
            with contextlib.suppress(NetworkError):
                _ip(f"link delete {name}")


def _orphaned(pattern: re.Pattern[str], name: str) -> bool:
    match = pattern.fullmatch(name)
    return match is not None and not psutil.pid_exists(int(match[1]))


def _namespaces() -> list[str]:
    return sorted(path.name for path in NAMES.iterdir()) if NAMES.is_dir() else []


def _free_addresses() -> ipaddress.IPv4Network:
    taken = []
    for link in _json("-4", "address", "show"):
        taken += [ipaddress.ip_address(each["local"]) for each in link["addr_info"]]
    for candidate in ADDRESSES.subnets(new_prefix=24):
        if not any(address in candidate for address in taken):
            assert isinstance(candidate, ipaddress.IPv4Network)
            return candidate
    raise NetworkError(f"all of {ADDRESSES} is in use")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keep other processes that make networks out."""
    with (Path(tempfile.gettempdir()) / "unbroken-networks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _in_namespace(name: str) -> list[str]:
    # `ip netns exec` would also mount another /sys, from which a JVM could not tell its memory.
    return ["nsenter", f"--net={NAMES / name}", "--"]


def _enter_namespace(path: Path) -> None:
    with path.open() as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter {path}: {os.strerror(number)}")


def _ip(*commands: str, inside: str | None = None) -> None:
    """Carry out commands of ``ip`` one after the other, in this process's namespace or inside another one."""
    where = [] if inside is None else ["-netns", inside]
    _run(["ip", *where, "-batch", "-"], "".join(f"{command}\n" for command in commands))


def _json(*words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_run(["ip", "-json", *words]) or "[]")
    return [each for each in found if each]


def _run(command: list[str], text: str | None = None) -> str:
    result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if result.returncode != 0:
        said = " ".join(result.stderr.split()) or f"code {result.returncode}"
        raise NetworkError(f"{' '.join(command)} failed: {said}" + (f"; it was told: {text!r}" if text else ""))
    return result.stdout
