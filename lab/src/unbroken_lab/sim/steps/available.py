"""Clusters whose segments go on without missing input: forks, partitions, sources that are away.

Asserted as it happens: receivers take tentative units of rising pulses only, what policies forbid is not given out, and
replicas give out what is stable and forks what is not. At rest nothing tentative is left anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from unbroken.errors import broken, require
from unbroken.protocol.events import Event, UnitArrived
from unbroken.protocol.instructions import (
    Deliver,
    Instruction,
    Report,
    SendUnit,
    StartReplica,
    StoreUnit,
)
from unbroken.protocol.policies.fork.forks import Forks
from unbroken.protocol.policies.fork.instructions import FeedFork, ForkReplica, PauseReplica
from unbroken.protocol.policies.fork.missing_input import InputWatch
from unbroken.protocol.policies.undo.instructions import UndoReplica
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.consistency import Consistency, InputHandling
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.replicas import InputComplete, InputMissing, InputReturned
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.content import is_fork
from unbroken_lab.sim.machine import NodeProcess
from unbroken_lab.sim.steps.cluster import COSTS, SETTINGS
from unbroken_lab.sim.steps.faults import Fault, FaultyCluster
from unbroken_lab.sim.steps.observer import Observer
from unbroken_lab.sim.story import Unrest

CORES = 1_000
"""Micro-batches do not wait for each other."""


class AvailableObserver(Observer):
    """Looks at what is tentative. ``counts`` says how much of what is to be tested has really happened; of replicas
    that have rested, "undos" are those whose state was built again and "redos" those that went on from theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._arrivals: dict[tuple[NodeProcess, ShardId], dict[int, float]] = {}
        self._heard: dict[tuple[NodeProcess, ReplicaId, StreamId], int] = {}
        self._resting: set[tuple[NodeProcess, ReplicaId]] = set()
        self._stabilizing: set[tuple[NodeProcess, str]] = set()

    def event(self, now_ms: float, name: NodeId, event: Event) -> None:
        super().event(now_ms, name, event)
        process = self._process(name)
        if process is not None and isinstance(event, UnitArrived):
            came = self._arrivals.setdefault((process, event.header.stream.consumer), {})
            since = event.header.pulse - 1 if event.header.stable else event.header.since
            for pulse in range(since + 1, event.header.pulse + 1) if not self.nonsense else ():
                came.setdefault(pulse, now_ms)

    def step(self, now_ms: float, name: NodeId, step: Instruction) -> None:
        super().step(now_ms, name, step)
        process = self._process(name)
        if process is None:
            return
        match step:
            case StoreUnit(replica, header):
                self._stored(process, replica, header)
            case SendUnit(_, replica, header) | Deliver(replica, header):
                if header.stable == is_fork(replica):
                    broken(f"{replica} gives out {header}", replica)
                if not header.stable:
                    self.counts["given"] += 1
                    self._given(process, header, now_ms)
            case FeedFork(_, stream, _, fork, number):
                fed = process.disk.replicas.get(fork)
                require(
                    fed is None or (stream.home, number) not in fed.inbox,
                    f"{fork} is fed unit {number} of {stream} twice",
                    stream,
                    unit=number,
                )
            case ForkReplica(replica, _, version):
                at = process.disk.replicas[replica].committed
                require(at == version, f"{replica} is at {at} and forked at {version}", replica)
                self.counts["forks"] += 1
            case PauseReplica(replica):
                query = process.engine.queries.get(replica)
                require(query is None or not query.busy, f"{replica} is paused within a micro-batch", replica)
                self.counts["pauses"] += 1
                self._resting.add((process, replica))
            case UndoReplica(replica):
                self.counts["undos"] += 1
                self._resting.discard((process, replica))
            case StartReplica(replica):
                self.counts["redos"] += (process, replica) in self._resting
                self._resting.discard((process, replica))
            case Report(notice):
                self._reported(process, notice)

    def _process(self, name: NodeId) -> NodeProcess | None:
        return None if self.world is None else self.world.process(name)

    def _stored(self, process: NodeProcess, replica: ReplicaId, header: UnitHeader) -> None:
        if not header.stable:
            key = (process, replica, header.stream.home)
            require(header.pulse > self._heard.get(key, 0), f"{replica} takes pulse {header.pulse} again", replica)
            self._heard[key] = header.pulse
            self.counts["taken by replicas"] += 1

    def _reported(self, process: NodeProcess, notice: Notice) -> None:
        """What a node reports about the input of one of its replicas."""
        match notice:
            case InputMissing(replica):
                self.counts["failures"] += 1
                self.counts["failures while stabilizing"] += (process, str(replica)) in self._stabilizing
                self._stabilizing.discard((process, str(replica)))
            case InputReturned(replica):
                self.counts["stabilizations"] += 1
                self._stabilizing.add((process, str(replica)))
            case InputComplete(replica):
                self._stabilizing.discard((process, str(replica)))

    def _given(self, process: NodeProcess, header: UnitHeader, now_ms: float) -> None:
        """What is given out is allowed by the policies, and not given too early."""
        assert process.protocol is not None
        stream = header.stream.home
        watches = process.protocol.policies.of(Forks).watches.values()
        watch = next(found for found in watches if found.replica.replica.shard == stream.producer)
        during = watch.how.during_failure, watch.how.during_stabilization
        policy = during[watch.state is Consistency.STABILIZATION]
        require(policy is not InputHandling.SUSPEND, f"{header} is given out while {watch.state}")
        require(watch.state is not Consistency.STABLE, f"{header} is given out by a stable replica")
        # What is held in one state may have been given out in another one, unless both do the same.
        if policy is InputHandling.DELAY and during[0] is during[1]:
            came = self._arrivals[process, stream.producer]
            first = min(came[pulse] for pulse in range(header.since + 1, header.pulse + 1) if pulse in came)
            require(now_ms >= first + watch.how.patience_ms, f"{header} is given out after {now_ms - first} ms")


