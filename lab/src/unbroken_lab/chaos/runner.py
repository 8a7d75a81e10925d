"""Plays one schedule on a real cluster and judges what came out."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from unbroken.client import Result
from unbroken.errors import InvariantViolation, UnbrokenError
from unbroken.flow.environment import variables
from unbroken.local.launcher import LocalCluster
from unbroken.observe.status.summary import divergence_text
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.placement import ShardRedundant
from unbroken.testing.faults import Fault, Freeze, Kill
from unbroken.testing.harness.harness import Harness
from unbroken.testing.harness.local import LocalDeployment
from unbroken.testing.harness.results import CollectedResults
from unbroken.testing.harness.schedule import FaultSchedule
from unbroken.testing.harness.waiting import until
from unbroken_lab.chaos.judge import judge
from unbroken_lab.chaos.schedule import NODES, ChaosSchedule, Upgrade
from unbroken_lab.chaos.upgrade import give_other_code

FLOW_FILE = Path(__file__).with_name("flow.py")
SINK = "live"
RUN_LOG = "run.log"
"""What was told while a run went on; also the mark of a run's directory."""

FIRST_DEADLINE_S = 180.0
STANDSTILL_S = 150.0
"""Longest time without a result: a restart of everything takes about 30 s on two cores, a frozen ZooKeeper before
it may add as much."""

SETTLE_S = 8.0
"""A node that was hit is missed by ZooKeeper after the session time-out of 4 s and a second of patience; before that
the layout says nothing about it."""

WHOLE_DEADLINE_S = 240.0
"""How long after a fault the flow may take to be whole again, with a node that died several times started late."""

JVM_S = 20.0
"""How long a fault that hits a JVM waits for one to be there, when its node is just being started again."""

END_DEADLINE_S = 180.0
SHORTAGE_S = 0.5
"""Interval at which the layout is looked at while the flow has to become whole."""

BROKEN = InvariantViolation.__name__
"""How a log shows that a protocol object complained about itself."""


class RunFailure(Exception):
    """The run cannot go on: what it waited for did not come."""


@dataclass
class ChaosOutcome:
    """What happened in a run; ``reasons`` are empty if it was as it has to be."""

    schedule: ChaosSchedule
    reasons: list[str] = field(default_factory=list)
    struck: list[dict[str, Any]] = field(default_factory=list)
    units: int = 0
    rows: int = 0
    source_rows: int = 0
    longest_gap_s: float = 0.0
    longest_gap_at_s: float = 0.0
    whole_after_s: float | None = None
    recoveries: list[tuple[str, float]] = field(default_factory=list)
    took_s: float = 0.0
    directory: str = ""

    @property
    def ok(self) -> bool:
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        """One line of a campaign's record. Times are seconds after the first result."""
        return {
            "seed": self.schedule.seed,
            "ok": self.ok,
            "reasons": self.reasons,
            "standbys": self.schedule.standbys,
            "schedule": [fault.to_json() for fault in self.schedule.faults],
            "struck": self.struck,
            "units": self.units,
            "rows": self.rows,
            "source_rows": self.source_rows,
            "longest_gap_s": round(self.longest_gap_s, 2),
            "longest_gap_at_s": round(self.longest_gap_at_s, 1),
            "whole_after_s": None if self.whole_after_s is None else round(self.whole_after_s, 1),
            "recoveries": [{"shard": shard, "seconds": seconds} for shard, seconds in self.recoveries],
            "took_s": round(self.took_s, 1),
            "directory": self.directory,
        }


