"""Many seeds: each is a random flow with random faults, and in the end everything has to be delivered and whole."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from unbroken.sim.faults import Injector, make_schedule
from unbroken.sim.flows import MOST_NODES, Flow, pick_flow
from unbroken.sim.story import Story
from unbroken.sim.world import World

LOOK_MS = 250.0
"""How often the whole is looked at."""

MOST_EVENTS = 2_000_000
"""Events between two looks: more means that time does not pass any more."""

AFTER_MS = 3_000.0
"""How long the sources go on after the last fault."""

REST_MS = 240_000.0
"""How long the flow may take to come to rest after that."""


@dataclass(frozen=True)
class Options:
    """What a campaign is like; part of what repeats a run."""

    length_s: float = 20.0
    mean_s: float = 1.5
    most_nodes: int = MOST_NODES
    check_every: int = 1

    def command(self, seed: int) -> str:
        """What runs a seed again and tells its story."""
        default = Options()
        words = ["unbroken simulate faults", f"--first {seed}", "--seeds 1"]
        words += [] if self.length_s == default.length_s else [f"--length {self.length_s:g}"]
        words += [] if self.mean_s == default.mean_s else [f"--mean {self.mean_s:g}"]
        words += [] if self.most_nodes == default.most_nodes else [f"--nodes {self.most_nodes}"]
        words += [] if self.check_every == default.check_every else [f"--check-every {self.check_every}"]
        return " ".join([*words, "--story"])


@dataclass(frozen=True)
class Outcome:
    """What became of one seed."""

    seed: int
    flow: str
    failure: str | None
    digest: str
    took_s: float
    simulated_s: float
    counts: dict[str, int]
    longest_gap_ms: float
    story: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.failure is None

    def to_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "ok": self.ok,
            "flow": self.flow,
            "failure": self.failure,
            "digest": self.digest,
            "took_s": round(self.took_s, 3),
            "simulated_s": round(self.simulated_s, 3),
            "longest_gap_ms": round(self.longest_gap_ms, 1),
            **self.counts,
        }


@dataclass
class Run:
    """One seed: the flow, its world, and what is done to it."""

    seed: int
    options: Options
    story: Story | None = None
    flow: Flow = field(init=False)
    world: World = field(init=False)

    def __post_init__(self) -> None:
        random = Random(f"unbroken sim flow {self.seed}")
        self.flow = pick_flow(random, self.options.most_nodes, self.options.check_every)
        self.world = World(self.flow.setup, self.seed, self.story)

    def outcome(self) -> Outcome:
        """Run it to its end, or to the first thing that is wrong."""
        began, world, failure = time.process_time(), self.world, None
        try:
            self._run()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            failure = f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"
        counts = {
            "events": world.kernel.events,
            "handled": world.count,
            "units": world.network.units_delivered,
            "messages": world.network.messages_delivered,
            "copies": world.transfers.copies,
            "layouts": world.zookeeper.layout.version,
            "repeated": world.sink.repeated,
            **world.counts,
        }
        story = () if self.story is None or failure is None else tuple(self.story.about(failure))
        took, gap = time.process_time() - began, max(world.sink.gaps_ms, default=0.0)
        simulated = world.kernel.now_ms / 1000
        return Outcome(self.seed, str(self.flow), failure, world.kernel.digest(), took, simulated, counts, gap, story)

    def _run(self) -> None:
        world, length_ms = self.world, self.options.length_s * 1000
        injector = Injector(world, self.flow.fragile, self._tell)
        random = world.kernel.random("faults")
        injector.begin(make_schedule(random, list(world.machines), length_ms, self.options.mean_s * 1000))
        self._advance(length_ms)
        injector.heal_all()
        self._tell("no more faults")
        world.sources.end_ms = length_ms + AFTER_MS
        deadline = length_ms + REST_MS
        while (reason := world.at_rest()) is not None:
            if world.kernel.now_ms >= deadline:
                raise AssertionError(f"not at rest {REST_MS / 1000:g} s after the last fault: {reason}")
            self._advance(world.kernel.now_ms + LOOK_MS)
        world.check()
        world.check_result()

    def _advance(self, until_ms: float) -> None:
        world = self.world
        while world.kernel.now_ms < until_ms:
            world.kernel.run(min(until_ms, world.kernel.now_ms + LOOK_MS), MOST_EVENTS)
            world.check()

    def _tell(self, text: str) -> None:
        if self.story is not None:
            self.story.sentence(self.world.kernel.now_ms, text)


def run_seed(seed: int, options: Options, story: bool = False) -> Outcome:
    """Run one seed; with a ``story``, a failure comes with what led to it."""
    return Run(seed, options, Story() if story else None).outcome()


def run_campaign(seeds: Iterable[int], options: Options, story: bool, told: Callable[[Outcome], None]) -> bool:
    """Run every seed and tell of each; whether all of them passed."""
    passed = True
    for seed in seeds:
        outcome = run_seed(seed, options, story)
        told(outcome)
        passed = passed and outcome.ok
    return passed


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """What a campaign comes to."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.counts)
    took = sum(outcome.took_s for outcome in outcomes)
    return {
        "seeds": len(outcomes),
        "failed": [outcome.seed for outcome in outcomes if not outcome.ok],
        "took_s": round(took, 1),
        "simulated_s": round(sum(outcome.simulated_s for outcome in outcomes), 1),
        "deliveries_per_s": round(counts["units"] / took) if took else 0,
        **dict(sorted(counts.items())),
    }
