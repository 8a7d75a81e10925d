"""What can go wrong in a flow at this moment, and how it is done, where steps are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from unbroken.protocol.events import PushArrived, ReplicaStopped
from unbroken.protocol.replica.replica import RESTARTS
from unbroken.protocol.values.ids import NodeId, ReplicaId, StreamId
from unbroken_lab.sim.machine import NodeProcess
from unbroken_lab.sim.sparing import spares
from unbroken_lab.sim.steps.upgrades import UpgradingCluster
from unbroken_lab.sim.zookeeper import ZOOKEEPER

Fault = tuple[object, ...]
"""The name of a method of `FaultyCluster` and what it is given."""


class FaultyCluster(UpgradingCluster):
    """A cluster with everything that can go wrong in it.

    Sinks fail, and nodes are doubted that answer, only if ``unsure``. Everything is left out that the flow could not
    stand as it is at this moment: an intact replica of every shard stays on some disk that counts.
    """

    unsure = False

    def faults(self) -> list[Fault]:
        """The faults that are possible."""
        world, store = self.world, self.world.zookeeper
        out: list[Fault] = [
            ("cut", *pair, late)
            for pair, found in world.network.connections.items()
            if found.open_for_client and not found.units_lost
            for late in (False, True)
        ]
        for process in world.processes():
            out += self._faults_of(process)
        out += [("lose", names) for names in self.losses()]
        out += [("boot", name) for name, m in world.machines.items() if world.process(name) is None and not m.lost]
        out += [("renew", replica) for replica in self.layout.placement if replica not in store.renewed]
        if store.draining:
            out.append(("undrain",))
        return [*out, ("blackout",), *self.wishes()]

    def _faults_of(self, process: NodeProcess) -> list[Fault]:
        """What can happen to a node."""
        name, store = process.name, self.world.zookeeper
        blind = not self.world.network.reaches(name, ZOOKEEPER)
        out: list[Fault] = [("kill", name), ("thaw" if process.frozen else "freeze", name)]
        out.append(("see" if blind else "blind", name))
        out += [] if self.topology.bucketed else [("push", name)]
        spared = self.spares(self.precious(self.layout.hosted(name)))
        if spared:
            out += [("wipe", name, True), *([("wipe", name, False)] if self._left() > 2 else [])]
        if spared and name in store.members:
            out.append(("expire", name))
        hosted = {} if process.protocol is None else process.protocol.replicas
        for replica in [replica for replica in process.engine.queries if replica in hosted]:
            alone = not self.spares([replica])
            out += [] if alone else [("stop", name, replica)]
            out += [] if alone and hosted[replica].failures >= RESTARTS else [("fail", name, replica)]
        out += [("break_copy", name, copy.replica) for copy in self.world.copying.of(process)]
        if self.unsure:
            out += [("refuse", name, stream) for stream in self.delivering(name)]
            if name in store.doubted or spared:
                out.append(("trust" if name in store.doubted else "doubt", name))
        if not store.draining and len(self.world.processes()) > 2:
            out.append(("drain", name))
        return out

    def do(self, fault: Fault) -> None:
        kind, *arguments = fault
        getattr(self, str(kind))(*arguments)

    def spares(self, doomed: Sequence[ReplicaId]) -> bool:
        return spares(self.world, doomed)

    def losses(self) -> list[tuple[NodeId, ...]]:
        """The sets of two and three nodes that may be lost with their disks at the same moment."""
        running = sorted(self.running())
        sets = [names for size in (2, 3) for names in combinations(running, size)]
        hosted = {name: self.precious(self.layout.hosted(name)) for name in running}
        return [names for names in sets if self.spares([replica for name in names for replica in hosted[name]])]

    def delivering(self, name: NodeId) -> list[StreamId]:
        """The streams of which a node is about to hand a unit to a sink."""
        steps = [step for step in self.kernel.steps() if step.kind == "sink" and name in step.nodes]
        return [step.about for step in steps if isinstance(step.about, StreamId)]

    def _left(self) -> int:
        return sum(not machine.lost for machine in self.world.machines.values())

    # --- what is done ---------------------------------------------------------------------------------

    def cut(self, client: NodeId, server: NodeId, late: bool = False) -> None:
        """A connection breaks; messages that are under way may arrive ``late``."""
        self.world.network.fail(client, server, late=late)

    def cut_both(self, one: NodeId, other: NodeId) -> None:
        for pair in ((one, other), (other, one)):
            self.cut(*pair)

    def push(self, name: NodeId) -> None:
        process = self.process(name)
        if not process.frozen:
            process.post(PushArrived(f"rows {self.world.next_serial()}".encode()))

    def kill(self, name: NodeId) -> None:
        """kill -9: the process and its links are gone, the disk stays; the others find out one by one."""
        self.world.kill(name)

    def wipe(self, name: NodeId, returns: bool = True) -> None:
        """A node is lost with its disk and its session; it can return with an empty one, or never."""
        store = self.world.zookeeper
        self.world.kill(name)
        self.world.wipe(name)
        if name in store.members:
            store.expire(store.members[name].session)
        if not returns:
            self.world.machines[name].lost = True
            store.draining.pop(name, None)

    def lose(self, names: Sequence[NodeId]) -> None:
        """Several nodes are lost at once; they can return with empty disks."""
        for name in names:
            self.wipe(name)

    def blackout(self) -> None:
        for name in self.running():
            self.kill(name)

    def expire(self, name: NodeId) -> None:
        """The node lives on, but its session has ended; it begins another one when it finds out."""
        member = self.world.zookeeper.members.get(name)
        if member is not None:
            self.world.zookeeper.expire(member.session)
            self.kernel.after(0.0, begin_session, self.process(name))

    def freeze(self, name: NodeId) -> None:
        self.process(name).freeze()

    def thaw(self, name: NodeId) -> None:
        self.process(name).thaw()

    def blind(self, name: NodeId) -> None:
        """The node does not reach ZooKeeper, and works on."""
        self.world.network.block(name, ZOOKEEPER)
        self.world.network.block(ZOOKEEPER, name)
        self.process(name).client.touch()

    def see(self, name: NodeId) -> None:
        self.world.network.unblock(name, ZOOKEEPER)
        self.world.network.unblock(ZOOKEEPER, name)
        self.process(name).client.touch()

    def fail(self, name: NodeId, replica: ReplicaId) -> None:
        """A query ends by itself."""
        if not self.process(name).frozen:
            self.process(name).engine.fail(replica, "out of memory")

    def stop(self, name: NodeId, replica: ReplicaId) -> None:
        """A replica cannot go on, on a node that is well."""
        if not self.process(name).frozen:
            self.process(name).post(ReplicaStopped(replica, "the disk is full"))

    def break_copy(self, name: NodeId, replica: ReplicaId) -> None:
        """A copy does not come through."""
        self.world.copying.interrupt(self.process(name), replica)

    def refuse(self, name: NodeId, stream: StreamId) -> None:
        """A sink fails with a unit: it is asked again, or never again if it may not have the unit twice."""
        for step in self.kernel.steps():
            if step.kind == "sink" and name in step.nodes and step.about == stream:
                self.world.sinks_up = False
                self.take(step)
                self.world.sinks_up = True

    def doubt(self, name: NodeId) -> None:
        """The controller takes a node for unreachable."""
        self.world.zookeeper.doubted.add(name)
        self.world.zookeeper.notify("wishes")

    def trust(self, name: NodeId) -> None:
        self.world.zookeeper.doubted.discard(name)
        self.world.zookeeper.notify("wishes")

    def drain(self, name: NodeId) -> None:
        self.world.zookeeper.draining[name] = None
        self.world.zookeeper.notify("wishes")

    def undrain(self) -> None:
        self.world.zookeeper.draining.clear()
        self.world.zookeeper.notify("wishes")

    def renew(self, replica: ReplicaId) -> None:
        self.world.zookeeper.renewed[replica] = None
        self.world.zookeeper.notify("wishes")


def begin_session(process: NodeProcess) -> None:
    """A node finds out that its session has ended, and begins another one."""
    process.client.touch()