def run_schedule(schedule: ChaosSchedule, directory: Path, tell: Callable[[str], None]) -> ChaosOutcome:
    """Play ``schedule`` in ``directory``, which is made for it and must not exist."""
    started = time.monotonic()
    directory = directory.resolve()
    directory.mkdir(parents=True)
    outcome = ChaosOutcome(schedule, directory=str(directory))
    environment = {
        "UNBROKEN_CHAOS_OUT": str(directory / "results"),
        "UNBROKEN_CHAOS_STOP": str(directory / "stop"),
        "UNBROKEN_CHAOS_SEED": str(schedule.seed),
    }
    say = _both(tell, directory / RUN_LOG)
    say(str(schedule))

    def make() -> LocalCluster:
        return LocalCluster(FLOW_FILE, directory / "state", nodes=NODES, standbys=schedule.standbys, supervise=True)

    with variables(environment), Harness(LocalDeployment(make), say) as harness:
        play = _Play(harness, schedule, directory / "stop", outcome, say)
        try:
            play.run()
        except (RunFailure, UnbrokenError) as error:
            outcome.reasons.append(str(error))
        except Exception as error:
            # One run that fails in a way nobody thought of must not hide what the other seeds would show.
            outcome.reasons.append(f"{type(error).__name__}: {error}")
        play.measure_gaps()
        outcome.recoveries = _recoveries(harness.history())
        harness.close()
        outcome.reasons += [f"divergence: {divergence_text(each)}" for each in sorted(harness.divergences)]
        outcome.reasons += [f"{process} is left behind" for process in harness.deployment.left_behind()]
    judgement = judge(schedule.seed, play.received, directory / "results", complete=not outcome.reasons)
    outcome.units, outcome.rows, outcome.source_rows = judgement.units, judgement.rows, judgement.source_rows
    outcome.reasons += judgement.complaints
    outcome.reasons += _broken_invariants(directory / "state" / "logs")
    outcome.took_s = time.monotonic() - started
    if outcome.ok:
        shutil.rmtree(directory)
        outcome.directory = ""
    else:
        (directory / "outcome.json").write_text(json.dumps(outcome.to_json(), indent=1))
    return outcome


def _both(tell: Callable[[str], None], path: Path) -> Callable[[str], None]:
    """Tell sentences, and keep them with their times beside what a failed run leaves."""

    def say(sentence: str) -> None:
        tell(sentence)
        with path.open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {sentence}\n")

    return say