class AvailableCluster(FaultyCluster):
    """A cluster whose links can be parted for a while, in one direction or both, and whose sources can be away.

    A micro-batch takes ``cost_ms``, and the copy of a state and the start of a query on it ``fork_ms``.
    """

    check_every = 4
    observer: AvailableObserver

    def __init__(
        self,
        topology: Topology,
        nodes: int,
        pulses: int,
        settings: ProtocolSettings = SETTINGS,
        standbys: int = 0,
        cost_ms: float = 0.0,
        fork_ms: float = 0.0,
    ) -> None:
        costs = replace(COSTS, batch_ms=cost_ms, fork_ms=fork_ms, cores=CORES)
        super().__init__(topology, nodes, pulses, settings, standbys, costs=costs)

    def observe(self) -> AvailableObserver:
        return AvailableObserver()

    @property
    def counts(self) -> Counter[str]:
        return self.observer.counts + Counter({"taken by sinks": self.world.counts["tentative"]})

    def watches(self) -> Iterator[tuple[NodeId, InputWatch]]:
        for name, protocol in self.protocols().items():
            for watch in protocol.policies.of(Forks).watches.values():
                yield name, watch

    # --- faults ---------------------------------------------------------------------------------------

    def faults(self) -> list[Fault]:
        out, world = super().faults(), self.world
        if self.topology.bucketed:
            out += [("back" if source in world.sources.away else "leave", source) for source in self.topology.sources]
        for one, other in combinations(sorted(self.running()), 2):
            ways = [world.network.reaches(*way) for way in ((one, other), (other, one))]
            out += [("part", one, other), ("stall", one, other), ("stall", other, one)] if all(ways) else []
            out += [] if all(ways) else [("heal", one, other)]
        for process in world.processes():
            out += [("spoil", process.name, query) for query in process.engine.queries if is_fork(query)]
        return out

    def leave(self, source: str) -> None:
        """A source cannot be asked any more; what it has meanwhile comes when it is back."""
        self.world.sources.away.add(source)

    def back(self, source: str) -> None:
        self.world.sources.away.discard(source)

    def part(self, one: NodeId, other: NodeId) -> None:
        """Two nodes do not reach each other."""
        self.cut_both(one, other)
        self.stall(one, other)
        self.stall(other, one)

    def heal(self, one: NodeId, other: NodeId) -> None:
        for way in ((one, other), (other, one)):
            self.world.network.unblock(*way)

    def stall(self, sender: NodeId, receiver: NodeId) -> None:
        """What is sent in one direction does not arrive for a while."""
        self.world.network.block(sender, receiver)

    def spoil(self, name: NodeId, fork: ReplicaId) -> None:
        """The query of a fork fails, or does not even start."""
        if not self.process(name).frozen:
            self.observer.counts["failed forks"] += 1
            self.process(name).engine.fail(fork, "out of memory")

    def kill(self, name: NodeId) -> None:
        forks = [replica for replica in self.process(name).engine.queries if is_fork(replica)]
        self.observer.counts["killed with a fork"] += bool(forks)
        super().kill(name)

    # --- the end --------------------------------------------------------------------------------------

    def at_rest(self) -> Unrest | str | None:
        return super().at_rest() or self.untidy()

    def untidy(self) -> str | None:
        """What was tentative and is not tidied up."""
        for name, watch in self.watches():
            replica, process = watch.replica.replica, self.process(name)
            query = process.engine.queries.get(replica)
            if query is None or query.stopped or watch.paused:
                return f"the query of {replica} on {name} does not run"
            if watch.uncertain or watch.outbox.waiting or watch.outbox.given:
                return f"{replica} on {name} keeps {watch.inputs} and {watch.outbox}"
        for process in self.world.processes():
            if process.protocol is None:
                broken(f"{process.name} has not begun")
            audience = process.protocol.policies.of(Forks).audience
            if any(audience.queues.values()) or audience.under_way:
                return f"{process.name} has yet to show {audience.queues} {audience.under_way}"
            for replica, disk in process.disk.replicas.items():
                kept = [key for key in disk.inbox if key[0].home != key[0]]
                if kept:
                    return f"{process.name} still has {kept} in the inbox of {replica}"
        return None
