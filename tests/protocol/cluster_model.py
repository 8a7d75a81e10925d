"""A simulated cluster: real ``NodeProtocol`` objects and controller, perfect effects, faults, and a chosen schedule.

The invariants of the design are asserted where the facts are made: agreement and determinism when a unit is
produced or an entry committed, loss-freedom when a unit is dropped, delivery in the sink, and that no wake-up time
lies in the past after every event. ``settle`` is the end of every schedule: no more faults, and then everything has to
be in the sink, and redundant again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import combinations

from protocol.cluster_effects import SimNode
from protocol.cluster_steps import Action, ClusterSteps
from protocol.model_parts import FakeSpark
from protocol.sim_disk import Disk
from protocol.sim_orders import led_reference
from protocol.sim_programs import Lane, generation_asked, lane_of, layout_asked
from protocol.sim_sinks import OnceSink
from unbroken.protocol.events import PushArrived, QueryFailed, ReplicaStopped, SinkFailed
from unbroken.protocol.ingress.log import ProposeInSync
from unbroken.protocol.replica.replica import RESTARTS
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId, generation_of, segment_of
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.strategy import Ha

__all__ = ["Action", "Cluster"]


class Cluster(ClusterSteps):
    """The cluster with everything that can go wrong in it. ``upgrades`` may still be asked for.

    Sinks fail or are slow to come back, and nodes are suspected, only if ``unsure``.
    """

    upgrades = 0
    unsure = False

    # --- faults ---------------------------------------------------------------------------------------

    def faults(self) -> list[Action]:
        """Faults that leave an intact replica of every shard on some disk that counts."""
        links = [pair for pair, e in self.exchanges.items() if e.alive and e.client != e.server]
        out: list[Action] = [("cut", *pair, late) for pair in links for late in (False, True)]
        for name, node in self.nodes.items():
            out += [("kill", name), ("push", name), ("thaw" if node.frozen else "freeze", name)]
            out.append(("see" if node.blind else "blind", name))
            spared = self.spares(self._precious(self.store.layout.hosted(name)))
            if spared:
                out += [("wipe", name, True), *([("wipe", name, False)] if len(self.disks) > 2 else [])]
            if spared and name in self.store.present:
                out.append(("expire", name))
            for replica in [replica for replica in node.sparks if replica in node.protocol.replicas]:
                if self.spares([replica]):
                    out.append(("stop", name, replica))
                failures = node.protocol.replicas[replica].failures
                if failures < RESTARTS or self.spares([replica]):
                    out.append(("fail", name, replica))
            out += [("break", name, transfer.replica) for transfer in node.transfers]
            if self.unsure:
                out += [(kind, name, stream) for stream in node.deliveries for kind in ("linger", "refuse")]
                if name in self.store.suspected or spared:
                    out.append(("trust" if name in self.store.suspected else "suspect", name))
            if not self.store.draining and len(self.nodes) > 2:
                out.append(("drain", name))
        out += [("lose", names) for names in self.losses()]
        out += [("boot", name) for name in self.disks if name not in self.nodes]
        out += [("renew", replica) for replica in self.store.layout.placement if replica not in self.store.renewed]
        if self.store.draining:
            out.append(("undrain",))
        return [*out, ("blackout",), *self.wishes()]

    def losses(self) -> list[tuple[NodeId, ...]]:
        """The sets of two and three nodes that may be lost with their disks at the same moment."""
        groups = [names for size in (2, 3) for names in combinations(sorted(self.nodes), size)]
        return [
            names
            for names in groups
            if self.spares([replica for name in names for replica in self._precious(self.store.layout.hosted(name))])
        ]

    def wishes(self) -> list[Action]:
        """What a user can ask for at this moment: other code for some segments, or not after all."""
        layout = self.store.layout
        if len(layout.generations) > 1:
            return [("withdraw",)] if layout.generation < layout.generations[-1] and self.store.wished else []
        if self.store.wished not in (None, layout.generation) or self.upgrades < 1 or self.ended() is not None:
            return []
        segments = dict.fromkeys(segment_of(part) for part in self.topology.segments)
        return [("upgrade", (segment,)) for segment in segments]

    def _precious(self, replicas: list[ReplicaId]) -> list[ReplicaId]:
        """Those that are not just being prepared: they can begin again."""
        generation = self.store.layout.generation
        return [replica for replica in replicas if generation_of(replica.shard.part) <= generation]

    def spares(self, doomed: list[ReplicaId]) -> bool:
        """Whether each shard can go on without these: with an intact full replica in sight of the controller, or as its
        strategy has it. What takes the place of a shard's only replica has to be done before the next loss."""
        return all(self._spared(replica, set(doomed)) for replica in doomed)

    def _spared(self, replica: ReplicaId, doomed: set[ReplicaId]) -> bool:
        shard, layout = replica.shard, self.store.layout
        if self._intact(shard) - doomed:
            return True
        strategy = self.topology.strategy(shard.part)
        if strategy.ha is Ha.PASSIVE:
            copies = layout.holding(shard) - layout.joining - doomed
            return any(self._on_disk(copy) for copy in copies) and replica in layout.full(shard)
        if strategy.ha is not Ha.UPSTREAM or replica not in layout.full(shard):
            return False
        rely = [stream.consumer for stream in self.topology.outputs(shard)]
        rely = [consumer for consumer in rely if self.topology.strategy(consumer.part).ha is Ha.UPSTREAM]
        if all(self._intact(consumer) - doomed for consumer in rely) and self._kept_for(shard, doomed):
            return True
        nodes = {layout.placement[lost] for lost in doomed}
        return len(nodes) <= strategy.backups and self._settled()

    def _settled(self) -> bool:
        """Whether as many nodes may be lost as strategies say: all that relies on its producers is at work, and what
        was safe when the layout changed last has been acknowledged through all levels."""
        relying = [s for s in self.topology.placed_shards if self.topology.strategy(s.part).ha is Ha.UPSTREAM]
        if not all(self._intact(shard) for shard in relying):
            return False
        streams = [stream for shard in relying for stream in self.topology.inputs(shard)]
        return self.store.layout.version == 1 or all(self._owed(stream) > self.changed_at for stream in streams)

    def _owed(self, stream: StreamId) -> int:
        """How far a stream has been acknowledged, so that a producer has dropped it or could."""
        producers = self._intact(self.topology.host_shard(stream.producer))
        nodes = [self.nodes.get(self.store.layout.placement[producer]) for producer in producers]
        boxes = [node.protocol.outboxes.boxes.get(stream) for node in nodes if node is not None]
        return max((box.owed for box in boxes if box is not None), default=0)

    def _kept_for(self, shard: ShardId, doomed: set[ReplicaId]) -> bool:
        """Whether producers that are well keep all that a shard's state can be built again from."""
        for stream in self.topology.inputs(shard):
            producers = self._intact(self.topology.host_shard(stream.producer)) - doomed
            nodes = [self.nodes.get(self.store.layout.placement[producer]) for producer in producers]
            boxes = [node.protocol.outboxes.boxes.get(stream) for node in nodes if node is not None]
            if not any(box is not None and box.rebuilds for box in boxes):
                return False
        return True

    def may_forget(self, name: NodeId) -> bool:
        alone = [
            replica
            for replica in self.store.layout.hosted(name)
            if self.topology.strategy(replica.shard.part).ha in (Ha.PASSIVE, Ha.UPSTREAM)
        ]
        return self.spares(alone)

    def _on_disk(self, replica: ReplicaId) -> bool:
        layout, store = self.store.layout, self.store
        node = layout.placement[replica]
        disk = self.disks.get(node)
        known = disk is not None and store.present.get(node) == layout.nodes[node] == disk.identity
        known = known and node not in store.suspected
        return known and disk is not None and replica in disk.replicas

    def _intact(self, shard: ShardId) -> set[ReplicaId]:
        layout, store = self.store.layout, self.store
        out: set[ReplicaId] = set()
        for replica in layout.full(shard) - set(store.stopped):
            node = layout.placement[replica]
            disk = self.disks.get(node)
            if disk is None or store.present.get(node) != disk.identity or layout.nodes[node] != disk.identity:
                continue
            if node in store.suspected:
                continue
            if replica in disk.replicas and not self._stopping(node, replica):
                out.add(replica)
        if shard == INGRESS:
            # Whatever the store decides next, an intact member has to be in it.
            waiting = [*self.orphans, *(write for node in self.nodes.values() for write in node.writes)]
            sets = [store.sync.members]
            sets += [w.proposal.members for w, _ in waiting if isinstance(w, ProposeInSync)]
            out = {replica for replica in out if all(layout.placement[replica] in members for members in sets)}
        return out

    def _stopping(self, name: NodeId, replica: ReplicaId) -> bool:
        """Whether a node has given a replica up and the store does not know yet."""
        node = self.nodes.get(name)
        written = [w for other in self.nodes.values() for w, _ in other.writes]
        if any(getattr(write, "replica", None) == replica for write in written):
            return True
        state = None if node is None else node.protocol.replicas.get(replica)
        return state is not None and state.stopped is not None

    def do_cut(self, client: NodeId, server: NodeId, late_messages: bool) -> None:
        self.exchanges[client, server].cut(late_messages=late_messages)

    def do_push(self, name: NodeId) -> None:
        if self.runs(name):
            self.handle(name, PushArrived(f"rows {next(self.serial)}".encode()))

    def do_kill(self, name: NodeId) -> None:
        """kill -9: the process and its links are gone, the disk stays; the others find out one by one."""
        node = self.nodes.pop(name)
        if node.writes and isinstance(node.writes[0][0], ProposeInSync):
            self.orphans.append(node.writes[0])
        self.late.extend((name, node, request) for request in node.requests)
        self.stale = [exchange for exchange in self.stale if exchange.server != name]
        for pair, exchange in list(self.exchanges.items()):
            if name not in pair:
                continue
            exchange.cut(late_messages=name == exchange.client)
            exchange.server_noticed = exchange.server_noticed or name == exchange.server
            if name == exchange.client:
                del self.exchanges[pair]
                exchange.client_noticed = True
                if exchange.server in self.nodes:
                    self.stale.append(exchange)

    def do_boot(self, name: NodeId) -> None:
        """A node starts again on its disk."""
        self.boot(name)

    def do_wipe(self, name: NodeId, returns: bool) -> None:
        """A node is lost with its disk; it comes back under its name with an empty one, or never."""
        self.do_kill(name)
        self.store.present.pop(name, None)
        if returns:
            self.disks[name] = Disk(f"{name}-disk-{next(self.serial)}")
        else:
            del self.disks[name]
            self.store.draining.discard(name)

    def do_lose(self, names: tuple[NodeId, ...]) -> None:
        """Several nodes are lost at once; they come back with empty disks."""
        for name in names:
            self.do_wipe(name, True)

    def do_blackout(self) -> None:
        for name in list(self.nodes):
            self.do_kill(name)

    def do_expire(self, name: NodeId) -> None:
        """The node lives on, but its session has ended: the layout will give its replicas up."""
        self.store.present.pop(name, None)

    def do_freeze(self, name: NodeId) -> None:
        self.nodes[name].frozen = True

    def do_thaw(self, name: NodeId) -> None:
        self.nodes[name].frozen = False

    def do_blind(self, name: NodeId) -> None:
        """The node cannot reach the store, and works on."""
        self.nodes[name].blind = True

    def do_see(self, name: NodeId) -> None:
        self.nodes[name].blind = False
        self.read_generations(self.nodes[name])

    def do_fail(self, name: NodeId, replica: ReplicaId) -> None:
        """A query ends by itself."""
        if self.runs(name):
            self.nodes[name].sparks[replica].fail()
            self.handle(name, QueryFailed(replica, "out of memory"))

    def do_stop(self, name: NodeId, replica: ReplicaId) -> None:
        """A replica cannot go on, on a node that is well."""
        if self.runs(name):
            self.handle(name, ReplicaStopped(replica, "the disk is full"))

    def do_break(self, name: NodeId, replica: ReplicaId) -> None:
        """A copy does not come through."""
        for transfer in self.nodes[name].transfers:
            if transfer.replica == replica:
                transfer.stage = "failed"

    def do_refuse(self, name: NodeId, stream: StreamId) -> None:
        """A sink fails with a unit: it is asked again, or never again if it may not have the unit twice."""
        node = self.nodes[name]
        if self.runs(name) and stream in node.deliveries and self.topology.at_most_once:
            _, header = node.deliveries.pop(stream)
            node.lingering.discard(stream)
            self.refused.add((lane_of(stream), header.number))
            self.handle(name, SinkFailed(stream, header.number, "it is away"))
        elif self.runs(name):
            node.lingering.discard(stream)

    def do_suspect(self, name: NodeId) -> None:
        self.store.suspected.add(name)

    def do_trust(self, name: NodeId) -> None:
        self.store.suspected.discard(name)

    def do_drain(self, name: NodeId) -> None:
        self.store.draining.add(name)

    def do_undrain(self) -> None:
        self.store.draining.clear()

    def do_renew(self, replica: ReplicaId) -> None:
        self.store.renewed.add(replica)

    def do_upgrade(self, segments: tuple[str, ...]) -> None:
        self.upgrades -= 1
        self.store.wished = self.programs.declare(self.store.layout.generation, segments)

    def do_withdraw(self) -> None:
        if self.store.layout.generation < self.store.layout.generations[-1]:
            self.store.wished = None

    # --- invariants of the whole ----------------------------------------------------------------------

    def check(self) -> None:
        """Loss-free, globally: whoever counts finds its next unit on some producer's disk, or it is yet to come."""
        layout = self.store.layout
        for node in self.nodes.values():
            node.protocol.check()
            for replica in node.protocol.replicas.values():
                if replica.replica not in layout.full(replica.replica.shard) or replica.stopped is not None:
                    continue
                for stream, inbox in replica.inboxes.items():
                    bases = self._bases(stream)
                    assert not bases or min(bases) <= inbox.available, (
                        f"unit {inbox.available + 1} of {stream} is needed by {replica.replica} and dropped everywhere"
                    )

    def _bases(self, stream: StreamId) -> list[int]:
        out: list[int] = []
        shard = self.topology.host_shard(stream.producer)
        for replica in self.store.layout.full(shard):
            held = self.disk_of(replica)
            node = self.nodes.get(self.store.layout.placement[replica])
            box = None if node is None else node.protocol.outboxes.boxes.get(stream)
            if box is not None and box.muted:
                continue
            if box is not None:
                out.append(box.base)
            elif held is not None:
                out.append(held.stored_base(stream, held.base_pulse if shard == INGRESS else held.committed))
        return out

    # --- the end of a schedule ------------------------------------------------------------------------

    def settle(self, bound: int = 16_000) -> None:
        """No more faults: whatever can happen happens, in turn, until the flow is at rest. Then check it."""
        self.recover_all()
        self._come_to_rest(bound)
        if self.upgrading() and self.wishes():
            # The sources have ended: the code that was to come is let go.
            self.do_withdraw()
            self._come_to_rest(bound)
        self.check()
        self.check_result()

    def _come_to_rest(self, bound: int) -> None:
        for _ in range(bound):
            if not self._turn():
                if self.at_rest() is None:
                    break
                if not self.advance():
                    raise AssertionError(f"nothing can happen any more, but {self.at_rest()}")
        else:
            raise AssertionError(f"not at rest after {bound} turns: {self.at_rest()}")

    def recover_all(self) -> None:
        """Everything that was away comes back, except disks that are lost."""
        for node in self.nodes.values():
            node.frozen = node.blind = False
            self.read_generations(node)
        self.store.suspected.clear()
        for name in self.disks:
            if name not in self.nodes:
                self.boot(name)
        if len(self.nodes) - len(self.store.draining) < max(self.topology.replicas.values()):
            self.store.draining.clear()

    def run_turns(self, turns: int) -> None:
        """Let everything happen in turn; time passes when nothing else can."""
        for _ in range(turns):
            if not self._turn():
                self.advance()

    def run_until(self, reached: Callable[[], bool], without: Collection[str] = (), bound: int = 4_000) -> None:
        """Let things happen one by one, except for these kinds of steps, until something is reached."""
        for _ in range(bound):
            actions = [action for action in self.enabled() if action[0] not in without]
            for action in actions:
                if reached():
                    return
                self.perform(action)
            if reached():
                return
            if not actions:
                self.advance()
        raise AssertionError(f"not reached after {bound} turns: {self.at_rest()}")

    def delivered(self) -> int:
        return min(self.sink.through(lane) for lane in self.programs.lanes())

    def ended(self) -> int | None:
        """The last pulse, once it is agreed."""
        return next((entry.pulse for entry in self.entries.values() if entry.final), None)

    def _turn(self) -> bool:
        """Every step that is possible at this moment is taken; whether there was one."""
        actions = self.enabled()
        for action in actions:
            self.perform(action)
        return bool(actions)

    def at_rest(self) -> str | None:
        """What is still to come before everything is delivered and redundant again; None if nothing is."""
        ended = self.ended()
        if ended is None:
            return f"only {max(self.entries, default=0)} entries are agreed, and no last one: {self.store.layout}"
        for lane in self.programs.lanes():
            if self.sink.through(lane) < self._last_of(ShardId(lane[0], lane[1]), ended):
                return f"only {self.sink.through(lane)} units of {lane} are delivered"
        for spark in self._placed_sparks():
            shard = spark.replica.shard
            if spark.committed < self._last_of(shard, ended) and shard.part not in self.topology.replaces:
                return f"{spark.replica} has only committed {spark.committed}"
        if self.upgrading() and not self.overtaken():
            layout = self.store.layout
            return f"generation {layout.generation} of {layout.generations} counts, {self.store.wished} is wished for"
        return self.shortage() or self._leftovers()

    def _last_of(self, shard: ShardId, ended: int) -> float:
        """The last unit that a shard produces; where leaders order, only the unit itself tells."""
        return self.finals.get(shard, float("inf")) if self.topology.led else ended

    def overtaken(self) -> bool:
        """Whether the sources ended before the results of the code that comes were asked for: it waits for ever."""
        last = next((entry for entry in self.entries.values() if entry.final), None)
        layout = self.store.layout
        coming = layout.generations[-1] if self.store.wished is None else self.store.wished
        return last is not None and generation_asked(last) < coming

    def shortage(self) -> str | None:
        """What is missing of the redundancy that these nodes can give."""
        layout, store = self.store.layout, self.store
        fit = self.fit()
        for shard in self.topology.placed_shards:
            if self.topology.successor(shard.part) is not None or shard.part in self.topology.replaces:
                continue  # on its way out, or not there yet
            full = {r for r in layout.full(shard) if layout.placement[r] in fit}
            healthy = {r for r in full if self.hosts(layout.placement[r], r)}
            if len(healthy) < min(len(fit), self.topology.replicas[shard.part]):
                return f"{shard} has only {sorted(str(r) for r in healthy)}"
            copies = {r for r in layout.holding(shard) - layout.joining if layout.placement[r] in fit}
            if len(copies) < min(len(fit) - 1, self.topology.strategy(shard.part).holding):
                return f"{shard} has only the copies {sorted(str(r) for r in copies)}"
        away = [shard for shard, home in layout.homes.items() if home in fit and not self.upgrading()]
        if away:
            return f"{away[0]} is not back on {layout.homes[away[0]]}"
        if layout.joining and not self.upgrading():
            return f"{sorted(str(r) for r in layout.joining)} are still joining"
        members = set(layout.full_nodes_of(INGRESS))
        return None if store.sync.members == members else f"{store.sync} are in sync instead of {sorted(members)}"

    def _leftovers(self) -> str | None:
        """What is still around although nothing is under way."""
        if self.upgrading():
            return None
        for name, node in self.nodes.items():
            protocol, placed = node.protocol, self.store.layout.hosted(name)
            here = sorted([*protocol.hosted(), *protocol.holding.copies])
            held = self.directories(node)
            if here != placed or held != placed:
                return f"{name} hosts {here} and holds {held}, not {placed}"
            if protocol.joining.joins or node.transfers:
                return f"{name} is still building {[*protocol.joining.joins, *node.transfers]}"
            for box in protocol.outboxes.boxes.values():
                if self.topology.strategy(box.stream.consumer.part).ha in (Ha.PASSIVE, Ha.UPSTREAM):
                    continue  # what follows the last copy is kept, and what a state is made of
                if len(box.headers) >= self.settings.ack_every and not box.muted:
                    return f"{name} still keeps {list(box.headers)} of {box.stream} for {box.acked}"
        return None

    def directories(self, node: SimNode) -> list[ReplicaId]:
        """The replicas that a node's disk has, of which the layout has to know."""
        return sorted(node.disk.replicas)

    def _placed_sparks(self) -> Iterator[FakeSpark]:
        for node in self.nodes.values():
            for replica, spark in node.sparks.items():
                if replica in self.store.layout.placement and not spark.stopped:
                    yield spark

    def check_result(self) -> None:
        """The sink holds what it would hold without any fault, and the flow has come to its end."""
        agreed = max((entry.pulse for entry in self.entries.values()), default=0)
        assert agreed >= self.pulses and agreed == self.ended(), f"only {agreed} of {self.pulses} pulses were agreed"
        assert sorted(self.entries) == list(range(1, len(self.entries) + 1)), "the ingress log has a hole"
        reference = self.reference()
        if isinstance(self.sink, OnceSink):
            self.sink.check(reference, self._excused)
            return
        for lane, expected in reference.items():
            found = self.sink.written.get(lane, [])
            parts = [part for part, _ in found], [part for part, _ in expected]
            assert parts[0] == parts[1], f"{lane} got units of {parts[0]}, not of {parts[1]}"
            assert found == expected, f"{lane} is not what it would be without faults"

    def reference(self) -> dict[Lane, list[tuple[str, int]]]:
        """What the sinks would hold without faults."""
        if self.topology.led:
            return led_reference(self.topology, self.entries, self.logs)
        return self.programs.reference(self.entries)

    def _excused(self, lane: Lane, part: str, number: int) -> bool:
        """Whether a unit may be missing where units are delivered at most once: its sink failed with it, its replica
        was interrupted when it may have been under way, or another had the turn after it was cut."""
        shard = ShardId(part, lane[1])
        cut = next(entry for entry in self.entries.values() if entry.pulse == number)
        interrupted = number <= self.interrupted.get(shard, 0)
        return (lane, number) in self.refused or interrupted or layout_asked(cut) < self.store.turned.get(shard, 0)
