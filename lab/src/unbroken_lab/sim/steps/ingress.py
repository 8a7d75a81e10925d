"""Schedules of steps that are about the ingress log: its members, newcomers, their disks and late documents."""

from __future__ import annotations

import random
from dataclasses import replace

from unbroken.errors import broken, require
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import INGRESS
from unbroken_lab.sim.flows import chain
from unbroken_lab.sim.sparing import intact
from unbroken_lab.sim.steps.cluster import SETTINGS
from unbroken_lab.sim.steps.faults import FaultyCluster
from unbroken_lab.sim.steps.flows import Choose
from unbroken_lab.sim.steps.schedules import LOOK_EVERY, TIME_CHANCE

LATE = 0.05
"""How often a node that hears from ZooKeeper late takes what it could hear at once."""

MENDING = 3_000
"""Steps within which a log that has lost its end has to be whole again."""


class IngressCluster(FaultyCluster):
    """A flow of one segment, of which the ingress matters.

    Asserted of the whole: each member of the in-sync set that is named by the layout holds on its disk every entry that
    any node has committed. Faults include a disk that loses the end of the log although that was forced, as long as
    another member is intact; until it is mended there are no others.
    """

    torn: ReplicaId | None = None
    through: int = 0

    def check(self) -> None:
        super().check()
        store = self.world.zookeeper
        for replica in self.layout.full(INGRESS):
            if self.layout.placement[replica] in store.sync.members and replica != self.torn:
                self._check_held(replica)

    def _check_held(self, replica: ReplicaId) -> None:
        held = self.world.where.get(replica)
        if held is None or held.log is None:
            return
        state = held.log.state(None)
        entries = {entry.index: entry for entry in state.entries}
        for entry in self.world.entries.values():
            if entry.index > state.committed and entries.get(entry.index) != entry:
                broken(f"{replica} has lost committed entry {entry.index}", replica)

    def committed(self) -> dict[NodeId, int]:
        """How far the members have committed."""
        found = {name: protocol.sources for name, protocol in self.protocols().items()}
        return {name: side.log.committed for name, side in found.items() if side is not None}

    def tear(self, name: NodeId, count: int) -> bool:
        """A node is killed, and its disk has lost the end of the log; False if the log may be nowhere else."""
        replica = self.layout.replica_on(name, INGRESS)
        members = {r for r in intact(self.world, INGRESS) if self.world.process(self.layout.placement[r]) is not None}
        if replica not in members or members == {replica} or self.torn is not None:
            return False
        # What it had acknowledged may be committed at any moment, as far as another member has it.
        self.through = min(self._last(replica), max(self._last(other) for other in members - {replica}))
        self.kill(name)
        log = self.world.where[replica].log
        if log is not None and log.lose_tail(count):
            self.torn = replica
        return True

    def _last(self, replica: ReplicaId) -> int:
        """The last entry in the log of a member."""
        log = self.world.where[replica].log
        state = None if log is None else log.state(None)
        return 0 if state is None else max([state.committed, *(entry.index for entry in state.entries)])

    def mended(self) -> bool:
        """Whether no log lacks anything."""
        if self.torn is None:
            return True
        store = self.world.zookeeper
        if self.torn in self.layout.placement:
            found = self.committed()
            name = self.layout.placement[self.torn]
            last = max([self.through, *self.world.entries])
            if name not in found or set(found) != store.sync.members or min(found.values()) < last:
                return False
        self.torn = None
        return True


def pick_ingress(choose: Choose) -> IngressCluster:
    """One to three members, and up to two nodes that can take their place."""
    members = 1 + choose(3)
    settings = replace(SETTINGS, ack_every=1 + choose(2))
    return IngressCluster(chain((1,), members), members, 6 + choose(10), settings, standbys=choose(3))


def run_ingress(seed: int, steps: int = 200) -> IngressCluster:
    """Crashes, restarts, newcomers, lost links, torn logs, late and racing documents, and pushes at any moment."""
    rng = random.Random(seed)
    cluster = pick_ingress(rng.randrange)
    late = rng.choice(list(cluster.world.machines))
    hectic = rng.choice((0.02, 0.05, 0.12))
    try:
        for step in range(steps):
            chance = rng.random()
            if chance < hectic:
                _disturb(cluster, rng, late)
            elif chance < hectic + 0.1 and cluster.running():
                leader = cluster.world.zookeeper.sync.leader
                name = leader if leader in cluster.running() and rng.random() < 0.8 else rng.choice(cluster.running())
                cluster.push(name)
            else:
                take_late(cluster, rng, late)
            if step % LOOK_EVERY == 0:
                cluster.check()
        cluster.settle()
        require(cluster.mended(), f"{cluster.torn} still lacks entries")
        last = max(cluster.world.entries, default=0)
        require(set(cluster.committed().values()) == {last}, f"members committed {cluster.committed()} of {last}")
    except Exception as error:
        raise AssertionError(f"run_ingress({seed}, {steps}): {error}") from error
    return cluster


def take_late(cluster: IngressCluster, rng: random.Random, late: NodeId) -> None:
    """Any step; but one node hears from ZooKeeper long after the others."""
    found = [s for s in cluster.steps() if s.kind != "document" or late not in s.nodes or rng.random() < LATE]
    if not found or rng.random() < TIME_CHANCE:
        cluster.advance()
    else:
        cluster.take(rng.choice(found))


def _disturb(cluster: IngressCluster, rng: random.Random, late: NodeId) -> None:
    """A fault that members of the ingress stand."""
    store, running = cluster.world.zookeeper, cluster.running()
    kind = rng.choice(("cut", "kill", "kill leader", "boot", "boot", "wipe", "tear", "torn blackout", "break", "all"))
    name = rng.choice(list(cluster.world.machines))
    links = list(cluster.world.network.connections)
    if kind == "cut" and links:
        cluster.cut(*rng.choice(links), late=rng.random() < 0.5)
    elif kind == "boot":
        cluster.boot(name)
    elif kind == "all":
        cluster.blackout()
    elif kind == "kill leader" and store.sync.leader in running:
        cluster.kill(store.sync.leader)
    elif kind == "kill" and name in running:
        cluster.kill(name)
    elif kind == "wipe" and name in running and cluster.spares(cluster.layout.hosted(name)):
        cluster.wipe(name)
    elif kind == "break" and name in running:
        for copy in cluster.world.copying.of(cluster.process(name)):
            cluster.break_copy(name, copy.replica)
    elif kind in ("tear", "torn blackout"):
        _tear(cluster, rng, late, everywhere=kind == "torn blackout")


def _tear(cluster: IngressCluster, rng: random.Random, late: NodeId, *, everywhere: bool) -> None:
    members = sorted(cluster.world.zookeeper.sync.members & set(cluster.running()))
    if not members or not cluster.tear(rng.choice(members), rng.randint(1, 4)):
        return
    if everywhere:
        cluster.blackout()
    for name in cluster.world.machines:
        cluster.boot(name)
    for _ in range(MENDING):
        if cluster.mended():
            return
        take_late(cluster, rng, late)
    raise AssertionError(f"{cluster.torn} is not mended: {cluster.committed()}")
