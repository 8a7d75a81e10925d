"""Does the faults of a schedule to a simulated world, and undoes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from unbroken.protocol.events import PushArrived, ReplicaStopped
from unbroken.protocol.replica.replica import RESTARTS
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.pause import Pause
from unbroken_lab.sim.content import is_fork
from unbroken_lab.sim.faults import (
    ALONE,
    HARMLESS,
    LEAD_MS,
    LEAD_SLOWNESS,
    MOST_LOST,
    MOST_POSTPONED,
    POSTPONED_MS,
    SET_MS,
    Fault,
    Kind,
)
from unbroken_lab.sim.sparing import forgettable, intact, restorable, spares
from unbroken_lab.sim.world import World
from unbroken_lab.sim.zookeeper import ZOOKEEPER


@dataclass
class Injector:
    """Does the faults of a schedule to a world, and undoes them.

    A ``fragile`` flow is hit by a fault that may cost it a replica only while it is whole. Others stand any number of
    them at once, except for what is lost for good.
    """

    world: World
    fragile: bool
    tell: Callable[[str], None]
    done: list[Fault] = field(default_factory=list)
    asked: int = 0
    _active: dict[int, tuple[Fault, Callable[[], None]]] = field(default_factory=dict)
    _wounded: bool = False
    _serial: int = 0
    _over: bool = False

    @property
    def skipped(self) -> int:
        """How many faults were left out, in the end: those it could not stand, or that there was nothing to do to."""
        return self.asked - len(self.done)

    def begin(self, faults: Sequence[Fault]) -> None:
        self.asked += len(faults)
        for fault in faults:
            self.world.kernel.at(fault.at_ms, self._strike, fault)

    def heal_all(self) -> None:
        """No more faults: everything that was away comes back, except disks that are lost."""
        self._over = True
        for _, undo in list(self._active.values()):
            undo()
        self._active.clear()
        for name in self.world.machines:
            self.world.boot(name)
        needed = max(self.world.topology.replicas.values())
        if len(self.world.machines) - len(self.world.zookeeper.draining) < needed:
            self.world.zookeeper.draining.clear()

    def _strike(self, fault: Fault) -> None:
        if self._over:
            return
        if fault.aimed:
            fault = self._aim(fault)
        if not self._bearable(fault):
            if fault.postponed < MOST_POSTPONED:
                again = replace(fault, postponed=fault.postponed + 1)
                self.world.kernel.after(POSTPONED_MS, self._strike, again)
            return
        if fault.aimed:
            self._prepare(fault)
            return
        if fault.kind is Kind.NODES:
            fault = replace(fault, more=self._choose(fault.more))
        self._wounded = self._wounded or fault.kind in ALONE
        undo = self._do(fault)
        if undo is None:
            return
        self.done.append(fault)
        self.world.counts[f"fault {fault.kind}"] += 1
        self.world.kernel.note(f"fault {fault}")
        self.tell(f"fault: {fault}")
        self._serial += 1
        self._active[self._serial] = (fault, undo)
        self.world.kernel.after(fault.length_ms, self._undo, self._serial)

    def _aim(self, fault: Fault) -> Fault:
        """The same fault of the node that leads the ingress; if there is another, it is one that could take over."""
        sync = self.world.zookeeper.sync
        others = sorted(sync.members - {sync.leader}) or sorted(set(self.world.machines) - {sync.leader})
        return replace(fault, target=sync.leader, other=others[int(fault.length_ms) % len(others)])

    def _prepare(self, fault: Fault) -> None:
        """Let the leader of the ingress be in the middle of something when it is struck."""
        network, leader = self.world.network, fault.target
        network.slow_down(leader, LEAD_SLOWNESS)
        self._push(fault)
        self.world.kernel.after(LEAD_MS, self._strike, replace(fault, aimed=False))
        self.world.kernel.after(2 * LEAD_MS, lambda _: network.slow_down(leader, 1.0))

    def _undo(self, number: int) -> None:
        found = self._active.pop(number, None)
        if found is not None:
            found[1]()

    def _bearable(self, fault: Fault) -> bool:
        if fault.kind in HARMLESS:
            return True
        busy = any(active.kind not in HARMLESS for active, _ in self._active.values())
        if fault.kind in ALONE or self.fragile or self._wounded:
            if busy or not self._whole():
                return False
            self._wounded = False
        if fault.kind is Kind.LOSS:
            return self.world.settings.snapshots
        if fault.kind in (Kind.WIPE, Kind.NODES, Kind.FULL_STORE):
            return self._spares(self._choose(fault.more) or (fault.target,))
        return not self.fragile or forgettable(self.world, fault.target)

    def _spares(self, names: Sequence[NodeId]) -> bool:
        layout = self.world.zookeeper.layout
        return spares(self.world, [replica for name in names for replica in layout.hosted(name)])

    def _choose(self, names: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
        """As many of these as the flow can lose at once, as it is at this moment."""
        sets = [found for size in range(MOST_LOST, 1, -1) for found in combinations(names, size)]
        return next((found for found in sets if self._spares(found)), names)

    def _whole(self) -> bool:
        """Whether everything is as redundant as it should be, and known to be."""
        world, store = self.world, self.world.zookeeper
        members = all(machine.process is not None and machine.process.begun for machine in world.machines.values())
        present = set(store.members) == set(world.machines) and not store.suspicions and not store.draining
        return members and present and not store.stopped and world.shortage() is None and not self._lagging()

    def _lagging(self) -> bool:
        """Whether somebody does not know the layout yet, or has not begun what it says."""
        version = self.world.zookeeper.layout.version
        for process in self.world.processes():
            if process.protocol is None or process.protocol.layout.version != version or process.frozen:
                return True
            if process.protocol.newcomers.joins:
                return True
        return False

    # --- what is done ---------------------------------------------------------------------------------

    def _do(self, fault: Fault) -> Callable[[], None] | None:
        """Do it, and give what undoes it; None if there was nothing to do it to."""
        world = self.world
        match fault.kind:
            case Kind.KILL | Kind.POWER | Kind.WIPE:
                return self._end(fault)
            case Kind.NODES:
                return self._lose_nodes(fault.more)
            case Kind.LOSS:
                return self._lose_shard(fault)
            case Kind.LOST_TAIL:
                return self._lose_tail(fault)
            case Kind.DAMAGE:
                return self._damage(fault)
            case Kind.BLACKOUT:
                for process in world.processes():
                    world.kill(process.name, silently=fault.length_ms > 2_000)
                return self._boot_all
            case Kind.FREEZE:
                return self._freeze(fault)
            case Kind.PART | Kind.PART_ONE_WAY | Kind.ISOLATE | Kind.BLIND:
                return self._part(fault)
            case Kind.ZOOKEEPER:
                world.zookeeper.go_down()
                world.touch_all()
                return self._zookeeper_up
            case Kind.QUERY | Kind.STOP | Kind.RENEW | Kind.FAILED_START | Kind.STUCK_QUERY:
                return self._hit_replica(fault)
            case Kind.DRAIN:
                return self._drain(fault)
            case Kind.PAUSE:
                return self._pause()
            case Kind.TEAR:
                return self._tear(fault)
            case Kind.TORN_WRITE | Kind.FAILED_WRITE | Kind.FULL_DISK | Kind.SLOW_DISK:
                return self._hit_disk(fault)
            case Kind.DAMAGED_UNIT:
                return self._damage_unit(fault)
            case Kind.FULL_STORE:
                return self._fill_disk(fault)
            case _:
                return self._disturb(fault)

    def _end(self, fault: Fault) -> Callable[[], None] | None:
        world, name = self.world, fault.target
        if world.process(name) is None:
            return None
        if fault.kind is Kind.WIPE:
            world.wipe(name)
        else:
            world.kill(name, silently=fault.kind is Kind.POWER)
        return lambda: world.boot(name)

    def _tear(self, fault: Fault) -> Callable[[], None] | None:
        """Light a fuse. If it has not burnt down when the time is over, nothing happens to the process."""
        world, process = self.world, self.world.process(fault.target)
        if process is None or process.fuse is not None:
            return None
        lit = process
        lit.fuse = fault.fuse

        def boot() -> None:
            lit.fuse = None
            world.boot(fault.target)

        return boot

    def _lose_shard(self, fault: Fault) -> Callable[[], None] | None:
        """All replicas of a shard are lost with their disks, if there is a snapshot of it and of whatever else that
        is the end of."""
        world, layout = self.world, self.world.zookeeper.layout
        shards = [shard for shard in world.topology.placed_shards if shard != INGRESS]
        nodes = sorted(layout.nodes_of(shards[int(fault.length_ms) % len(shards)]))
        doomed = [replica for name in nodes for replica in layout.hosted(name)]
        return self._lose_nodes(nodes) if restorable(world, doomed) else None

    def _lose_nodes(self, names: Sequence[NodeId]) -> Callable[[], None]:
        for name in names:
            self.world.wipe(name)

        def boot() -> None:
            for name in names:
                self.world.boot(name)

        return boot

    def _lose_tail(self, fault: Fault) -> Callable[[], None] | None:
        """The power fails everywhere, and one member of the ingress has lost the end of its log, as a disk does that
        has not forced it. Another one has it all."""
        world, store = self.world, self.world.zookeeper
        members = sorted(intact(world, INGRESS))
        if len(members) < 2 or store.sync.leader not in {store.layout.placement[r] for r in members}:
            return None
        chosen = members[int(fault.length_ms) % len(members)]
        for process in world.processes():
            world.kill(process.name, silently=False)
        held = world.where[chosen]
        assert held.log is not None
        count = held.log.lose_tail(1 + int(fault.length_ms) % 4)
        if not count:
            return self._boot_all
        world.counts["lost entries"] += count
        self.tell(f"{chosen} has lost the last {count} entries of its log")
        return self._boot_all

    def _damage(self, fault: Fault) -> Callable[[], None] | None:
        """A node is killed and finds that what its disk has of a replica is damaged: it starts without that."""
        world, disk = self.world, self.world.machines[fault.target].disk
        placed = sorted(r for r in world.zookeeper.layout.hosted(fault.target) if r in disk.replicas)
        if world.process(fault.target) is None or not placed:
            return None
        chosen = placed[int(fault.length_ms) % len(placed)]
        if not spares(world, [chosen]):
            return None
        world.kill(fault.target)
        if world.where.get(chosen) is disk.replicas.pop(chosen):
            del world.where[chosen]
        self.tell(f"{chosen} is damaged on the disk of {fault.target}")
        return lambda: world.boot(fault.target)

    def _hit_disk(self, fault: Fault) -> Callable[[], None] | None:
        """Something is wrong with the disk of a member of the ingress, which writes to it all the time."""
        world = self.world
        present = [world.process(name) for name in sorted(world.zookeeper.sync.members)]
        members = [found for found in present if found is not None and found.hosting.ingress is not None]
        if not members:
            return None
        chosen = members[int(fault.length_ms) % len(members)]
        name, machine, files = chosen.name, chosen.machine, chosen.disk.files
        self.tell(f"it is the disk of {name}")
        match fault.kind:
            case Kind.TORN_WRITE:
                files.fuse = fault.fuse - 1
            case Kind.FAILED_WRITE:
                files.failing = True
            case Kind.FULL_DISK:
                files.full = True
            case _:
                machine.disk_slowness = 20.0 + fault.length_ms % 300

        def heal() -> None:
            files.fuse, files.failing, files.full = None, False, False
            machine.disk_slowness = 1.0

        return heal

    def _damage_unit(self, fault: Fault) -> Callable[[], None] | None:
        """The next unit that a replica writes to its outbox is not on disk as it was written."""
        world, disk = self.world, self.world.machines[fault.target].disk
        placed = [r for r in sorted(world.zookeeper.layout.hosted(fault.target)) if r in disk.replicas]
        placed = [replica for replica in placed if spares(world, [replica])]
        if world.process(fault.target) is None or not placed:
            return None
        chosen = placed[int(fault.length_ms) % len(placed)]
        disk.replicas[chosen].bad_blocks += 1
        self.tell(f"the next unit of {chosen} is damaged")
        return lambda: None

    def _boot_all(self) -> None:
        for name in self.world.machines:
            self.world.boot(name)

    def _freeze(self, fault: Fault) -> Callable[[], None] | None:
        process = self.world.process(fault.target)
        if process is None or process.frozen:
            return None
        frozen = process
        frozen.freeze()
        return lambda: frozen.thaw() if frozen.alive and frozen.frozen else None

    def _part(self, fault: Fault) -> Callable[[], None]:
        world, name = self.world, fault.target
        match fault.kind:
            case Kind.PART:
                ways = [(name, fault.other), (fault.other, name)]
            case Kind.PART_ONE_WAY:
                ways = [(name, fault.other)]
            case Kind.BLIND:
                ways = [(name, ZOOKEEPER), (ZOOKEEPER, name)]
            case _:
                others = [other for other in [*world.machines, ZOOKEEPER] if other != name]
                ways = [way for other in others for way in ((name, other), (other, name))]
        mine = [way for way in ways if world.network.reaches(*way)]
        for way in mine:
            world.network.block(*way)
        world.touch_all()

        def heal() -> None:
            for way in mine:
                world.network.unblock(*way)
            world.touch_all()

        return heal

    def _zookeeper_up(self) -> None:
        self.world.zookeeper.come_up()
        self.world.touch_all()

    def _hit_replica(self, fault: Fault) -> Callable[[], None] | None:
        process = self.world.process(fault.target)
        if process is None or process.frozen or process.protocol is None:
            return None
        found = sorted(replica for replica in process.protocol.replicas if not is_fork(replica))
        if not found:
            return None
        replica = found[int(fault.length_ms) % len(found)]
        if fault.kind in (Kind.QUERY, Kind.FAILED_START):
            more = 1 + int(fault.length_ms) % 2 if fault.kind is Kind.FAILED_START else 0
            if process.protocol.replicas[replica].failures + more >= RESTARTS and not spares(self.world, [replica]):
                return None
            process.engine.fail(replica, "out of memory")
            process.engine.refusals[replica] = more
        elif fault.kind is Kind.RENEW:
            self.world.zookeeper.renewed[replica] = None
        else:
            if not spares(self.world, [replica]):
                return None
            process.engine.stuck = fault.kind is Kind.STUCK_QUERY
            process.post(ReplicaStopped(replica, "the disk is full"))
        return process.engine.heal

    def _fill_disk(self, fault: Fault) -> Callable[[], None] | None:
        """The disk of a node takes no units."""
        process = self.world.process(fault.target)
        if process is None or process.frozen or process.protocol is None:
            return None
        disk = process.disk
        disk.full = True

        def heal() -> None:
            disk.full = False

        return heal

    def _drain(self, fault: Fault) -> Callable[[], None] | None:
        world, name = self.world, fault.target
        needed = max(max(world.topology.replicas.values()), 2)
        if world.zookeeper.draining or len(world.machines) <= needed:
            return None
        world.zookeeper.draining[name] = None

        def undrain() -> None:
            world.zookeeper.draining.pop(name, None)

        return undrain

    def _pause(self) -> Callable[[], None]:
        store = self.world.zookeeper
        store.pause = Pause(int(self.world.kernel.now_ms))

        def resume() -> None:
            store.pause = None

        return resume

    def _disturb(self, fault: Fault) -> Callable[[], None] | None:
        world, name = self.world, fault.target
        machine = world.machines[name]
        match fault.kind:
            case Kind.SLOW:
                machine.slowness = 2.0 + fault.length_ms % 10

                def fast() -> None:
                    machine.slowness = 1.0

                return fast
            case Kind.SLOW_LINK:
                world.network.slow_down(name, 5.0 + fault.length_ms % 100)
                return lambda: world.network.slow_down(name, 1.0)
            case Kind.CUT:
                world.network.cut(name, fault.other)
            case Kind.STALLED_COPY:
                world.copying.stalled.add(name)
                return lambda: world.copying.stalled.discard(name)
            case Kind.SINK:
                world.sinks_up = False
                return self._sinks_up
            case Kind.CLOCK:
                machine.skew_ms += SET_MS * (1.0 - fault.length_ms / 5_000.0)
            case Kind.PUSH:
                return self._push(fault)
            case Kind.SOURCE:
                return self._lose_source(fault)
        return lambda: None

    def _sinks_up(self) -> None:
        self.world.sinks_up = True

    def _push(self, fault: Fault) -> Callable[[], None] | None:
        process = self.world.process(fault.target)
        if process is None or not process.begun or process.frozen or self.world.topology.bucketed:
            return None
        process.post(PushArrived(f"rows {self.world.next_serial()}".encode()))
        return lambda: None

    def _lose_source(self, fault: Fault) -> Callable[[], None] | None:
        """A source cannot be reached. If all sources are cut together, nothing can be said of the flow meanwhile."""
        world = self.world
        source = world.topology.sources[int(fault.length_ms) % len(world.topology.sources)]
        if not world.topology.bucketed or source in world.sources.away:
            return None
        world.sources.away.add(source)
        return lambda: world.sources.away.discard(source)