class _Play:
    """One run from the start of the nodes to the last result."""

    def __init__(
        self,
        harness: Harness[LocalDeployment[LocalCluster]],
        schedule: ChaosSchedule,
        stop_file: Path,
        outcome: ChaosOutcome,
        tell: Callable[[str], None],
    ) -> None:
        self._harness = harness
        self._stop_file = stop_file
        self._outcome = outcome
        self._say = tell
        self._schedule = FaultSchedule(self._strike, self._obstacle, schedule.faults)
        self._results: CollectedResults | None = None
        self._looked = 0.0
        self._shortage: str | None = "not looked at"
        self._stopped_ms = float("inf")

    @property
    def received(self) -> list[Result]:
        return [] if self._results is None else self._results.received

    def run(self) -> None:
        self._harness.start()
        self._results = self._harness.collect(SINK)
        self._until(lambda: bool(self.received), FIRST_DEADLINE_S, "the first result")
        self._schedule.begin()
        self._say("the first result is here")
        while self._schedule.pending():
            self._until(self._next_fault, STANDSTILL_S + WHOLE_DEADLINE_S, "time to pass")
        struck = time.monotonic()
        self._until(self._whole, self._whole_deadline_s(), lambda: f"the flow to be whole again: {self._shortage}")
        self._outcome.whole_after_s = time.monotonic() - struck
        self._say("the flow is whole; ending it")
        self._stop_file.touch()
        self._stopped_ms = time.time() * 1000
        results = self._results
        self._until(lambda: results.ended, END_DEADLINE_S, "the final unit")
        self._until(self._harness.delivered, END_DEADLINE_S, "the final unit in the files")

    def _next_fault(self) -> bool:
        """Have done what there is to be done; whether a fault has happened."""
        before = len(self._outcome.struck)
        self._schedule.look()
        for waiting in self._schedule.put_off():
            waited_s = time.monotonic() - waiting.since
            if waited_s > self._whole_deadline_s():
                raise RunFailure(f"waited {waited_s:.0f} s before {waiting.fault}: {waiting.reason}")
        return len(self._outcome.struck) > before

    def _obstacle(self, fault: Fault) -> str | None:
        """Why a fault has to wait: for the flow to be whole, or for a JVM, if it hits one, for a while."""
        if fault.when_whole and not self._whole():
            return self._shortage
        if isinstance(fault, Kill | Freeze) and fault.jvm and not self._harness.has_jvm(str(fault.node)):
            waits = [each for each in self._schedule.put_off() if each.fault == fault]
            if not waits or time.monotonic() - waits[0].since < JVM_S:
                return f"{fault.node} has no JVM"
        return None

    def _strike(self, fault: Fault) -> None:
        at_s = self._schedule.elapsed_s()
        self._say(f"{at_s:.1f} s after the first result: {fault}")
        if isinstance(fault, Upgrade):
            what, done = give_other_code(self._harness.deployment.cluster)
            self._say(what)
        else:
            struck = self._harness.strike(fault)
            what, done = struck.what, struck.done
        self._outcome.struck.append({"at_s": round(at_s, 1), **fault.to_json(), "what": what, "done": done})

    def _until(self, condition: Callable[[], bool], deadline_s: float, what: str | Callable[[], str]) -> None:
        """Wait while results come."""

        def holds() -> bool:
            results = self._results
            ended = results is not None and results.ended
            if results is not None and self._schedule.began and not self._stop_file.exists():
                if ended:
                    raise RunFailure("the flow has ended by itself")
                silent_s = results.silent_s()
                if silent_s > STANDSTILL_S:
                    elapsed_s = self._schedule.elapsed_s()
                    raise RunFailure(f"no result for {silent_s:.0f} s, {elapsed_s:.0f} s after the first one")
            return condition()

        until(holds, deadline_s, what)

    def _whole(self) -> bool:
        """Whether no fault lasts, the last one was noticed or had time to be, shards are redundant and results flow."""
        now = time.monotonic()
        undisturbed_s = now - self._harness.disturbed
        if self._harness.lasting or undisturbed_s < SETTLE_S:
            self._shortage = "the last fault was a moment ago"
        elif now - self._looked >= SHORTAGE_S:
            self._looked = now
            self._shortage = self._harness.shortage()
            if self._shortage is None and self._results is not None and self._results.silent_s() > undisturbed_s:
                self._shortage = "no result since the last fault"
        return self._shortage is None

    def _whole_deadline_s(self) -> float:
        return WHOLE_DEADLINE_S + self._harness.lasting_s

    def measure_gaps(self) -> None:
        """Find the longest time without a result; the end of the flow is none."""
        arrived = [result.arrived_ms for result in self.received if result.arrived_ms < self._stopped_ms]
        gaps = [(later - earlier, earlier - arrived[0]) for earlier, later in pairwise(arrived)]
        longest_ms, at_ms = max(gaps, default=(0.0, 0.0))
        self._outcome.longest_gap_s, self._outcome.longest_gap_at_s = longest_ms / 1000, at_ms / 1000


def _recoveries(history: list[Reported]) -> list[tuple[str, float]]:
    """Which shard was without redundancy for how many seconds, as the controllers reported it."""
    found = (reported.notice for reported in history)
    return [(str(one.shard), one.took_s) for one in found if isinstance(one, ShardRedundant) and one.again]


def _broken_invariants(logs: Path) -> list[str]:
    """Sentences about logs in which a protocol object complained about itself."""
    out: list[str] = []
    for path in sorted(logs.glob("*.log")):
        lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if BROKEN in line]
        if lines:
            out.append(f"{path.name} has {len(lines)} broken invariants, the first: {lines[0]}")
    return out
