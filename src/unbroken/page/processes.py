"""The processes of nodes on this host, for demonstrations: to kill one, to freeze one, and to let it go on.

A node says its process number in ZooKeeper, and numbers are used again. So a process is only touched if it is a node of
Unbroken with that name, by its command line, and if the node's address is one of this host.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Mapping
from itertools import pairwise

import psutil

from unbroken.coordination.documents import Member
from unbroken.errors import Refused
from unbroken.local import strikes as striking
from unbroken.protocol.values.ids import NodeId

Members = Callable[[], Mapping[NodeId, Member]]


class LocalProcesses:
    """Nodes whose processes run here; safe to use from several threads.

    What was frozen from here goes on when this is closed, so that nothing is left frozen that nobody thinks of.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._addresses = own_addresses()
        self._lock = threading.Lock()
        self._frozen: dict[NodeId, psutil.Process] = {}

    def local(self) -> set[NodeId]:
        return {name for name in self._members() if self._find(name) is not None}

    def frozen(self) -> set[NodeId]:
        """Nodes that are stopped at this moment, by whomever."""
        found = {name: self._find(name) for name in self._members()}
        return {name for name, process in found.items() if process is not None and striking.frozen(process)}

    def kill(self, node: NodeId) -> int:
        """kill -9 of a node's process and nothing else; what it leaves, its guardian clears up. The process number."""
        process = self._require(node)
        striking.kill(process)
        return int(process.pid)

    def freeze(self, node: NodeId) -> int:
        """Stop a node and all its descendants in their tracks: connections stay, and nothing answers."""
        process = self._require(node)
        if striking.frozen(process):
            raise Refused(f"{node} is frozen already")
        with self._lock:
            self._frozen[node] = process
        striking.freeze(process)
        return int(process.pid)

    def thaw(self, node: NodeId) -> int:
        process = self._require(node)
        if not striking.frozen(process):
            raise Refused(f"{node} is not frozen")
        with self._lock:
            self._frozen.pop(node, None)
        striking.thaw(process)
        return int(process.pid)

    def close(self) -> None:
        with self._lock:
            frozen, self._frozen = self._frozen, {}
        for process in frozen.values():
            if striking.frozen(process):
                striking.thaw(process)

    def _require(self, node: NodeId) -> psutil.Process:
        process = self._find(node)
        if process is None:
            raise Refused(f"{node} has no process on this host that could be touched")
        return process

    def _find(self, node: NodeId) -> psutil.Process | None:
        """The process of a node; None if it is elsewhere, has ended, or is not certain to be that node."""
        member = self._members().get(node)
        if member is None or not is_here(member.host, self._addresses):
            return None
        try:
            process = psutil.Process(member.pid)
            alive = process.status() != psutil.STATUS_ZOMBIE
            # What is stopped with it are the processes of its session, which has to be its own.
            sure = is_node(process.cmdline(), node) and os.getsid(member.pid) == member.pid
        except (psutil.Error, OSError, ValueError):
            return None
        return process if alive and sure else None


def is_node(words: list[str], node: NodeId) -> bool:
    """Whether a command line is that of a node with this name; without ``--name`` a node has its host's in it."""
    if not any("unbroken" in word for word in words[:4]) or "node" not in words:
        return False
    named = [after for word, after in pairwise(words) if word == "--name"]
    named += [word.partition("=")[2] for word in words if word.startswith("--name=")]
    return named == [node] if named else node.startswith(f"{socket.gethostname()}-")


def own_addresses() -> frozenset[str]:
    """The addresses of this host's interfaces."""
    found = psutil.net_if_addrs().values()
    return frozenset(str(one.address).partition("%")[0] for addresses in found for one in addresses)


def is_here(host: str, addresses: frozenset[str]) -> bool:
    """Whether a node that announces ``host`` runs on this one. A name that says nothing is taken for elsewhere."""
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback or host in addresses
    except ValueError:
        return False
