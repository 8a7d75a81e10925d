"""Many seeds: each is a random flow with random faults, and in the end everything has to be delivered and whole."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from random import Random
from typing import Any

from unbroken_lab.sim.collecting import collecting_seldom
from unbroken_lab.sim.faults import (
    make_bad_disks,
    make_job_faults,
    make_leader_faults,
    make_losses,
    make_pauses,
    make_schedule,
    make_tears,
    make_write_faults,
)
from unbroken_lab.sim.flows import MOST_NODES, SMALL, Flow, pick_flow
from unbroken_lab.sim.injector import Injector
from unbroken_lab.sim.resting import advance, failure_of, finish
from unbroken_lab.sim.story import Story, Subject
from unbroken_lab.sim.world import World

EARLY = 0.3
"""How often a source has no more rows before the others, where sources go their own ways."""

AFTER_MS = 3_000.0
"""How long the sources go on after the last fault, unless the whole run is short."""

REST_MS = 240_000.0
"""How long the flow may take to come to rest after that."""


@dataclass(frozen=True)
class Options:
    """What a campaign is like; part of what repeats a run. Faults come ``mean_s`` apart on average in a small flow, and
    in a large one the more often the more nodes it has. ``torn`` nodes are killed within an event in every run; None:
    one in some of the runs."""

    length_s: float = 20.0
    mean_s: float = 1.5
    most_nodes: int = MOST_NODES
    check_every: int = 1
    torn: int | None = None

    def command(self, seed: int) -> str:
        """What runs a seed again and tells its story."""
        default = Options()
        words = ["unbroken simulate faults", f"--first {seed}", "--seeds 1"]
        words += [] if self.length_s == default.length_s else [f"--length {self.length_s:g}"]
        words += [] if self.mean_s == default.mean_s else [f"--mean {self.mean_s:g}"]
        words += [] if self.most_nodes == default.most_nodes else [f"--nodes {self.most_nodes}"]
        words += [] if self.check_every == default.check_every else [f"--check-every {self.check_every}"]
        words += [] if self.torn == default.torn else [f"--torn {self.torn}"]
        return " ".join(words)


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
    subject: Subject | None = None
    """What the failure is about."""

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
    """One seed: the flow, which is that of the seed unless one is ``given``, its world, and what is done to it."""

    seed: int
    options: Options
    story: Story | None = None
    given: Flow | None = None
    flow: Flow = field(init=False)
    world: World = field(init=False)
    injector: Injector = field(init=False)

    def __post_init__(self) -> None:
        self.flow = self.given or flow_of(self.seed, self.options)
        self.world = World(self.flow.setup, self.seed, self.story)
        self.injector = Injector(self.world, self.flow.fragile, self._tell)

    def outcome(self) -> Outcome:
        """Run it to its end, or to the first thing that is wrong."""
        began, world = time.process_time(), self.world
        failure: str | None = None
        subject: Subject | None = None
        try:
            with collecting_seldom():
                self._run()
        except Exception as error:
            failure, subject = failure_of(error), Subject.of(error)
        counts = {
            "events": world.kernel.events,
            "handled": world.count,
            "units": world.network.units_delivered,
            "messages": world.network.messages_delivered,
            "copies": world.copying.copies,
            "layouts": world.zookeeper.layout.version,
            "repeated": world.sink.repeated,
            "skipped": self.injector.skipped,
            **world.counts,
        }
        story: tuple[str, ...] = ()
        if self.story is not None and subject is not None:
            story = tuple(self.story.about(subject, world.zookeeper.history))
        took, gap = time.process_time() - began, max(world.sink.gaps_ms, default=0.0)
        simulated = world.kernel.now_ms / 1000
        flow, digest = str(self.flow), world.kernel.digest()
        return Outcome(self.seed, flow, failure, digest, took, simulated, counts, gap, story, subject)

    def _run(self) -> None:
        world, injector, length_ms = self.world, self.injector, self.options.length_s * 1000
        random = world.kernel.random("faults")
        mean_ms = self.options.mean_s * 1000 * min(1.0, SMALL / len(world.machines))
        injector.begin(make_schedule(random, list(world.machines), length_ms, mean_ms))
        injector.begin(make_losses(world.kernel.random("losses"), list(world.machines), length_ms))
        injector.begin(make_pauses(world.kernel.random("pauses"), list(world.machines), length_ms))
        injector.begin(make_bad_disks(world.kernel.random("disks"), list(world.machines), length_ms))
        injector.begin(make_write_faults(world.kernel.random("writes"), list(world.machines), length_ms))
        injector.begin(make_job_faults(world.kernel.random("jobs"), list(world.machines), length_ms))
        injector.begin(make_leader_faults(world.kernel.random("leaders"), list(world.machines), length_ms))
        injector.begin(make_tears(world.kernel.random("tears"), list(world.machines), length_ms, self.options.torn))
        if world.topology.bucketed and random.random() < EARLY:
            world.sources.ends[random.choice(world.topology.sources)] = random.uniform(0, length_ms)
        advance(world, length_ms)
        injector.heal_all()
        self._tell("no more faults")
        world.sources.end_ms = length_ms + min(AFTER_MS, length_ms)
        finish(world, REST_MS)

    def _tell(self, text: str) -> None:
        if self.story is not None:
            self.story.sentence(self.world.kernel.now_ms, text)


def flow_of(seed: int, options: Options) -> Flow:
    """The flow of a seed."""
    return pick_flow(Random(f"unbroken sim flow {seed}"), options.most_nodes, options.check_every)


def run_seed(seed: int, options: Options, story: bool = False) -> Outcome:
    """Run one seed; with a ``story``, one that fails is run again, and comes with what led to the failure."""
    outcome = Run(seed, options).outcome()
    if outcome.ok or not story:
        return outcome
    again = Run(seed, options, Story()).outcome()
    if again.digest != outcome.digest:
        different = "run again it took another way, so the simulator depends on more than the seed"
        return replace(outcome, failure=f"{outcome.failure}; {different}")
    return again


def run_campaign(
    seeds: Iterable[int], options: Options, story: bool, told: Callable[[Outcome], None], jobs: int = 1
) -> bool:
    """Run every seed, ``jobs`` at a time, and tell of each in their order; whether all of them passed."""
    passed = True
    run = partial(run_seed, options=options, story=story)
    with ExitStack() as stack:
        outcomes: Iterable[Outcome] = map(run, seeds)
        if jobs > 1:
            context = get_context("spawn")
            outcomes = stack.enter_context(ProcessPoolExecutor(jobs, context)).map(run, seeds)
        for outcome in outcomes:
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


def sentence(found: Mapping[str, Any]) -> str:
    """A summary in one line."""
    faults = sum(number for name, number in found.items() if name.startswith("fault "))
    left_out = f" ({found.get('skipped', 0)} more left out)"
    failed = f"{len(found['failed'])} failed" if found["failed"] else "all passed"
    happened = ("delivered", "copies", "layouts", "forks", "tentative", "folded", "restored", "torn")
    counts = ", ".join(f"{name} {found.get(name, 0)}" for name in happened)
    times = f"{found['simulated_s']:.0f} s simulated in {found['took_s']:.0f} s"
    return f"{found['seeds']} flows under {faults} faults{left_out}, {failed}: {counts}; {times}"
