"""Simulated queries: what Spark does with a replica, as far as the protocol can tell, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from unbroken.errors import broken, require
from unbroken.node.replicas.queries import LOOK_S
from unbroken.protocol.events import GateAsked, Produced
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.cuts import BatchCut
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId, fork_of
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.content import (
    Content,
    State,
    Units,
    Window,
    digest_of,
    home_shard,
    is_fork,
    merged,
    no_rows,
    result_of,
    run_batch,
    run_fork,
)
from unbroken_lab.sim.disk import ReplicaDisk

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess


@dataclass(frozen=True)
class CostModel:
    """What things cost on a node. Times are in milliseconds unless the name says otherwise.

    A micro-batch takes ``batch_ms`` and ``row_us`` for each row, more if more of them run than the node has ``cores``,
    and up to ``spread`` of that more or less. ``keep`` is the share of rows that a segment hands on, ``state_share``
    the share of its input that it keeps. The first micro-batches of a query take ``first_ms`` longer.

    To force what waits to be written to the ingress log takes ``force_ms``, however much it is. A query that is to end
    works for another ``stop_ms``, and that one has ended by itself is seen after ``look_ms``.

    A copy of a state takes ``copy_trips`` over a link and its bytes; to open one that is there takes ``open_ms``.

    ``parts`` are those parts of a flow that have costs of their own, ``cold`` what differs in a process that has just
    been started.
    """

    boot_ms: float = 1_500.0
    query_ms: float = 400.0
    stop_ms: float = 20.0
    look_ms: float = 1000 * LOOK_S
    batch_ms: float = 40.0
    row_us: float = 2.0
    commit_ms: float = 15.0
    spread: float = 0.2
    round_ms: float = 2.0
    gate_wait_ms: float = 500.0
    sink_ms: float = 8.0
    poll_ms: float = 2.0
    force_ms: float = 1.0
    fork_ms: float = 300.0
    cores: int = 2
    row_bytes: int = 60
    keep: float = 0.8
    state_share: float = 0.1
    copy_bytes_per_ms: float = 100_000.0
    copy_trips: float = 2.0
    open_ms: float = 1.0
    first_ms: tuple[float, ...] = ()
    parts: Mapping[str, CostModel] = field(default_factory=dict)
    cold: CostModel | None = None

    def of(self, part: str, cold: bool = False) -> CostModel:
        """The costs of a part of the flow."""
        found = self.parts.get(part, self) if self.parts else self
        return found.cold if cold and found.cold is not None else found


class Query:
    """One replica's query on its directory: asks the gate once per source instance and round, processes, commits.

    Its state and output are a pure function of its input, as the design demands of a segment. ``corrupt_from`` makes it
    break that promise from a unit on.
    """

    def __init__(self, process: NodeProcess, replica: ReplicaId, disk: ReplicaDisk) -> None:
        self.process = process
        self.replica = replica
        self.disk = disk
        self.shard = home_shard(replica) if is_fork(replica) else replica.shard
        self.instances = process.world.instances[self.shard]
        self.ticket = 0
        self.stopped = False
        self.busy = False
        self.corrupt_from: int | None = None
        self.costs = process.world.costs.of(self.shard.part, process.cold)
        self._begun = 0
        self._answers: list[int] = []
        self._cut: BatchCut = {}
        self._topology = process.topology

    def begin(self) -> None:
        self._ask(None)

    def stop(self) -> None:
        """End in the middle of whatever it does; what is not committed is forgotten."""
        self.stopped = True
        if self.busy:
            self.busy = False
            self.process.running -= 1

    def answer(self, offset: int, cut: BatchCut) -> None:
        """The gate has answered the question that waits."""
        self.ticket = 0
        if self.stopped:
            return
        self._answers.append(offset)
        self._cut = cut
        if len(self._answers) < len(self.instances):
            self._ask(None)
            return
        answers, self._answers = self._answers, []
        committed = self.disk.committed
        if len(set(answers)) != 1 and self._dropped:
            return  # within the round: the gate has forgotten what it said, and no micro-batch is taken from it
        if len(set(answers)) != 1:
            broken(f"{self.replica}: instances of one round were told {answers}", self.replica)
        if answers[0] < committed:
            broken(f"{self.replica}: told {answers[0]} after {committed}", self.replica)
        if answers[0] == committed:
            self.process.later(self.process.world.costs.round_ms, self._ask)
        else:
            self._begin_batch(answers[0])

    @property
    def _dropped(self) -> bool:
        protocol = self.process.protocol
        return protocol is None or protocol.find(self.replica) is None

    def _ask(self, _: object) -> None:
        if self.stopped:
            return
        process, disk = self.process, self.disk
        assert process.hosting.queries is not None
        if not process.hosting.queries.asked(self.replica):
            return  # it has been told to end, and only waits for that
        self.ticket = process.effects.next_ticket(self)
        noted = disk.cuts.get(disk.committed, {})
        instance = self.instances[len(self._answers)]
        deadline = process.clock_ms() + process.world.costs.gate_wait_ms
        process.post(GateAsked(self.replica, instance, disk.committed, self.ticket, deadline, noted))

    def _begin_batch(self, number: int) -> None:
        process, disk, costs = self.process, self.disk, self.costs
        self._topology = process.topology  # for which parts units are written is known when a micro-batch begins
        # Without a cut of its own a micro-batch takes what is numbered like it, and what comes before that.
        last = {stream: reach.unit for stream, reach in self._cut.items()}
        rows = sum(content.rows for (stream, n), (_, content) in disk.inbox.items() if n <= last.get(stream, number))
        self.busy = True
        process.running += 1
        crowd = max(1.0, process.running / costs.cores)
        chance = 1.0 + costs.spread * (2.0 * process.random.random() - 1.0)
        first_ms = costs.first_ms[self._begun] if self._begun < len(costs.first_ms) else 0.0
        self._begun += 1
        takes = (costs.batch_ms + first_ms + rows * costs.row_us / 1000) * crowd * chance * process.machine.slowness
        process.later(takes, self._end_batch, number)

    def _end_batch(self, number: int) -> None:
        if self.stopped:
            return
        process, disk = self.process, self.disk
        self.busy = False
        process.running -= 1
        assert process.protocol is not None
        try:
            process.disk.check_room()
        except OSError as error:
            process.engine.fail(self.replica, str(error))
            return
        state = process.protocol.find(self.replica)
        if state is None:
            return  # not hosted any more, and about to be told so
        header = state.cut_header(number, self._cut)
        if header is None:
            broken(f"{self.replica}: the input of micro-batch {number} is not here", self.replica)
        if self.replica not in process.protocol.replicas:
            after, produced, watermark = self._run_fork(state, number, header)
        else:
            after, produced, watermark = self._run(state, number, header)
        process.post(Produced(self.replica, number, produced, watermark))
        takes = self.costs.commit_ms * process.machine.slowness
        process.later(takes, lambda _: self._commit(number, after, disk))

    def _commit(self, number: int, state: State, disk: ReplicaDisk) -> None:
        if not self.stopped:
            disk.commit(number, state, self._cut)
            self._ask(None)

    def _run(
        self, state: SegmentReplica, number: int, header: UnitHeader
    ) -> tuple[State, tuple[UnitHeader, ...], float]:
        world, disk, shard = self.process.world, self.disk, self.shard
        batch = self._plain(state, number, header.generation) if state.plain else {number: self._taken(state)}
        strategy, before = world.memory[shard.part], disk.states[disk.committed]
        watermark = float(before.watermark) if isinstance(before, Window) else 0.0
        together = len(batch) == 1 or header.fold > 0 or strategy.foldable
        if not together:
            broken(f"{self.replica}: told to take {len(batch)} units at once", self.replica)
        if any(content.tentative for units in batch.values() for found in units.values() for content in found):
            broken(f"{self.replica} takes tentative input", self.replica)
        world.counts["folded"] += len(batch) > 1
        after = run_batch(shard, before, batch, strategy)
        disk.state_bytes += int(self._rows(batch) * world.costs.row_bytes * world.costs.state_share)
        produced: list[UnitHeader] = []
        assert self.process.protocol is not None
        for stream in self._topology.outputs(shard):
            content = result_of(after, stream, merged(batch), self.costs.keep)
            wrong = self.corrupt_from is not None and number >= self.corrupt_from
            content = replace(content, mark=content.mark ^ 1) if wrong else content
            box = self.process.protocol.outboxes.boxes.get(stream)
            # What is processed again to build a state is not for anybody.
            known = 0 if box is None else max(box.base, disk.valid)
            made = {number: content}
            if header.fold:
                # All rows of units that are taken together are in the last one.
                made = {n: no_rows(stream, n, header.cut_ms) for n in sorted(batch) if n < number} | made
            for n, found in made.items():
                facts = header if n == number else replace(header, pulse=n, final=False)
                faithful = not wrong and n > known
                produced.append(world.write_unit(disk, made_of(facts, stream, n, found, world.costs), found, faithful))
        return after, tuple(produced), watermark

    def _rows(self, batch: Mapping[int, Units]) -> int:
        return sum(content.rows for units in batch.values() for found in units.values() for content in found)

    def _plain(self, state: SegmentReplica, number: int, generation: int) -> dict[int, Units]:
        inbox, numbers = self.disk.inbox, range(self.disk.committed + 1, number + 1)
        found = {inbox[stream, number][0].generation for stream in state.inputs}
        require(found == {generation}, f"{self.replica}: micro-batch {number} has units of generations {found}")
        return {n: {stream: [inbox[stream, n][1]] for stream in state.inputs} for n in numbers}

    def _taken(self, state: SegmentReplica) -> Units:
        """The units of a cut that is more than one number."""
        disk, cut = self.disk, self._cut
        out: dict[StreamId, list[Content]] = {}
        for stream in state.inputs:
            numbers = range(disk.taken(stream) + 1, cut[stream].unit + 1)
            out[stream] = [disk.inbox[stream, n][1] for n in numbers]
        return out

    def _run_fork(
        self, fork: SegmentReplica, number: int, header: UnitHeader
    ) -> tuple[State, tuple[UnitHeader, ...], float]:
        require(not header.stable and not header.final, f"{self.replica}: a fork makes stable results", self.replica)
        require(header.since < header.pulse, f"{self.replica}: micro-batch {number} covers nothing", self.replica)
        disk, world, home = self.disk, self.process.world, self.shard
        units = self._taken(fork)
        require(any(units.values()), f"{self.replica}: micro-batch {number} has no input", self.replica)
        fork_shard = ShardId(fork_of(home.part), home.index)
        outputs = [StreamId(fork_shard, stream.consumer) for stream in self._topology.outputs(home)]
        after, contents = run_fork(home, disk.states[disk.committed], units, outputs)
        produced = []
        for stream, content in zip(outputs, contents, strict=True):
            made = made_of(header, stream, number, content, world.costs)
            disk.outbox[stream, number] = (made, content)
            produced.append(made)
        return after, tuple(produced), 0.0


def made_of(cut: UnitHeader, stream: StreamId, number: int, content: Content, costs: CostModel) -> UnitHeader:
    """The header of what a micro-batch sends over a stream."""
    size = content.rows * costs.row_bytes
    return replace(cut, stream=stream, number=number, digest=digest_of(content), size=size)


def instances_of(topology: Topology, shard: ShardId) -> tuple[str, ...]:
    """A query has one source instance per part it reads."""
    return tuple(dict.fromkeys(stream.producer.part for stream in topology.inputs(shard)))
