"""The nodes of one run: put on processes of a pool, stopped, killed, cut from each other, and started again."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unbroken.coordination.documents import connect, read_history, read_in_sync
from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.observe.status_reader import StatusReader
from unbroken.protocol.values.ids import NodeId
from unbroken.testing.faults import ZOOKEEPER
from unbroken.testing.files import RunFiles
from unbroken.testing.member import DEAD, Member
from unbroken.testing.orders import BUSY, IDLE, RUN, Order, Recipe
from unbroken.testing.pool import WarmCluster
from unbroken.testing.proxies import Proxies
from unbroken.testing.targets import Roles, node_names

ASK_S = 0.5
"""How often the nodes are asked how they are; a frozen one takes two seconds to be given up, on a thread of its own."""

ANSWER_S = 10.0


@dataclass(frozen=True)
class Setup:
    """What the nodes are started with. ``cuttable`` says that links can be cut, which costs a way through proxies."""

    flow: Dataflow
    files: RunFiles
    nodes: int
    standbys: int
    cuttable: bool
    folder: str = field(default_factory=os.getcwd)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def names(self) -> list[NodeId]:
        return node_names(self.nodes, self.standbys)

    @property
    def recipe(self) -> Recipe:
        return Recipe.of(self.flow.settings)

    def order(self, what: str, options: Mapping[str, Any], log: Path) -> Order:
        """An order with the surroundings of this process."""
        source = str(Path(self.files.read_run()["flow"]).parent)
        path = [os.path.abspath(entry) for entry in sys.path if os.path.isdir(entry or ".")]
        environment = dict(os.environ)
        partitions = self.flow.settings.partitions
        return Order(what, options, str(log), self.folder, (source, *path), environment, partitions)


class Deployment:
    """A flow on the processes of a lease. A thread asks the nodes how they are; everything else is done when told."""

    def __init__(self, setup: Setup, cluster: WarmCluster, members: list[Member]) -> None:
        self._setup = setup
        self._cluster = cluster
        self._free = list(members)
        self._used = list(members)
        self._chroot = cluster.open_chroot(setup.files.root.name, setup.token)
        self.members: dict[NodeId, Member] = {}
        self.killed: set[NodeId] = set()
        self.links: Proxies | None = None
        self.states: list[dict[str, Any]] = []
        self.divergences: set[str] = set()
        self._ports: dict[NodeId, int] = {}
        self._zookeeper_ways: dict[NodeId, str] = {}
        if setup.cuttable:
            self.links = Proxies([*setup.names, ZOOKEEPER])
            self._ports = {name: self.links.free_port(name) for name in setup.names}
        self._reader = StatusReader(self.zookeeper, setup.flow.name, setup.token)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="unbroken-status", daemon=True)

    @property
    def zookeeper(self) -> str:
        """The address at which everything about this run is found."""
        return f"{self._cluster.zookeeper.address}{self._chroot}"

    @property
    def names(self) -> list[NodeId]:
        return self._setup.names

    def start(self) -> None:
        for name in self._setup.names:
            self._start_node(name, self._free.pop())
        self._thread.start()

    def ready(self) -> bool:
        """Whether every node has started its queries."""
        running = {str(state["node"]) for state in self.states if state.get("state") == "running"}
        return running >= set(self.names)

    def failure(self) -> str | None:
        """Why the flow cannot go on: a node that ended by itself, or a shard whose replicas have all stopped."""
        for name, member in self.members.items():
            if name not in self.killed and member.state != BUSY:
                return f"{name} ended: {member.failure or 'its process is dead'}"
        stopped: dict[str, list[str]] = {}
        at_work: set[str] = set()
        for state in self.states:
            for replica in state.get("replicas", []):
                shard = str(replica["replica"]).partition("#")[0]
                if replica["reason"]:
                    stopped.setdefault(shard, []).append(f"{state['node']}: {replica['reason']}")
                else:
                    at_work.add(shard)
        hopeless = sorted(set(stopped) - at_work)
        return f"all replicas of {hopeless[0]} have stopped; {stopped[hopeless[0]][0]}" if hopeless else None

    def roles(self) -> Roles:
        """Who does what at this moment."""
        directory = self._reader.directory
        directory.refresh()
        alive = [name for name in self.members if name not in self.killed]
        return Roles(self._leader(), directory.layout, alive)

    @property
    def reader(self) -> StatusReader:
        return self._reader

    def history(self) -> list[str]:
        """What the nodes told; empty if ZooKeeper does not answer."""
        with contextlib.suppress(UnbrokenError):
            client = connect(self.zookeeper, ANSWER_S, ANSWER_S, token=self._setup.token)
            try:
                entries = read_history(client, self._setup.flow.name)
                return [f"{entry['node']}: {entry['sentence']}" for entry in entries]
            finally:
                client.stop()
                client.close()
        return []

    # --- what is done to it ---------------------------------------------------------------------------

    def kill(self, name: NodeId) -> str:
        member = self.members[name]
        self.killed.add(name)
        member.process.kill9()
        return f"kill -9 of {name} (process {member.process.pid})"

    def start_again(self, name: NodeId) -> bool:
        """Let a killed node come back on what its disk holds; False while no process is ready for it."""
        member = self._cluster.spare(self._setup.recipe, self._used)
        if member is None:
            return False
        self._used.append(member)
        self._keep_output(name, self.members[name])
        self._start_node(name, member)
        self.killed.discard(name)
        return True

    def expect_back(self) -> None:
        """Get a process ready for a node that will come back."""
        self._cluster.spare(self._setup.recipe, self._used)

    def restart_zookeeper(self) -> None:
        self._cluster.zookeeper.start()

    @property
    def zookeeper_pid(self) -> int | None:
        return self._cluster.zookeeper.pid

    def kill_zookeeper(self) -> str:
        self._cluster.zookeeper.kill9()
        return "kill -9 of ZooKeeper"

    def close(self) -> None:
        """End the nodes, and keep what their processes have written beside their own logs."""
        self._closed.set()
        self._reader.close()
        for member in self.members.values():
            member.process.thaw()
            member.stop_node()
        if self.links is not None:
            self.links.heal_all()
        end = time.monotonic() + ANSWER_S * 3
        for name, member in self.members.items():
            if member.state != DEAD:
                member.wait(IDLE, deadline_s=max(0.0, end - time.monotonic()))
            self._keep_output(name, member)
        if self.links is not None:
            self.links.close()

    def _start_node(self, name: NodeId, member: Member) -> None:
        setup = self._setup
        routes: dict[str, str] = {}
        zookeeper = self.zookeeper
        if self.links is not None:
            others = [other for other in setup.names if other != name]
            routes = {other: self.links.way(name, other, self._ports[other]) for other in others}
            way = self.links.way(name, ZOOKEEPER, self._cluster.zookeeper.port)
            zookeeper = f"{way}{self._chroot}"
        options = {
            "name": name,
            "flow": str(setup.files.flow),
            "zookeeper": zookeeper,
            "directory": str(setup.files.root / name),
            "token": setup.token,
            "port": self._ports.get(name, 0),
            "nodes": setup.nodes,
            "standby": name.startswith("standby-"),
            "routes": routes,
        }
        self.members[name] = member
        member.order(setup.order(RUN, options, setup.files.logs / f"{name}.log"))

    def _keep_output(self, name: NodeId, member: Member) -> None:
        with contextlib.suppress(OSError), (self._setup.files.logs / f"{name}.spark.log").open("ab") as out:
            out.write(member.written_since_order())

    def _leader(self) -> NodeId | None:
        """As ZooKeeper says; if it is away, as the nodes said last."""
        with contextlib.suppress(UnbrokenError):
            client = connect(self.zookeeper, ANSWER_S, 2.0, token=self._setup.token)
            try:
                found = read_in_sync(client, self._setup.flow.name)
                return None if found is None else found.leader
            finally:
                client.stop()
                client.close()
        leading = [str(state["node"]) for state in self.states if state.get("ingress", {}).get("leading")]
        return leading[0] if leading else None

    def _ask(self) -> None:
        while not self._closed.wait(ASK_S if self.states else 0.1):
            with contextlib.suppress(UnbrokenError, OSError, RuntimeError):
                self.states = self._reader.read()
                for state in self.states:
                    self.divergences |= set(state.get("divergences", []))
