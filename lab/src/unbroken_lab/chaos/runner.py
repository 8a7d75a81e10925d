"""Plays one schedule on a real cluster and judges what came out."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from unbroken.client import Result, Subscription
from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken_lab.chaos.judge import judge
from unbroken_lab.chaos.schedule import AT_JVMS, Fault, Kind, Schedule
from unbroken_lab.chaos.stage import Stage

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
LOOK_S = 0.1
SHORTAGE_S = 0.5
"""Interval at which the layout is looked at while the flow has to become whole."""

REDUNDANT = re.compile(r"(\S+) is redundant again after ([0-9.]+) s")
BROKEN = "InvariantViolation"


class RunFailure(Exception):
    """The run cannot go on: what it waited for did not come."""


@dataclass
class Outcome:
    """What happened in a run; ``reasons`` are empty if it was as it has to be."""

    schedule: Schedule
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


def run_schedule(schedule: Schedule, directory: Path, tell: Callable[[str], None]) -> Outcome:
    """Play ``schedule`` in ``directory``, which is made for it and must not exist."""
    started = time.monotonic()
    directory = directory.resolve()
    directory.mkdir(parents=True)
    outcome = Outcome(schedule, directory=str(directory))
    environment = {
        "UNBROKEN_CHAOS_OUT": str(directory / "results"),
        "UNBROKEN_CHAOS_STOP": str(directory / "stop"),
        "UNBROKEN_CHAOS_SEED": str(schedule.seed),
    }
    say = _both(tell, directory / RUN_LOG)
    say(str(schedule))
    with variables(environment), Stage(directory / "state", schedule.standbys, say) as stage:
        play = _Play(stage, schedule, directory / "stop", outcome, say)
        try:
            play.run()
        except (RunFailure, UnbrokenError) as error:
            outcome.reasons.append(str(error))
        except Exception as error:
            # One run that fails in a way nobody thought of must not hide what the other seeds would show.
            outcome.reasons.append(f"{type(error).__name__}: {error}")
        play.measure_gaps()
        outcome.recoveries = _recoveries(stage.history())
        stage.close()
        outcome.reasons += [f"divergence: {divergence}" for divergence in sorted(stage.divergences)]
        outcome.reasons += [f"{process} is left behind" for process in stage.left_behind()]
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
    """One run from the start of the nodes to the last result; one thread reads results and strikes in between."""

    def __init__(
        self, stage: Stage, schedule: Schedule, stop_file: Path, outcome: Outcome, tell: Callable[[str], None]
    ) -> None:
        self._stage = stage
        self._stop_file = stop_file
        self._outcome = outcome
        self._say = tell
        self._waiting = list(schedule.faults)
        self._undo: list[tuple[float, Callable[[], None], str]] = []
        self._live: Subscription | None = None
        self._began = 0.0
        self._delay_s = 0.0
        self._disturbed = 0.0
        self._looked = 0.0
        self._shortage: str | None = "not looked at"
        self._fragile = False
        self._stopped_ms = float("inf")
        self.received: list[Result] = []

    def run(self) -> None:
        self._stage.start()
        try:
            self._live = self._stage.subscribe(0)
            self._until(lambda: bool(self.received), FIRST_DEADLINE_S, "the first result")
            self._began = self._disturbed = time.monotonic()
            self._say("the first result is here")
            while self._waiting:
                self._next_fault()
            struck = time.monotonic()
            self._until(self._whole, self._whole_deadline_s(), lambda: f"the flow to be whole again: {self._shortage}")
            self._outcome.whole_after_s = time.monotonic() - struck
            self._say("the flow is whole; ending it")
            self._stop_file.touch()
            self._stopped_ms = time.time() * 1000
            self._until(self._ended, END_DEADLINE_S, "the final unit")
            self._until(self._stage.delivered, END_DEADLINE_S, "the final unit in the files")
        finally:
            for _, undo, _ in self._undo:
                undo()
            if self._live is not None:
                self._live.close()

    def _next_fault(self) -> None:
        """Wait for the time of the next fault, and for the flow to be whole where the fault needs that; then strike."""
        fault = self._waiting.pop(0)
        due = self._began + fault.at_s + self._delay_s
        self._until(lambda: time.monotonic() >= due, fault.at_s + STANDSTILL_S, "time to pass")
        if fault.alone or self._fragile:
            what = f"the flow to be whole before {fault.kind}"
            self._until(self._whole, self._whole_deadline_s(), lambda: f"{what}: {self._shortage}")
            self._delay_s += max(0.0, time.monotonic() - due)
        if fault.kind in AT_JVMS:
            give_up = time.monotonic() + JVM_S
            self._until(lambda: self._stage.has_jvm(fault.target) or time.monotonic() > give_up, 2 * JVM_S, "a JVM")
        self._fragile = fault.alone
        self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        at_s = self._elapsed_s()
        if fault.kind is Kind.RESTART_ALL:
            self._restart(fault)
            what, done = "kill -9 of everything, started again", True
        else:
            effect = self._stage.strike(fault)
            what, done = effect.what, effect.done
            if effect.undo is not None:
                self._undo.append((time.monotonic() + fault.seconds, effect.undo, f"end of: {fault}"))
        self._disturbed = time.monotonic()
        self._outcome.struck.append({"at_s": round(at_s, 1), "what": what, "done": done})
        self._say(
            f"{at_s:.1f} s after the first result: {what}" + (f", for {fault.seconds} s" if fault.seconds else "")
        )

    def _restart(self, fault: Fault) -> None:
        """Take what has arrived, end everything, and go on behind the last result."""
        assert self._live is not None
        while (result := self._live.next(0)) is not None:
            self.received.append(result)
        self._live.close()
        self._live = None
        self._undo.clear()
        self._stage.strike_and_restart(fault)
        self._live = self._stage.subscribe(self.received[-1].header.number)

    def _until(self, condition: Callable[[], bool], deadline_s: float, what: str | Callable[[], str]) -> None:
        """Read results and end freezes until ``condition()`` holds."""
        deadline = time.monotonic() + deadline_s
        while not condition():
            self._read()
            self._thaw()
            now = time.monotonic()
            if self._began and not self._stop_file.exists():
                silent_s = time.time() - self.received[-1].arrived_ms / 1000
                if silent_s > STANDSTILL_S:
                    raise RunFailure(f"no result for {silent_s:.0f} s, {self._elapsed_s():.0f} s after the first one")
            if now > deadline:
                text = what if isinstance(what, str) else what()
                raise RunFailure(f"waited {deadline_s:.0f} s for {text}")

    def _read(self) -> None:
        if self._live is None or self._live.ended:
            time.sleep(LOOK_S)
        if self._live is None:
            return
        result = self._live.next(LOOK_S)
        while result is not None:
            self.received.append(result)
            result = self._live.next(0)

    def _thaw(self) -> None:
        now = time.monotonic()
        for entry in [entry for entry in self._undo if entry[0] <= now]:
            self._undo.remove(entry)
            entry[1]()
            self._disturbed = now
            self._say(f"{self._elapsed_s():.1f} s after the first result: {entry[2]}")

    def _whole(self) -> bool:
        """Whether no fault lasts, the last one was noticed or had time to be, shards are redundant and results flow."""
        now = time.monotonic()
        if self._undo or now - self._disturbed < SETTLE_S or now - self._looked < SHORTAGE_S:
            return False
        self._looked = now
        self._shortage = self._stage.shortage()
        silent_s = time.time() - self.received[-1].arrived_ms / 1000
        if self._shortage is None and silent_s > now - self._disturbed:
            self._shortage = "no result since the last fault"
        return self._shortage is None

    def _whole_deadline_s(self) -> float:
        return WHOLE_DEADLINE_S + max((until - time.monotonic() for until, _, _ in self._undo), default=0.0)

    def _ended(self) -> bool:
        return bool(self.received) and self.received[-1].header.final

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began if self._began else 0.0

    def measure_gaps(self) -> None:
        """Find the longest time without a result; the end of the flow is none."""
        arrived = [result.arrived_ms for result in self.received if result.arrived_ms < self._stopped_ms]
        gaps = [(later - earlier, earlier - arrived[0]) for earlier, later in pairwise(arrived)]
        longest_ms, at_ms = max(gaps, default=(0.0, 0.0))
        self._outcome.longest_gap_s, self._outcome.longest_gap_at_s = longest_ms / 1000, at_ms / 1000


def _recoveries(history: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Which shard was without redundancy for how many seconds, as the controllers told it."""
    found = (REDUNDANT.search(str(entry["sentence"])) for entry in history)
    return [(match[1], float(match[2])) for match in found if match is not None]


def _broken_invariants(logs: Path) -> list[str]:
    """Sentences about logs in which a protocol object complained about itself."""
    out: list[str] = []
    for path in sorted(logs.glob("*.log")):
        lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if BROKEN in line]
        if lines:
            out.append(f"{path.name} has {len(lines)} broken invariants, the first: {lines[0]}")
    return out
