"""A page without a cluster: the protocol on simulated machines, as fast as the clock, shown like a real flow.

The states have the same form as those of real nodes, and as far as the protocol knows them they are the real thing;
micro-batches and state sizes are made up from what the simulator takes them to cost. Actions are done to the simulated
machines; killing and freezing are faults of the test kit's vocabulary. Nothing else on this host is touched.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from msgspec import structs

from unbroken.coordination.documents import Suspicion
from unbroken.errors import Refused, require
from unbroken.node.reports.protocol_status import protocol_status
from unbroken.observe.status.node import BatchStatus, CodeStatus, CoordinationStatus, NodeState, NodeStatus
from unbroken.page.actions import ActionRequest
from unbroken.page.page import Page, PageOptions
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.placement import FirstLayout
from unbroken.testing.faults import Fault, Freeze, Kill
from unbroken_lab.page.faults import FOREVER_S, simulated
from unbroken_lab.sim.injector import Injector
from unbroken_lab.sim.machine import Machine, NodeProcess
from unbroken_lab.sim.sources import Pulse
from unbroken_lab.sim.world import Setup, World

KEPT = 300
"""Notices of the history, as many as ZooKeeper keeps of a real one."""

RESTART_S = 6.0
"""A killed node is restarted after a while, as `unbroken run` does."""

LONGEST_STEP_MS = 2_500.0
"""What is simulated for one look at most: who was away for longer, or has a slow machine, finds that time has stood
still."""

UNITS_KEPT = 500
"""Units of a stream whose content is remembered to compare copies with; a run without end must not keep all."""


class SimulatedFlow:
    """A simulated flow that goes on by itself whenever it is looked at; safe to use from several threads.

    ``began_ms`` is the time of day at which it begins, ``clock`` the seconds that pass.
    """

    def __init__(
        self,
        setup: Setup,
        seed: int = 0,
        name: str = "simulated",
        *,
        clock: Callable[[], float] = time.monotonic,
        began_ms: int | None = None,
    ) -> None:
        self.name = name
        self.world = World(setup, seed)
        self._clock = clock
        self._lock = threading.Lock()
        self._began_ms = int(time.time() * 1000) if began_ms is None else began_ms
        self._seen_s = clock()
        self._looked = False
        self._rows = 0
        self._entries = 0
        self._pruned_ms = 0.0

    def begin_faults(self, faults: Sequence[Fault]) -> None:
        """Let these happen, each ``after_s`` seconds from now; one that the flow could not stand is left out."""
        self._inject(faults, fragile=True)

    def warm_up(self, ms: float) -> None:
        """Simulate for a while before anybody looks, as if it had begun so much earlier."""
        with self._lock:
            require(not self._looked, "the past of a flow that was looked at cannot be made longer")
            self._run(ms)
            self._began_ms -= int(ms)
            self._seen_s = self._clock()

    def look(self) -> FlowSnapshot:
        with self._lock:
            self._looked = True
            now_s = self._clock()
            past_ms = min((now_s - self._seen_s) * 1000, LONGEST_STEP_MS)
            self._seen_s = now_s
            self._run(past_ms)
            return self._snapshot()

    def do(self, wish: ActionRequest) -> str:
        """Do something to the simulated machines."""
        with self._lock:
            if wish.node not in self.world.machines:
                raise Refused(f"flow {self.name} has no node {wish.node!r}")
            match wish.action:
                case "drain":
                    return self._drain(wish.node)
                case "undrain":
                    if self.world.zookeeper.draining.pop(wish.node, self) is self:
                        raise Refused(f"{wish.node} is not being drained")
                    return f"{wish.node} may be used again"
                case "reinit":
                    return self._reinit(wish)
                case "kill" | "freeze" | "thaw":
                    return self._strike(wish.action, wish.node)
            raise Refused(f"there is no action {wish.action!r} here")

    @property
    def offered(self) -> tuple[str, ...]:
        return ("drain", "undrain", "reinit", "kill", "freeze", "thaw")

    # --- time -----------------------------------------------------------------------------------------

    def _run(self, ms: float) -> None:
        kernel = self.world.kernel
        kernel.run(kernel.now_ms + ms)
        entries = self.world.entries
        while self._entries + 1 in entries:
            self._entries += 1
            entry = entries[self._entries]
            self._rows += Pulse.of(entry).rows if entry.pulse else 0
        if kernel.now_ms - self._pruned_ms > 60_000:
            self._pruned_ms = kernel.now_ms
            for units in self.world.units.values():
                for number in sorted(units)[:-UNITS_KEPT]:
                    del units[number]

    # --- what is done ---------------------------------------------------------------------------------

    def _strike(self, action: str, node: NodeId) -> str:
        process = self.world.process(node)
        if process is None:
            raise Refused(f"{node} is dead")
        if action == "kill":
            self._inject([Kill(node, back_after_s=RESTART_S)])
            return f"{node} was killed; it is started again in {RESTART_S:.0f} s"
        if process.frozen is (action == "freeze"):
            raise Refused(f"{node} is {'frozen already' if process.frozen else 'not frozen'}")
        if action == "freeze":
            self._inject([Freeze(node, FOREVER_S)])
            return f"{node} is frozen"
        process.thaw()
        return f"{node} goes on"

    def _inject(self, faults: Sequence[Fault], *, fragile: bool = False) -> None:
        """Let the simulator's injector do them; those that are due happen at once."""
        now_ms = self.world.kernel.now_ms
        Injector(self.world, fragile, lambda _: None).begin([simulated(fault, now_ms) for fault in faults])
        self.world.kernel.run(now_ms)

    def _drain(self, node: NodeId) -> str:
        store = self.world.zookeeper
        left = set(store.members) - set(store.draining) - {node}
        most = max(self.world.topology.replicas.values())
        if len(left) < most:
            raise Refused(f"{node} cannot be drained: a shard has {most} replicas, and {len(left)} nodes would be left")
        store.draining[node] = None
        return f"{node} is to be left; it can be stopped when nothing is on it any more"

    def _reinit(self, wish: ActionRequest) -> str:
        try:
            shard = ShardId.parse(wish.shard)
        except ValueError:
            raise Refused(f"{wish.shard!r} is not a shard, such as totals.0") from None
        layout = self.world.zookeeper.layout
        replica = layout.replica_on(wish.node, shard)
        if replica is None:
            raise Refused(f"{shard} has no replica on {wish.node}")
        if not layout.full(shard) - {replica}:
            raise Refused(f"{replica} is the only replica of {shard}: there is no peer to build it again from")
        self.world.zookeeper.renewed[replica] = None
        return f"{replica} on {wish.node} is to be built again from its peer"

    # --- what is seen ---------------------------------------------------------------------------------

    def _snapshot(self) -> FlowSnapshot:
        world, store = self.world, self.world.zookeeper
        frozen = frozenset(process.name for process in world.processes() if process.frozen)
        return FlowSnapshot(
            time_ms=self._began_ms + int(world.kernel.now_ms),
            flow=self.name,
            states=tuple(self._state(machine) for _, machine in sorted(world.machines.items())),
            layout=self._layout(),
            suspicions=tuple(Suspicion(suspect, by, found.reason) for (suspect, by), found in store.suspicions.items()),
            history=self._history(),
            zookeeper_away=not store.up,
            local=frozenset(process.name for process in world.processes()),
            frozen=frozen,
        )

    def _history(self) -> tuple[Reported, ...]:
        """What was reported; the first layout is not, because a simulated flow begins with it."""
        first = Reported(0, "controller", FirstLayout(tuple(self.world.machines)))
        told = [first, *self.world.zookeeper.history][-KEPT:]
        return tuple(replace(reported, time_ms=self._began_ms + reported.time_ms) for reported in told)

    def _layout(self) -> Layout:
        """The layout, with times of day instead of simulated time."""
        layout = self.world.zookeeper.layout
        since = {shard: self._began_ms + int(at_ms) for shard, at_ms in layout.short_since.items()}
        return replace(layout, short_since=since) if since else layout

    def _state(self, machine: Machine) -> NodeStatus:
        process, name = machine.process, machine.name
        if process is None or not process.alive:
            return NodeStatus(node=name, state=NodeState.DEAD, reason="killed by signal 9")
        if process.frozen:
            return NodeStatus(node=name, state=NodeState.SILENT, reason="it did not answer within 2 s")
        if process.protocol is None:
            return NodeStatus(node=name, state=NodeState.STARTING)
        return self._running(process, process.protocol)

    def _running(self, process: NodeProcess, protocol: NodeProtocol) -> NodeStatus:
        known = protocol_status(protocol, self.name, process.clock_ms(), process.wall_ms())
        line = self.world.zookeeper.line
        reached = process.client.session is not None and process.client.reachable
        batches = {str(replica): self._batch(process, replica) for replica in protocol.replicas}
        ingress = known.ingress if process.hosting.ingress is not None else None
        return structs.replace(
            known,
            state=NodeState.RUNNING,
            coordination=CoordinationStatus(connected=reached, controller=bool(line) and line[0].node == process.name),
            code=CodeStatus(generation=1, file="simulated.py", as_given=True),
            replicas=tuple(structs.replace(one, batch=batches.get(one.replica)) for one in known.replicas),
            ingress=None if ingress is None else structs.replace(ingress, rows=self._rows),
            traffic=dict(protocol.traffic),
        )

    def _batch(self, process: NodeProcess, replica: ReplicaId) -> BatchStatus | None:
        """The last micro-batch, which takes about what the simulator lets it take."""
        query = process.engine.queries.get(replica)
        if query is None or replica.shard == INGRESS:
            return None
        costs, disk = query.costs, query.disk
        chance = Random(f"{replica} {disk.committed}")
        rows = self._rows_of(replica.shard)
        query_ms = (costs.batch_ms + rows * costs.row_us / 1000) * chance.uniform(0.7, 1.3) * process.machine.slowness
        parts = {
            "latestOffset": 12 * chance.uniform(0.5, 1.5),
            "queryPlanning": 9 * chance.uniform(0.7, 1.3),
            "addBatch": query_ms,
            "walCommit": costs.commit_ms * chance.uniform(0.6, 1.2),
            "commitOffsets": costs.commit_ms * chance.uniform(0.6, 1.2),
        }
        parts = {part: round(took, 1) for part, took in parts.items()}
        size = Random(str(replica.shard)).uniform(0.6e6, 40e6) * (1 + min(disk.committed, 2_000) / 2_000)
        return BatchStatus(
            number=disk.committed,
            duration_ms=parts | {"triggerExecution": round(sum(parts.values()) + 4, 1)},
            input_rows=rows,
            state_file_bytes=int(size),
        )

    def _rows_of(self, shard: ShardId) -> int:
        """Rows of a micro-batch, as sources share them out."""
        period_s = self.world.settings.pulse_min_ms / 1000
        share = max(1, len(self.world.topology.shards(shard.part)))
        return int(self.world.sources.rows_per_s * period_s / share)


def page_of_simulation(flow: SimulatedFlow, options: PageOptions, token: str | None = None) -> Page:
    """The page of a simulated flow, to which everything may be done."""
    return Page(flow.look, flow, token or secrets.token_urlsafe(12), options, simulated=True)
