"""The experiments of Hwang et al. (2003) as data: what varies over which values, what is measured, on which network.

An ``Sweep`` lists its ``settings``, one for each approach and value of what varies. Whoever can run them on the
protocol hands back a ``MeasuredMean`` per setting and measure; ``report`` puts them beside formulas and paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isqrt, sqrt
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken_lab.studies.hwang.model import (
    INTERVALS_MS,
    SELECTIVITIES,
    Approach,
    CaseRange,
    Measure,
    Parameters,
    analytic,
    overhead,
)
from unbroken_lab.studies.hwang.paper import ALL, PaperPoint, paper_points


@dataclass(frozen=True)
class BoxNetwork:
    """Operators spread over nodes: each gets ``boxes / nodes`` of them, as wide as deep.

    Two nodes are behind each other. More of them form a square, like the operators they share: ``side`` rows of as many
    nodes behind each other. Every row of operators has a source of its own, so a link between two nodes carries the
    streams of all the rows that a node has.
    """

    nodes: int = 2
    boxes: int = 2

    @property
    def boxes_per_node(self) -> int:
        return self.boxes // self.nodes

    @property
    def side(self) -> int:
        """Nodes behind each other."""
        return 2 if self.nodes == 2 else isqrt(self.nodes)

    @property
    def deep(self) -> float:
        """Operators of a node that a tuple passes."""
        return sqrt(self.boxes / self.nodes)

    @property
    def wide(self) -> float:
        """Streams on a link between two nodes; two nodes have one between them, whatever they do with it."""
        return 1.0 if self.nodes == 2 else self.deep

    def link(self, parameters: Parameters) -> Parameters:
        """The parameters as one link and the node behind it have them."""
        processing_us = parameters.processing_us * self.deep
        return replace(parameters, rate_per_s=parameters.rate_per_s * self.wide, processing_us=processing_us)


@dataclass(frozen=True)
class SweepPoint:
    """One point of an experiment: everything that a simulation has to know, and the seed of each of its runs."""

    experiment: str
    approach: Approach
    x: float
    parameters: Parameters
    network: BoxNetwork
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    """One figure or table: ``varies`` takes the values of ``over``, everything else stays.

    ``varies`` is a field of ``Parameters``, "boxes" (operators per node), "nodes" (that the same operators are spread
    over), or "time_ms" for the course of a single failure. A run warms up for ``warm_up_s`` and is measured for
    ``measured_s``, both in simulated time.
    """

    name: str
    figure: str
    title: str
    varies: str
    over: tuple[float, ...]
    measures: tuple[Measure, ...]
    approaches: tuple[Approach, ...] = ALL
    parameters: Parameters = field(default_factory=Parameters)
    network: BoxNetwork = field(default_factory=BoxNetwork)
    runs: int = 25
    warm_up_s: float = 300.0
    measured_s: float = 600.0

    def settings(self, seed: int = 1) -> list[SweepPoint]:
        """All points. Run k of every point has the same seed, so that approaches are compared on the same input."""
        seeds = tuple(seed + run for run in range(self.runs))
        return [
            SweepPoint(self.name, approach, x, *self._at(x), seeds) for approach in self.approaches for x in self.over
        ]

    def _at(self, x: float) -> tuple[Parameters, BoxNetwork]:
        if self.varies == "boxes":
            return self.parameters, replace(self.network, boxes=self.network.nodes * int(x))
        if self.varies == "nodes":
            return self.parameters, replace(self.network, nodes=int(x))
        if self.varies == "time_ms":
            return self.parameters, self.network
        changed: dict[str, Any] = {self.varies: x}
        return replace(self.parameters, **changed), self.network

    def formula(self, approach: Approach, measure: Measure, x: float) -> CaseRange | None:
        """The value by formula, where there is one.

        The formulas are about one operator on each of two nodes. In a square they are applied to one link, and its
        bandwidth is that of all links between nodes. What passive standby costs with more operators has no formula.
        """
        parameters, network = self._at(x)
        if measure is Measure.BANDWIDTH:
            return CaseRange.exactly(
                self._links_bytes(approach, x) / self._links_bytes(Approach.UPSTREAM, self.over[0])
            )
        if network.boxes_per_node > 1 and approach is Approach.PASSIVE and measure is Measure.OVERHEAD:
            return None
        return analytic(measure, approach, network.link(parameters))

    def _links_bytes(self, approach: Approach, x: float) -> float:
        """Bytes per millisecond on all links between nodes, by formula."""
        parameters, network = self._at(x)
        link = network.link(parameters)
        tuples = link.arrivals_per_ms * link.tuple_bytes * network.side * (network.side - 1)
        return tuples * (1 + overhead(approach, link))

    def paper(self, approach: Approach, measure: Measure, x: float) -> PaperPoint | None:
        """What the paper says about a point, if it says or draws anything; a statement about all points counts."""
        about = [
            point
            for point in paper_points()
            if (point.figure, point.approach, point.measure) == (self.figure, approach, measure)
            and (point.x is None or (point.x == x and point.varies == self.varies))
        ]
        return min(about, key=lambda point: (not point.available, point.x is None), default=None)


EXPERIMENTS = (
    Sweep(
        "overhead", "Figure 8", "overhead over the interval", "interval_ms", INTERVALS_MS, (Measure.OVERHEAD,)
    ),
    Sweep(
        "dynamics", "Figure 9", "delay of each tuple around a failure at 0", "time_ms", (0.0,),
        (Measure.DELAY, Measure.PARTIAL_RECOVERY), runs=1,
    ),
    Sweep(
        "recovery", "Figure 10", "recovery over the interval", "interval_ms", INTERVALS_MS, (Measure.FULL_RECOVERY,)
    ),
    Sweep(
        "tradeoff", "Figure 11", "overhead against recovery, one point per interval", "interval_ms", INTERVALS_MS,
        (Measure.OVERHEAD, Measure.FULL_RECOVERY),
    ),
    Sweep(
        "boxes", "Table 4", "overhead over operators per node", "boxes", (1, 4, 9, 16, 25), (Measure.OVERHEAD,)
    ),
    Sweep(
        "selectivity", "Table 4", "overhead over the selectivity of 25 operators", "selectivity",
        tuple(reversed(SELECTIVITIES)), (Measure.OVERHEAD,), network=BoxNetwork(2, 50),
    ),
    Sweep(
        "distribution", "Figure 12", "bandwidth against recovery, 100 operators on more and more nodes", "nodes",
        (4, 16, 36, 64, 100), (Measure.BANDWIDTH, Measure.FULL_RECOVERY), network=BoxNetwork(4, 100),
    ),
)  # fmt: skip
"""Figures 8 to 12 and both halves of Table 4."""


def experiment_of(name: str) -> Sweep:
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    raise UnbrokenError(f"no experiment {name!r}: choose from {', '.join(e.name for e in EXPERIMENTS)}")


@dataclass(frozen=True)
class MeasuredMean:
    """What the runs of a setting gave for one measure: the mean and its 95 % confidence interval.

    In the course of a single failure there is a result per tuple: ``x`` is the time of its arrival, its delay the mean.
    """

    approach: Approach
    measure: Measure
    x: float
    mean: float
    low: float
    high: float
    runs: int
