"""How long until nodes that stand in for each other are down at the same time: formulas and exact solutions.

Nodes fail independently of each other, each after ``mttf_h`` hours on average, and whatever was lost with one is
redundant again ``mttr_h`` hours later on average; both times are exponential. The end is the first moment at which a
*deadly pair* of nodes is down: two nodes without which something has no replica left. The kinds of pairs differ in
which pairs are deadly and in nothing else, so one formula serves all of them::

    mean time to loss = mttf^2 / (2 * mttr * deadly pairs)

because a given pair is lost when one of its two nodes fails (once in ``mttf / 2``) and the other one follows before the
first is back (probability ``mttr / mttf``). Flux (section 4.2) has twice as much for each kind: it lets a loss begin
with one particular node of a pair, although either may be the first. ``paper_hours`` is what Flux says.

The formula is the limit for repairs that are short against everything else. ``exact_hours`` has no such limit: the
number of nodes that are down is a Markov chain that goes up, down, or ends, and is solved as such. Chained declustering
has no chain that is so small; ``losses.simulate`` answers there, and checks all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from unbroken.errors import UnbrokenError

MAX_NODES = 10_000
"""The simulation of chained nodes keeps a byte for each node and run, and no dataflow has more nodes."""

HOURS_PER_YEAR = 8766.0


class Pairing(StrEnum):
    """Which nodes stand in for each other."""

    PROCESS = "process"
    """Two nodes with everything on both, whatever the number of nodes."""
    CLUSTER = "cluster"
    """Two copies of the dataflow, each on half of the nodes; a copy without one of its nodes is of no use."""
    PARTITION = "partition"
    """Half as many partitions as nodes, each with two nodes of its own: the arrangement of Flux's formula."""
    CHAINED = "chained"
    """As many partitions as nodes; partition i is on nodes i and i + 1, as here and in Flux's experiment."""


@dataclass(frozen=True)
class Machines:
    """How many nodes there are, how often they fail and how long redundancy is missing then.

    ``mttr_h`` ends when what was lost is redundant again, wherever: with a standby that is not the time to repair a
    machine. ``cluster_mttr_h`` is the same for the nodes of cluster pairs, where Flux expects between once and
    ``nodes`` times as much, depending on the bandwidth for copying the state of half of all nodes; by default it is
    ``mttr_h``, the best case for cluster pairs. Kinds that need an even number of nodes leave the last of an odd number
    idle.
    """

    nodes: int
    mttf_h: float
    mttr_h: float
    cluster_mttr_h: float | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.nodes <= MAX_NODES:
            raise UnbrokenError(f"{self.nodes} nodes: give a number of nodes from 2 to {MAX_NODES}")
        for name, value in (("mttf", self.mttf_h), ("mttr", self.mttr_h), ("cluster mttr", self.cluster_mttr_h)):
            if value is not None and not 0 < value < float("inf"):
                raise UnbrokenError(f"{name} of {value} hours: give a time longer than nothing")

    @property
    def half(self) -> int:
        return self.nodes // 2

    def failure_rate(self) -> float:
        """Failures of one node per hour."""
        return 1 / self.mttf_h

    def repair_h(self, pairs: Pairing) -> float:
        """Mean time until a lost node counts again, with this kind of pairs."""
        if pairs is Pairing.CLUSTER and self.cluster_mttr_h is not None:
            return self.cluster_mttr_h
        return self.mttr_h


@dataclass(frozen=True)
class MarkovChain:
    """A Markov chain on the numbers 0, 1, 2, ... with an end: rates per hour of one more, one less and of the end.

    Arrays of the same length, one entry for each number. ``more`` is 0 for the last, ``fewer`` and ``end`` for 0.
    """

    more: NDArray[np.float64]
    fewer: NDArray[np.float64]
    end: NDArray[np.float64]

    def mean_hours(self) -> float:
        """Mean time from 0 to the end.

        From the highest number down: the probability ``lost`` of ending before there is one less, and the mean time
        ``spent`` until either. Written without a subtraction, so that probabilities of 1e-15 come out right, too.
        """
        lost = spent = 0.0
        for number in range(len(self.more) - 1, -1, -1):
            more, fewer, end = float(self.more[number]), float(self.fewer[number]), float(self.end[number])
            leaving = fewer + end + more * lost
            lost, spent = (end + more * lost) / leaving, (1 + more * spent) / leaving
        return spent


