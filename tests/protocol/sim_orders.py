"""The order logs of the simulated cluster, and what the sinks have to hold where a leader orders the input."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from protocol.model_parts import State, result_of, run_batch, source_unit
from protocol.sim_programs import Lane, lane_of
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.instructions import Lead, Publish
from unbroken.protocol.leader.orders import LeaderKnown, Order, Ordered, OrderRefused
from unbroken.protocol.values.ids import NodeId, ShardId, StreamId
from unbroken.protocol.values.layout import Topology


@dataclass
class SimOrders:
    """The log of one shard: what is in it stays as it is, and only the newest term can add to it."""

    shard: ShardId
    orders: list[Order] = field(default_factory=list)
    leaders: list[LeaderKnown] = field(default_factory=list)
    processes: list[object] = field(default_factory=list)

    def take(self, name: NodeId, process: object, request: Lead | Publish) -> OrderRefused | None:
        term = self.leaders[-1].term if self.leaders else 0
        if isinstance(request, Lead):
            if request.term != term + 1:
                return OrderRefused(self.shard, request.term, "another term has begun")
            self.leaders.append(LeaderKnown(self.shard, request.term, name, len(self.orders), request.claim))
            self.processes.append(process)
            return None
        for order in request.orders:
            if request.term != term or order.number > len(self.orders) + 1:
                return OrderRefused(self.shard, request.term, "another leads")
            if order.number == len(self.orders) + 1:
                before = self.orders[-1].cut if self.orders else {}
                assert all(order.cut[stream] >= unit for stream, unit in before.items()), f"{order} goes back"
                assert order.cut != before, f"{order} orders nothing"
                self.orders.append(order)
            else:
                assert self.orders[order.number - 1] == order, f"{order} is ordered in another way"
        return None


@dataclass
class Follower:
    """How far one node has read the log of a shard."""

    read: int
    term: int = 0

    def lags(self, log: SimOrders) -> bool:
        return self.read < len(log.orders) or any(known.term > self.term for known in log.leaders)

    def next(self, log: SimOrders, process: object) -> Ordered | LeaderKnown | None:
        news = [known for known in log.leaders if known.term > self.term]
        if news and (self.read >= news[0].last or len(log.orders) <= self.read):
            self.term = news[-1].term
            own = log.processes[-1] is process
            return replace(news[-1], claim=news[-1].claim if own else 0)
        if self.read < len(log.orders):
            self.read += 1
            return Ordered(log.shard, (log.orders[self.read - 1],))
        return None


@dataclass(frozen=True)
class _Unit:
    content: int
    pulse: int
    final: bool


Requests = deque[Lead | Publish]


def led_reference(
    topology: Topology, entries: Mapping[int, Entry], logs: Mapping[ShardId, SimOrders]
) -> dict[Lane, list[tuple[str, int]]]:
    """What the sinks hold after a run without faults with these pulses and orders: (part, content) of each unit."""
    streams: dict[StreamId, list[_Unit]] = {stream: [] for stream in topology.streams}
    pushed: list[bytes] = []
    for index in sorted(entries):
        entry = entries[index]
        if not entry.pulse:
            pushed.append(entry.body)
            continue
        for stream in topology.streams:
            if stream.producer.part in topology.sources:
                content = source_unit(stream, (entry.body, *pushed))
                streams[stream].append(_Unit(content, entry.pulse, entry.final))
        pushed = []
    for part in topology.segments:
        for shard in topology.shards(part):
            _run_shard(topology, shard, streams, logs)
    return {
        lane_of(stream): [(stream.producer.part, unit.content) for unit in units]
        for stream, units in streams.items()
        if topology.is_sink(stream.consumer)
    }


def _run_shard(
    topology: Topology,
    shard: ShardId,
    streams: Mapping[StreamId, list[_Unit]],
    logs: Mapping[ShardId, SimOrders],
) -> None:
    inputs = topology.inputs(shard)
    taken = dict.fromkeys(inputs, 0)
    state: State = 0
    number = 0
    while True:
        number += 1
        if shard.part in topology.led:
            if number > len(logs[shard].orders):
                return
            cut = dict(logs[shard].orders[number - 1].cut)
        else:
            if all(taken[stream] == len(streams[stream]) for stream in inputs):
                return
            cut = {stream: _completing(streams[stream], number) for stream in inputs}
        contents = {stream: streams[stream][taken[stream] : cut[stream]] for stream in inputs}
        rows = {stream: [unit.content for unit in units] for stream, units in contents.items()}
        state = run_batch(shard, state, {number: rows}, topology.strategy(shard.part))
        taken = cut
        last = [streams[stream][unit - 1] if unit else _Unit(0, 0, False) for stream, unit in cut.items()]
        pulse = min(unit.pulse for unit in last) if shard.part in topology.led else number
        for stream in topology.outputs(shard):
            streams[stream].append(_Unit(result_of(state, stream), pulse, all(unit.final for unit in last)))


def _completing(units: list[_Unit], pulse: int) -> int:
    return next((place for place, unit in enumerate(units, start=1) if unit.pulse >= pulse), len(units))
