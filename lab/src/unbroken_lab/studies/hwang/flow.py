"""The networks of Hwang et al. as flows: what their tuples, nodes, intervals and links are here.

A line of nodes ``n1 > n2 > ... > app``: every node is a segment that is kept available by the approach in question,
with nodes of its own for each of its replicas, and the application is a segment without availability on the last one.
A spare node is there for upstream backup. The sources are on a node of their own.

A row of the simulator is one byte of a tuple, so that sizes come out whichever way tuples are put together. A unit is
what arrives within ``unit_ms``: one or two tuples where recovery is timed, so that its grain does not show, and a whole
interval where only bytes are counted. The interval is a number of units after which consumers acknowledge
(``ack_every``) and passive standby copies (``Strategy.every``).

What the formulas take for granted is configured: links with the paper's latency and a bandwidth for each pair of nodes,
no time for anything but tuples and acknowledgements (to make a node's network again is part of the detection, as the
paper has it), micro-batches and commits that cost nothing beyond the tuples in them, a failure that is detected
by everybody after the same time. With ``prompt=False`` the questions and answers of a recovery take their time, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import get_args

from unbroken.errors import UnbrokenError
from unbroken.protocol.events import PinAsked
from unbroken.protocol.messages import Ack, Message
from unbroken.protocol.output.outbox import SEND_WINDOW
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Layout, Topology
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken_lab.sim.links import LinkModel
from unbroken_lab.sim.queries import CostModel
from unbroken_lab.sim.world import Setup
from unbroken_lab.sim.zookeeper import StoreModel
from unbroken_lab.studies.hwang.model import Approach, Parameters
from unbroken_lab.studies.hwang.study import BoxNetwork

APP = "app"
STRATEGIES = {
    Approach.PASSIVE: Ha.PASSIVE,
    Approach.ACTIVE: Ha.ACTIVE_STANDBY,
    Approach.UPSTREAM: Ha.UPSTREAM,
}
"""Active standby is the strategy in which backups keep their results: with ``active`` they would send them as well."""

PROMPT = frozenset((*get_args(Message), PinAsked)) - {Ack}
"""What takes no time, where only tuples and acknowledgements do."""

STORE_MS = 0.001
"""What ZooKeeper takes for anything: just enough for one thing to follow another."""


@dataclass(frozen=True)
class Grain:
    """How tuples are put together: a unit is what arrives in ``unit_ms``, an interval is ``units`` of them."""

    unit_ms: float
    units: int

    @classmethod
    def fine(cls, parameters: Parameters) -> Grain:
        """The shortest unit of whole milliseconds, and no less than a tuple, that divides the interval, with few enough
        of them under way in a recovery."""
        waits_ms = parameters.interval_ms + 5 * parameters.delay_ms + parameters.detection_ms
        for units in range(int(parameters.interval_ms), 1, -1):
            unit_ms = parameters.interval_ms / units
            if (
                unit_ms == round(unit_ms)
                and unit_ms * parameters.arrivals_per_ms >= 1
                and waits_ms < unit_ms * SEND_WINDOW
            ):
                return cls(unit_ms, units)
        return cls.coarse(parameters)

    @classmethod
    def coarse(cls, parameters: Parameters, units: int = 1) -> Grain:
        """An interval of so many units."""
        unit_ms = parameters.interval_ms / units
        if unit_ms != round(unit_ms):
            raise UnbrokenError(
                f"an interval of {parameters.interval_ms} ms is not {units} units of whole milliseconds"
            )
        return cls(unit_ms, units)


@dataclass(frozen=True)
class NodeLine:
    """One line of nodes to be simulated: the two nodes of the paper, or one row of a square of nodes.

    The other rows are like it, and have nothing to do with it.
    """

    approach: Approach
    parameters: Parameters
    network: BoxNetwork
    grain: Grain
    prompt: bool = True

    @property
    def link(self) -> Parameters:
        """The parameters of a link between two nodes and of the one behind it."""
        return self.network.link(self.parameters)

    @property
    def names(self) -> list[str]:
        return [f"n{place}" for place in range(1, self.network.side + 1)]

    @property
    def inner(self) -> list[StreamId]:
        """The streams between nodes: what the formulas are about."""
        return [StreamId(ShardId(a, 0), ShardId(b, 0)) for a, b in pairwise(self.names)]

    def after(self, name: str) -> StreamId:
        """The stream that a node sends to the next one, or to the application."""
        following = dict(zip(self.names, [*self.names[1:], APP], strict=True))
        return StreamId(ShardId(name, 0), ShardId(following[name], 0))

    def topology(self) -> Topology:
        names = self.names
        strategy = Strategy(STRATEGIES[self.approach], 1, every=self.grain.units)
        strategies = dict.fromkeys(names, strategy) | {APP: Strategy(Ha.NONE, 0), INGRESS.part: Strategy(Ha.ACTIVE, 0)}
        edges = tuple(zip(["source", *names, APP], [*names, APP, "sink"], strict=True))
        replicas = {part: found.running for part, found in strategies.items()}
        return Topology(("source",), dict.fromkeys([*names, APP], 1), ("sink",), edges, replicas, strategies=strategies)

    def setup(self) -> Setup:
        """Everything that a run needs."""
        topology, per_ms = self.topology(), self.parameters.bandwidth_mbps * 1000 / 8
        hosts = sum(found.running + found.holding for found in topology.strategies.values())
        return Setup(
            topology,
            hosts,
            standbys=1,
            settings=self._settings(),
            links=self._links(per_ms),
            store=StoreModel(STORE_MS, 0.0, 1e6, 1e6, 1e6),
            costs=self._costs(per_ms),
            rows_per_s=self.link.rate_per_s * self.link.tuple_bytes,
            check_every=0,
            skewed=False,
            place=apart,
        )

    def _settings(self) -> ProtocolSettings:
        unit = self.grain.unit_ms
        return ProtocolSettings(
            pulse_min_ms=unit,
            pulse_max_ms=unit,
            pulse_start_ms=unit,
            in_flight_slack=100_000,
            ack_every=self.grain.units,
            ring_period_ms=1e6,
        )

    def _links(self, per_ms: float) -> LinkModel:
        return LinkModel(
            latency_ms=self.parameters.delay_ms,
            jitter_ms=0.0,
            bytes_per_ms=per_ms,
            timeout_ms=self.parameters.detection_ms,
            heartbeat_ms=1e-6,
            reconnect_ms=1e-6,
            slow=1.0,
            lately=1e12,
            shared=False,
            prompt=PROMPT if self.prompt else frozenset(),
        )

    def _costs(self, per_ms: float) -> CostModel:
        link = self.link
        costs = CostModel(
            query_ms=0.0,
            batch_ms=0.0,
            row_us=link.processing_us / link.tuple_bytes,
            commit_ms=0.0,
            spread=0.0,
            gate_wait_ms=1e6,
            sink_ms=0.0,
            poll_ms=0.0,
            cores=1_000,
            row_bytes=1,
            keep=1.0,
            state_share=0.0,
            copy_bytes_per_ms=per_ms,
            copy_trips=1.0,
            open_ms=0.0,
        )
        return replace(costs, parts={self.names[-1]: replace(costs, keep=link.selectivity)})


def apart(topology: Topology, nodes: Mapping[NodeId, str]) -> Layout:
    """A layout in which no two replicas share a node."""
    free = iter(nodes)
    placement: dict[ReplicaId, NodeId] = {}
    held: set[ReplicaId] = set()
    for shard in topology.placed_shards:
        working = topology.replicas_of(shard)
        copies = [ReplicaId(shard, len(working) + i) for i in range(topology.strategy(shard.part).holding)]
        held.update(copies)
        placement.update((replica, next(free)) for replica in [*working, *copies])
    count = {shard: sum(replica.shard == shard for replica in placement) for shard in topology.placed_shards}
    layout = Layout(1, dict(nodes), placement, count, held=frozenset(held))
    layout.check()
    return layout