def deadly_pairs(pairs: Pairing, nodes: int) -> int:
    """In how many ways two nodes can be chosen that must not be down together."""
    half = nodes // 2
    chained = nodes if nodes > 2 else 1
    return {Pairing.PROCESS: 1, Pairing.CLUSTER: half * half, Pairing.PARTITION: half, Pairing.CHAINED: chained}[pairs]


def formula_hours(pairs: Pairing, machines: Machines) -> float:
    """Mean time to loss if repairs are short: see the module's text, and ``too_short_by`` for how short."""
    return machines.mttf_h**2 / (2 * machines.repair_h(pairs) * deadly_pairs(pairs, machines.nodes))


def too_short_by(pairs: Pairing, machines: Machines) -> float:
    """How far ``formula_hours`` is below the truth at most, as a share of it; it is never above.

    Two things make the truth longer. Failures of what is down already do no harm: 3 repairs in the time between two
    failures of what is lost as one, a node or, with cluster pairs, a copy (5.5 with chained nodes, of which each
    endangers two). And all nodes are up at the beginning: one repair in the time to loss. The factors come from exact
    solutions, of chained nodes up to 12 of them; that they are bounds is checked, not proven.
    """
    repair_h = machines.repair_h(pairs)
    lost_as_one = machines.half if pairs is Pairing.CLUSTER else 1
    harmless = 5.5 if pairs is Pairing.CHAINED and machines.nodes > 2 else 3.0
    return harmless * repair_h * lost_as_one / machines.mttf_h + repair_h / formula_hours(pairs, machines)


def paper_hours(pairs: Pairing, machines: Machines) -> float | None:
    """What section 4.2 of Flux says, or None for chained declustering, for which it says nothing.

    With N nodes: mttf^2 / mttr for process pairs, 4 mttf^2 / (N^2 mttr) for cluster pairs, 2 mttf^2 / (N mttr) for
    partition pairs.
    """
    if pairs is Pairing.CHAINED:
        return None
    divisor = {Pairing.PROCESS: 1.0, Pairing.CLUSTER: machines.nodes**2 / 4, Pairing.PARTITION: machines.nodes / 2}[
        pairs
    ]
    return machines.mttf_h**2 / (machines.repair_h(pairs) * divisor)


def chain_of(pairs: Pairing, machines: Machines) -> MarkovChain | None:
    """The Markov chain of what is down, or None where the number of nodes that are down does not say enough.

    For process and partition pairs it counts pairs with one node down, for cluster pairs the nodes down in the one copy
    that has lost some: that copy is of use again when none of its nodes is down any more.
    """
    if pairs is Pairing.CHAINED and machines.nodes > 2:
        return None
    fails, repairs = machines.failure_rate(), 1 / machines.repair_h(pairs)
    most = machines.half if pairs in (Pairing.CLUSTER, Pairing.PARTITION) else 1
    down = np.arange(most + 1, dtype=np.float64)
    if pairs is Pairing.CLUSTER:
        more = (most - down) * fails
        more[0] = 2 * most * fails
        end = np.full(most + 1, most * fails)
        end[0] = 0.0
    else:
        more, end = 2 * (most - down) * fails, down * fails
    return MarkovChain(more, down * repairs, end)


def exact_hours(pairs: Pairing, machines: Machines) -> float | None:
    """Mean time to loss without any approximation, or None if only the simulation can tell (chained declustering)."""
    chain = chain_of(pairs, machines)
    return None if chain is None else chain.mean_hours()


def chance_in_a_year(mean_hours: float) -> float:
    """Probability of a loss within a year, for losses that are rare enough to come at a constant rate."""
    return float(-np.expm1(-HOURS_PER_YEAR / mean_hours))


def spoken(hours: float) -> str:
    """A time as a person would say it: three digits and the largest unit that leaves more than one of it."""
    for unit, length_h in (("years", HOURS_PER_YEAR), ("days", 24.0), ("h", 1.0), ("min", 1 / 60)):
        if hours >= 2 * length_h:
            return f"{_three_digits(hours / length_h)} {unit}"
    return f"{_three_digits(hours * 3600)} s"


def _three_digits(value: float) -> str:
    if value >= 1e7:
        return f"{value:.2e}"
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"
