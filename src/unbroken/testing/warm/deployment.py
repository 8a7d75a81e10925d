"""The nodes of one run: put on processes of a pool, stopped, killed, cut from each other, and started again."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from unbroken.client import Subscription
from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.local.processes import OwnedProcess
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.observe.status.node import NodeStatus
from unbroken.observe.status.reader import StatusReader
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.notices import Notice
from unbroken.testing.faults import ZOOKEEPER
from unbroken.testing.harness.waiting import until
from unbroken.testing.injection.condition_files import ConditionsFile
from unbroken.testing.injection.disks import SmallDisk
from unbroken.testing.input.files import RunFiles
from unbroken.testing.network.proxies import Proxies
from unbroken.testing.targets import node_names
from unbroken.testing.warm.member import DEAD, WarmProcess
from unbroken.testing.warm.orders import BUSY, IDLE, NodeTask, ProcessOrder, Recipe, ReferenceTask
from unbroken.testing.warm.pool import START_DEADLINE_S, WarmCluster

START_LOOK_S = 0.1
LOOK_S = 0.5
"""How often a process is looked for that is being started."""

END_S = 30.0
"""How long all nodes together may take to end before what they have written is kept."""


@dataclass(frozen=True)
class DeploymentSetup:
    """What the nodes are started with.

    ``cuttable`` says that links can be cut, which costs a way through proxies; ``small_disks`` that the directory of
    each node is a small file system of its own, which can be filled.
    """

    flow: Dataflow
    files: RunFiles
    nodes: int
    standbys: int
    cuttable: bool
    small_disks: bool = False
    folder: str = field(default_factory=os.getcwd)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def names(self) -> list[NodeId]:
        return node_names(self.nodes, self.standbys)

    @property
    def recipe(self) -> Recipe:
        return Recipe.of(self.flow.settings)

    def order(self, task: NodeTask | ReferenceTask, log: Path) -> ProcessOrder:
        """An order with the surroundings of this process."""
        source = str(Path(self.files.read_run()["flow"]).parent)
        path = [os.path.abspath(entry) for entry in sys.path if os.path.isdir(entry or ".")]
        environment = dict(os.environ)
        partitions = self.flow.settings.partitions
        return ProcessOrder(task, str(log), self.folder, (source, *path), environment, partitions)


class WarmDeployment:
    """A flow on the processes of a lease, over the input of a test; a `Deployment`."""

    def __init__(
        self, setup: DeploymentSetup, topology: Topology, cluster: WarmCluster, members: list[WarmProcess]
    ) -> None:
        self.topology = topology
        self._setup = setup
        self._cluster = cluster
        self._free = list(members)
        self._used = list(members)
        self._chroot = cluster.open_chroot(setup.files.root.name, setup.token)
        self.members: dict[NodeId, WarmProcess] = {}
        self.gone: set[NodeId] = set()
        self._disks: dict[NodeId, SmallDisk] = {}
        self.links: Proxies | None = None
        self._ports: dict[NodeId, int] = {}
        if setup.cuttable:
            self.links = Proxies([*setup.names, ZOOKEEPER])
            self._ports = {name: self.links.free_port(name) for name in setup.names}
        self._reader = StatusReader(self.zookeeper, setup.flow.name, setup.token)
        self._closed = False

    @property
    def flow(self) -> Dataflow:
        return self._setup.flow

    @property
    def zookeeper(self) -> str:
        return f"{self._cluster.zookeeper.address}{self._chroot}"

    @property
    def token(self) -> str:
        return self._setup.token

    @property
    def names(self) -> list[NodeId]:
        return self._setup.names

    def start(self, ready_s: float, progress: Callable[[str], None]) -> None:
        if self._setup.small_disks:
            for name in self._setup.names:
                self._disks[name] = SmallDisk(self.directory_of(name))
        for name in self._setup.names:
            self._start_node(name, self._free.pop())
        states: dict[NodeId, NodeStatus] = {}

        def ready() -> bool:
            if failure := self.failure():
                raise UnbrokenError(f"the flow cannot start: {failure}")
            states.update({state.node: state for state in self.status()})
            running = [name for name in self.names if name in states and states[name].running]
            progress(f"{len(running)} of {len(self.names)} nodes are ready")
            return len(running) == len(self.names)

        def told() -> str:
            said = {name: states[name].state.value if name in states else "not there" for name in self.names}
            return "all nodes ready; " + ", ".join(f"{name} is {state}" for name, state in said.items())

        until(ready, ready_s, told, START_LOOK_S)

    def status(self) -> list[NodeStatus]:
        return self._reader.read()

    def failure(self) -> str | None:
        for name, member in self.members.items():
            if name not in self.gone and member.state != BUSY:
                return f"{name} ended: {member.failure or 'its process is dead'}"
        return None

    def tend(self) -> list[Notice]:
        """Nothing is restarted by itself: a test says what comes back."""
        return []

    def subscribe(self, sink: str, after: int = 0) -> Subscription:
        raise UnbrokenError(f"what comes to sink {sink} is kept in files, and nobody can subscribe to it")

    # --- the ground of faults -------------------------------------------------------------------------

    @property
    def zookeeper_server(self) -> EmbeddedZooKeeper:
        return self._cluster.zookeeper

    def process_of(self, node: NodeId) -> OwnedProcess:
        return self.members[node].process

    def directory_of(self, node: NodeId) -> Path:
        return self._setup.files.root / node

    def disk_of(self, node: NodeId) -> SmallDisk | None:
        return self._disks.get(node)

    def conditions_of(self, node: NodeId) -> ConditionsFile:
        return self._setup.files.conditions(node)

    def killed(self, node: NodeId, *, comes_back: bool) -> None:
        """Expect a node to be dead; get a process ready for one that will come back."""
        self.gone.add(node)
        if comes_back:
            self._cluster.spare(self._setup.recipe, self._used)

    def start_again(self, node: NodeId) -> bool:
        """Let a killed node come back on what its disk holds; False while no process is ready for it."""
        member = self._cluster.spare(self._setup.recipe, self._used)
        if member is None:
            return False
        self._used.append(member)
        self._keep_output(node, self.members[node])
        self._start_node(node, member)
        self.gone.discard(node)
        return True

    def revive(self, node: NodeId) -> bool:
        if self.members[node].state != BUSY:
            return self.start_again(node)
        self.gone.discard(node)
        return True

    def restart_zookeeper(self) -> None:
        self._cluster.zookeeper.start()

    def restart_everything(self) -> None:
        self.gone |= set(self.names)
        self.restart_zookeeper()
        end = time.monotonic() + START_DEADLINE_S
        for name in self.names:
            while not self.start_again(name):
                if time.monotonic() > end:
                    raise UnbrokenError(f"no process for {name} was ready within {START_DEADLINE_S:g} s")
                time.sleep(LOOK_S)

    def let_source_fail(self, source: str, fails: bool) -> None:
        self._setup.files.let_fail(source, fails)

    def close(self) -> None:
        """End the nodes, and keep what their processes have written beside their own logs."""
        if self._closed:
            return
        self._closed = True
        self._reader.close()
        for member in self.members.values():
            # A node that a test has frozen would not hear that it is to end.
            member.process.thaw()
            member.stop_node()
        if self.links is not None:
            self.links.heal_all()
        end = time.monotonic() + END_S
        for name, member in self.members.items():
            if member.state != DEAD:
                member.wait(IDLE, deadline_s=max(0.0, end - time.monotonic()))
            self._keep_output(name, member)
        if self.links is not None:
            self.links.close()
        for disk in self._disks.values():
            disk.close()

    def _start_node(self, name: NodeId, member: WarmProcess) -> None:
        setup = self._setup
        routes: dict[str, str] = {}
        zookeeper = self.zookeeper
        if self.links is not None:
            others = [other for other in setup.names if other != name]
            routes = {other: self.links.way(name, other, self._ports[other]) for other in others}
            way = self.links.way(name, ZOOKEEPER, self._cluster.zookeeper.port)
            zookeeper = f"{way}{self._chroot}"
        task = NodeTask(
            name=name,
            flow=str(setup.files.flow),
            zookeeper=zookeeper,
            directory=str(self.directory_of(name)),
            conditions=str(self.conditions_of(name).path),
            token=setup.token,
            port=self._ports.get(name, 0),
            nodes=setup.nodes,
            standby=name.startswith("standby-"),
            routes=routes,
        )
        self.members[name] = member
        member.order(setup.order(task, setup.files.logs / f"{name}.log"))

    def _keep_output(self, name: NodeId, member: WarmProcess) -> None:
        with contextlib.suppress(OSError), (self._setup.files.logs / f"{name}.spark.log").open("ab") as out:
            out.write(member.written_since_order())
