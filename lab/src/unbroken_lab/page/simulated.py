"""A page without a cluster: the protocol on simulated machines, as fast as the clock, shown like a real flow.

The states have the same form as those of real nodes, and as far as the protocol knows them they are the real thing;
micro-batches and state sizes are made up from what the simulator takes them to cost. Actions are done to the simulated
machines. Nothing else on this host is touched.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from unbroken.coordination.documents import Suspicion
from unbroken.errors import Refused, require
from unbroken.node.health import redundancy
from unbroken.node.status import flow_shape, replica_states
from unbroken.page.actions import Wish
from unbroken.page.page import Page, PageOptions
from unbroken.page.snapshot import Sentence, Snapshot
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken_lab.sim.faults import Fault, Injector
from unbroken_lab.sim.machine import Machine, NodeProcess
from unbroken_lab.sim.sources import Pulse
from unbroken_lab.sim.world import Setup, World

KEPT = 300
"""Sentences of the history, as many as ZooKeeper keeps of a real one."""

RESTART_MS = 6_000.0
"""A killed node is started again after a while, as `unbroken run` does."""

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
        self._killed: dict[NodeId, str] = {}

    def begin_faults(self, faults: list[Fault]) -> None:
        """Let these happen to it."""
        Injector(self.world, True, lambda _: None).begin(faults)

    def warm_up(self, ms: float) -> None:
        """Simulate for a while before anybody looks, as if it had begun so much earlier."""
        with self._lock:
            require(not self._looked, "the past of a flow that was looked at cannot be made longer")
            self._run(ms)
            self._began_ms -= int(ms)
            self._seen_s = self._clock()

    def look(self) -> Snapshot:
        with self._lock:
            self._looked = True
            now_s = self._clock()
            past_ms = min((now_s - self._seen_s) * 1000, LONGEST_STEP_MS)
            self._seen_s = now_s
            self._run(past_ms)
            return self._snapshot()

    def do(self, wish: Wish) -> str:
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
            self.world.kill(node)
            self._killed[node] = "killed by signal 9"
            self.world.kernel.after(RESTART_MS, lambda _: self.world.boot(node))
            return f"{node} was killed; it is started again in {RESTART_MS / 1000:.0f} s"
        if process.frozen is (action == "freeze"):
            raise Refused(f"{node} is {'frozen already' if process.frozen else 'not frozen'}")
        if action == "freeze":
            process.freeze()
            return f"{node} is frozen"
        process.thaw()
        return f"{node} goes on"

    def _drain(self, node: NodeId) -> str:
        store = self.world.zookeeper
        left = set(store.members) - set(store.draining) - {node}
        most = max(self.world.topology.replicas.values())
        if len(left) < most:
            raise Refused(f"{node} cannot be drained: a shard has {most} replicas, and {len(left)} nodes would be left")
        store.draining[node] = None
        return f"{node} is to be left; it can be stopped when nothing is on it any more"

    def _reinit(self, wish: Wish) -> str:
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

    def _snapshot(self) -> Snapshot:
        world, store = self.world, self.world.zookeeper
        frozen = frozenset(process.name for process in world.processes() if process.frozen)
        return Snapshot(
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

    def _history(self) -> tuple[Sentence, ...]:
        """What was reported; the first layout is not, because a simulated flow begins with it."""
        first = f"first layout on {', '.join(self.world.machines)}"
        told = [(0.0, first), *self.world.zookeeper.history]
        return tuple(self._sentence(at_ms, text) for at_ms, text in told[-KEPT:])

    def _layout(self) -> Layout:
        """The layout, with times of day instead of simulated time."""
        layout = self.world.zookeeper.layout
        since = {shard: self._began_ms + int(at_ms) for shard, at_ms in layout.short_since.items()}
        return replace(layout, short_since=since) if since else layout

    def _sentence(self, at_ms: float, text: str) -> Sentence:
        """What a node says has its name before it; the rest is said by the controller."""
        node, colon, rest = text.partition(": ")
        if not colon or node not in self.world.machines:
            line = self.world.zookeeper.line
            node, rest = line[0].node if line else "controller", text
        return Sentence(self._began_ms + int(at_ms), node, rest)

    def _state(self, machine: Machine) -> dict[str, Any]:
        process, name = machine.process, machine.name
        if process is None or not process.alive:
            return {"node": name, "state": "dead", "reason": self._killed.get(name, "killed by signal 9")}
        if process.frozen:
            return {"node": name, "state": "silent", "reason": "it did not answer within 2 s"}
        out: dict[str, Any] = {"node": name, "pid": None, "state": "starting", "story": []}
        protocol = process.protocol
        if protocol is None:
            return out
        return out | {"state": "running"} | self._running(process, protocol)

    def _running(self, process: NodeProcess, protocol: NodeProtocol) -> dict[str, Any]:
        topology = self.world.topology
        progress = {replica: self._progress(process, replica) for replica in protocol.replicas}
        store = self.world.zookeeper
        reached = process.client.session is not None and process.client.reachable
        out: dict[str, Any] = {
            "layout_version": protocol.layout.version,
            "coordination": {
                "connected": reached,
                "controller": bool(store.line) and store.line[0].node == process.name,
            },
            "joining": {str(replica): {"phase": join.phase.value} for replica, join in protocol.joining.joins.items()},
            "code": {"generation": 1, "file": "simulated.py", "as_given": True},
            "flow": flow_shape(self.name, topology),
            "links": sorted(protocol.links - {process.name}),
            "replicas": replica_states(protocol, progress, process.clock_ms(), process.wall_ms()),
            "redundancy": redundancy(protocol),
            "held": {str(replica): copy.version for replica, copy in protocol.holding.copies.items()},
            "sinks": {
                str(stream): {"delivered": delivery.delivered} for stream, delivery in protocol.sinks.deliveries.items()
            },
            "divergences": [str(found) for found in protocol.comparison.divergences],
            "traffic": dict(protocol.traffic),
        }
        if protocol.sources is not None and process.hosting.ingress is not None:
            out["ingress"] = self._ingress(protocol)
        return out

    def _ingress(self, protocol: NodeProtocol) -> dict[str, Any]:
        sources = protocol.sources
        assert sources is not None
        log = sources.log
        return {
            "leading": log.leading,
            "term": log.sync.term,
            "members": sorted(log.sync.members),
            "pulse": log.last_pulse,
            "ended": log.ended,
            "period_ms": round(sources.pulse.period_ms, 1),
            "in_flight": protocol.pace.in_flight(),
            "rows": self._rows,
            "bad_rows": 0,
            "late_rows": 0,
            "clock_offset_ms": 0.0,
            "unreached_ms": {},
        }

    def _progress(self, process: NodeProcess, replica: ReplicaId) -> dict[str, Any]:
        """The last micro-batch, which takes about what the simulator lets it take."""
        query = process.hosting.queries.get(replica)
        if query is None or replica.shard == INGRESS:
            return {}
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
        return {
            "duration_ms": parts | {"triggerExecution": round(sum(parts.values()) + 4, 1)},
            "batch": disk.committed,
            "input_rows": rows,
            "state_files": int(size),
        }

    def _rows_of(self, shard: ShardId) -> int:
        """Rows of a micro-batch, as sources share them out."""
        period_s = self.world.settings.pulse_min_ms / 1000
        share = max(1, len(self.world.topology.shards(shard.part)))
        return int(self.world.sources.rows_per_s * period_s / share)


def page_of_simulation(flow: SimulatedFlow, options: PageOptions, token: str | None = None) -> Page:
    """The page of a simulated flow, to which everything may be done."""
    return Page(flow.look, flow, token or secrets.token_urlsafe(12), options, simulated=True)
