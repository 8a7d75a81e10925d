"""Nodes whose processes are found on this host, as a ground for faults: who runs the flow may be anybody.

A node says its process number in ZooKeeper, and numbers are used again. So a process is only touched if it is a node of
Unbroken with that name, by its command line, and if the node's address is one of this host.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import psutil

from unbroken.coordination.documents import Member
from unbroken.errors import Refused, UnbrokenError
from unbroken.local import strikes as striking
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.protocol.values.ids import NodeId
from unbroken.testing.injection.condition_files import ConditionsFile
from unbroken.testing.injection.disks import SmallDisk
from unbroken.testing.targets import Roles

Found = Mapping[NodeId, psutil.Process]


class FoundProcess:
    """The process of a node that another process has started."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.pid = int(process.pid)

    def alive(self) -> bool:
        try:
            return bool(self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def frozen(self) -> bool:
        return bool(self._process.is_running()) and striking.frozen(self._process)

    def kill9(self) -> None:
        """End the process and nothing else; its guardian clears up what it leaves."""
        striking.kill(self._process)

    def freeze(self) -> None:
        """Stop a node and all its descendants in their tracks: connections stay, and nothing answers."""
        striking.freeze(self._process)

    def thaw(self) -> None:
        if self.frozen():
            striking.thaw(self._process)

    def wait(self, deadline_s: float) -> int | None:
        """How it ended is known to its parent alone: 0 once it has, None if it has not in time."""
        _, left = psutil.wait_procs([self._process], timeout=deadline_s)
        return None if left else 0

    def stop(self, deadline_s: float = 10.0) -> None:
        self._process.send_signal(signal.SIGTERM)
        if self.wait(deadline_s) is None:
            self.kill9()


class FoundNodes:
    """The nodes that ``find`` finds at this moment. What only their owner can do to them is refused."""

    def __init__(self, find: Callable[[], Found]) -> None:
        self._find = find

    @property
    def names(self) -> Sequence[NodeId]:
        return sorted(self._find())

    def process_of(self, node: NodeId) -> FoundProcess:
        found = self._find()
        if node not in found:
            known = ", ".join(sorted(found)) or "none"
            raise Refused(f"{node} has no process on this host that could be touched; nodes that have one: {known}")
        return FoundProcess(found[node])

    def killed(self, node: NodeId, *, comes_back: bool) -> None:
        """Whoever runs the flow sees it as any other failure."""

    @property
    def links(self) -> None:
        return None

    @property
    def zookeeper_server(self) -> EmbeddedZooKeeper:
        self._refuse("ZooKeeper is")

    def roles(self) -> Roles:
        self._refuse("roles are")

    def directory_of(self, node: NodeId) -> Path:
        self._refuse(f"the directory of {node} is")

    def disk_of(self, node: NodeId) -> SmallDisk | None:
        return None

    def conditions_of(self, node: NodeId) -> ConditionsFile | None:
        return None

    def revive(self, node: NodeId) -> bool:
        self._refuse(f"the start of {node} is")

    def start_again(self, node: NodeId) -> bool:
        self._refuse(f"the start of {node} is")

    def restart_zookeeper(self) -> None:
        self._refuse("the start of ZooKeeper is")

    def restart_everything(self) -> None:
        self._refuse("the start of nodes is")

    def let_source_fail(self, source: str, fails: bool) -> None:
        self._refuse(f"source {source} is")

    def _refuse(self, what: str) -> NoReturn:
        raise UnbrokenError(f"{what} a matter of the process that runs the flow; use the test kit there")


def nodes_here(members: Mapping[NodeId, Member], addresses: frozenset[str]) -> Found:
    """The processes of the nodes that run on this host, which has these ``addresses``, and are certain to be theirs."""
    found = {name: _process(name, member, addresses) for name, member in members.items()}
    return {name: process for name, process in found.items() if process is not None}


def _process(node: NodeId, member: Member, addresses: frozenset[str]) -> psutil.Process | None:
    if not is_here(member.host, addresses):
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
