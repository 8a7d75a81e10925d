"""Monte Carlo of failures and repairs until nodes that stand in for each other are down at the same time.

What is simulated is the Markov process itself, event by event: a node fails, a node is back. Losses are rare, and to
wait for one would mean to simulate millions of failures that are repaired in time. So paths are drawn in which the
deadly second failure does not happen, and the rate at which it *would* have happened, integrated along a path, is its
*hazard*: a path has survived with probability ``exp(-hazard)``. That is exact, and every repair contributes to the
answer, not one in a million.

Two estimators stand on it, both without bias beyond 1 / runs:

- **cycles**: all nodes are up again and again, and from there on everything begins anew. So the mean time to loss is
  the mean time that survives of a cycle, divided by the mean probability of a loss in a cycle.
- **lifetimes**, where so many nodes are down at any time that all up is rare: a path ends when its hazard reaches a
  random, exponentially distributed limit, which is nothing but the time of the loss.

Many runs advance together, as rows of arrays; a row that is done begins the next run until all runs have begun.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from unbroken.errors import UnbrokenError
from unbroken_lab.studies.reliability.reliability import Machines, MarkovChain, Pairing, chain_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_DOWN_IN_CYCLES = 4.0
"""Nodes down on average up to which cycles are simulated: all up comes back after about exp of it failures."""

DEFAULT_CYCLES, DEFAULT_LIFETIMES = 200_000, 10_000
"""Runs unless told otherwise: a confidence interval of one to two percent in at most some seconds."""

MIN_RUNS = 100
"""Confidence intervals rest on the central limit theorem."""

MOST_ROWS = 20_000
MOST_CELLS = 20_000_000
"""Bytes for the nodes of all rows of a ring."""

Z95 = 1.959964


@dataclass(frozen=True)
class Estimate:
    """A simulated mean time with its 95 % confidence interval, and how it was found."""

    hours: float
    low_h: float
    high_h: float
    runs: int
    method: str

    @property
    def half_width(self) -> float:
        """Half of the confidence interval, as a part of the value."""
        return (self.high_h - self.low_h) / 2 / self.hours


def simulate(pairs: Pairing, machines: Machines, runs: int | None = None, seed: int = 1) -> Estimate:
    """Mean time to loss by simulation. The same arguments give the same answer, whatever else is simulated."""
    if runs is not None and runs < MIN_RUNS:
        raise UnbrokenError(f"{runs} runs are too few for a confidence interval: simulate at least {MIN_RUNS}")
    rng = np.random.default_rng([seed, list(Pairing).index(pairs), machines.nodes])
    chain = chain_of(pairs, machines)
    failures = machines.nodes / machines.mttf_h if chain is None else float(chain.more[0])
    cycles = failures * machines.repair_h(pairs) <= MOST_DOWN_IN_CYCLES
    total = runs or (DEFAULT_CYCLES if cycles else DEFAULT_LIFETIMES)
    walk: Walk
    if chain is None:
        walk = RingWalk(machines, min(total, MOST_ROWS, MOST_CELLS // machines.nodes))
    else:
        walk = ChainWalk(chain, min(total, MOST_ROWS))
    if cycles:
        return ratio_of(*run_cycles(walk, total, rng))
    return mean_of(run_lifetimes(walk, total, rng))


class Walk(Protocol):
    """The nodes of many runs at once, one run per row, in paths in which no deadly second failure happens."""

    size: int
    """Rows."""
    rest_rate: float
    """Failures per hour while all nodes are up."""

    def rates(self) -> tuple[Floats, Floats]:
        """Per row: the rate of losses, were they to happen, and the rate of all other events."""
        ...

    def step(self, rng: np.random.Generator) -> None:
        """One event in every row: a failure or a repair."""
        ...

    def at_rest(self) -> npt.NDArray[np.bool_]:
        """Rows in which all nodes are up."""
        ...

    def restart(self, rows: Ints) -> None:
        """Begin a new run in these rows, with all nodes up."""
        ...

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        """Forget all other rows."""
        ...


class ChainWalk:
    """Rows that are each at a number of a ``MarkovChain``."""

    def __init__(self, chain: MarkovChain, rows: int) -> None:
        self._more, self._end = chain.more, chain.end
        self._others = chain.more + chain.fewer
        self.size = rows
        self.rest_rate = float(chain.more[0])
        self.down: Ints = np.zeros(rows, dtype=np.int64)

    def rates(self) -> tuple[Floats, Floats]:
        return self._end[self.down], self._others[self.down]

    def step(self, rng: np.random.Generator) -> None:
        fails = np.less(rng.random(self.size) * self._others[self.down], self._more[self.down])
        self.down += np.where(fails, 1, -1)

    def at_rest(self) -> npt.NDArray[np.bool_]:
        return np.equal(self.down, 0)

    def restart(self, rows: Ints) -> None:
        self.down[rows] = 0

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        self.down = self.down[rows]
        self.size = len(self.down)


class RingWalk:
    """Rows of nodes in a ring, of which no two neighbours may be down at once: chained declustering.

    Which nodes are down matters, not only how many: two with one node between them endanger three nodes, others four.
    ``places`` holds the nodes that are down, ``endangered`` counts those whose failure would be the end. Failures are
    drawn for all nodes alike, and nothing happens if the node is down already or endangered: a rate that is the same
    for all states of the nodes, thinned out, gives the same process as a rate for each state.

    Invariant: ``is_down`` is true exactly for the first ``down`` entries of ``places``, and no two neighbours are down.
    """

    def __init__(self, machines: Machines, rows: int) -> None:
        self._nodes = machines.nodes
        self._fails, self._repairs = machines.failure_rate(), 1 / machines.mttr_h
        self.size = rows
        self.rest_rate = self._nodes * self._fails
        self.row: Ints = np.arange(rows)
        self.is_down: npt.NDArray[np.bool_] = np.zeros((rows, self._nodes), dtype=np.bool_)
        self.down: Ints = np.zeros(rows, dtype=np.int64)
        self.endangered: Ints = np.zeros(rows, dtype=np.int64)
        self.places: Ints = np.zeros((rows, 8), dtype=np.int64)

    def rates(self) -> tuple[Floats, Floats]:
        losses: Floats = self.endangered * np.float64(self._fails)
        others: Floats = self.rest_rate + self.down * np.float64(self._repairs)
        return losses, others

    def step(self, rng: np.random.Generator) -> None:
        fails = rng.random(self.size) * (self.rest_rate + self.down * self._repairs) < self.rest_rate
        chosen = rng.random(self.size)
        failing, repaired = np.flatnonzero(fails), np.flatnonzero(~fails)
        self._fail(failing, (chosen[failing] * self._nodes).astype(np.int64))
        self._repair(repaired, (chosen[repaired] * self.down[repaired]).astype(np.int64))

    def _fail(self, rows: Ints, node: Ints) -> None:
        near = self._is_down(rows, node) | self._is_down(rows, node - 1) | self._is_down(rows, node + 1)
        rows, node = rows[~near], node[~near]
        if not len(rows):
            return
        count = self.down[rows]
        if int(count.max()) == self.places.shape[1]:
            self.places = np.concatenate([self.places, np.zeros_like(self.places)], axis=1)
        self.places[rows, count] = node
        self.down[rows] = count + 1
        self.is_down[self.row[rows], node] = True
        self.endangered[rows] += self._neighbours(rows, node)

    def _repair(self, rows: Ints, index: Ints) -> None:
        last = self.down[rows] - 1
        node = self.places[rows, index]
        self.places[rows, index] = self.places[rows, last]
        self.down[rows] = last
        self.is_down[self.row[rows], node] = False
        self.endangered[rows] -= self._neighbours(rows, node)

    def _neighbours(self, rows: Ints, node: Ints) -> Ints:
        """How many nodes are endangered by this node alone: its two neighbours, unless others endanger them as well."""
        return 2 - self._is_down(rows, node - 2).astype(np.int64) - self._is_down(rows, node + 2)

    def _is_down(self, rows: Ints, node: Ints) -> npt.NDArray[np.bool_]:
        return self.is_down[self.row[rows], node % self._nodes]

    def at_rest(self) -> npt.NDArray[np.bool_]:
        return np.equal(self.down, 0)

    def restart(self, rows: Ints) -> None:
        self.is_down[self.row[rows]] = False
        self.down[rows] = 0
        self.endangered[rows] = 0

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        self.row, self.down, self.places = self.row[rows], self.down[rows], self.places[rows]
        self.endangered = self.endangered[rows]
        self.size = len(self.row)


def run_cycles(walk: Walk, total: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Of each cycle from all up to all up again: the mean time that survives, and the probability of a loss."""
    spent, lost = np.empty(total), np.empty(total)
    run: Ints = np.arange(walk.size)
    hazard, survived = np.zeros(walk.size), np.full(walk.size, 1 / walk.rest_rate)
    begun = walk.size
    walk.step(rng)
    while len(run):
        losses, others = walk.rates()
        more = losses * rng.standard_exponential(walk.size) / others
        # A row at rest has begun a cycle whose time until the first failure is already counted by its mean.
        moving = losses > 0
        survived[moving] -= np.exp(-hazard[moving]) * np.expm1(-more[moving]) / losses[moving]
        hazard += more
        walk.step(rng)
        done = np.flatnonzero(walk.at_rest() & moving)
        if not len(done):
            continue
        spent[run[done]], lost[run[done]] = survived[done], -np.expm1(-hazard[done])
        again = done[: total - begun]
        run[again] = np.arange(begun, begun + len(again))
        begun += len(again)
        hazard[again], survived[again] = 0.0, 1 / walk.rest_rate
        if len(again) < len(done):
            kept = _all_but(done[len(again) :], walk.size)
            walk.keep(kept)
            run, hazard, survived = run[kept], hazard[kept], survived[kept]
    return spent, lost


def run_lifetimes(walk: Walk, total: int, rng: np.random.Generator) -> Floats:
    """The time of the loss in each run, in hours."""
    lives = np.empty(total)
    run: Ints = np.arange(walk.size)
    clock, left = np.zeros(walk.size), rng.standard_exponential(walk.size)
    begun = walk.size
    while len(run):
        losses, others = walk.rates()
        stay = rng.standard_exponential(walk.size) / others
        ends = losses * stay >= left
        clock[ends] += left[ends] / losses[ends]
        clock[~ends] += stay[~ends]
        left -= losses * stay
        walk.step(rng)
        done = np.flatnonzero(ends)
        if not len(done):
            continue
        lives[run[done]] = clock[done]
        again = done[: total - begun]
        run[again] = np.arange(begun, begun + len(again))
        begun += len(again)
        walk.restart(again)
        clock[again], left[again] = 0.0, rng.standard_exponential(len(again))
        if len(again) < len(done):
            kept = _all_but(done[len(again) :], walk.size)
            walk.keep(kept)
            run, clock, left = run[kept], clock[kept], left[kept]
    return lives


def ratio_of(spent: Floats, lost: Floats) -> Estimate:
    """Mean of ``spent`` over mean of ``lost``, with the interval of a ratio of means (delta method)."""
    ratio = float(spent.mean() / lost.mean())
    error = float((spent - ratio * lost).std(ddof=1) / lost.mean()) / math.sqrt(len(spent))
    return Estimate(ratio, ratio - Z95 * error, ratio + Z95 * error, len(spent), "cycles")


def mean_of(lives: Floats) -> Estimate:
    mean, error = float(lives.mean()), float(lives.std(ddof=1)) / math.sqrt(len(lives))
    return Estimate(mean, mean - Z95 * error, mean + Z95 * error, len(lives), "lifetimes")


def _all_but(rows: Ints, size: int) -> npt.NDArray[np.bool_]:
    kept = np.ones(size, dtype=np.bool_)
    kept[rows] = False
    return kept
