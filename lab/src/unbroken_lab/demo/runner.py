"""Runs the demonstration: starts the flow, kills a node under it, and checks every result."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from rich.console import Console

from unbroken.client import Result, Subscription
from unbroken.connectors.generator import Generator
from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken.local.launcher import LocalCluster
from unbroken.observe.status.node import NodeStatus, ReplicaState
from unbroken.testing.faults import Kill
from unbroken.testing.harness.harness import Harness
from unbroken.testing.harness.local import LocalDeployment
from unbroken.testing.harness.waiting import Overdue, until
from unbroken_lab.demo.measure import ArrivalSample, DemoSchedule
from unbroken_lab.demo.reference import DeliveredUnit
from unbroken_lab.demo.report import SOURCE, Recording, Setting, evaluate, print_summary, write_files
from unbroken_lab.demo.screen import Screen, View, describe_node

FLOW_FILE = Path(__file__).with_name("netmon.py")
MARKER = ".unbroken-demo"
"""Marks a directory as the demonstration's own, whose content it may replace."""

SHORTEST_S = 20
"""A shorter stream ends before Spark is warm, and its figures would say nothing."""

SLACK_S = 60.0
"""How long after its time the last result may come before the run is given up and judged as it is."""

READY_S = 120.0
SINK_DEADLINE_S = 15.0
RECENT_MS = 5_000
EXIT_INEXACT = 1
EXIT_INTERRUPTED = 130


def run_demo(out: Path, *, rate: int, seconds: int, kill: bool = True, console: Console) -> int:
    """Run the network-monitoring flow in ``out`` and kill a node half-way through the measured time.

    Returns 0 only if every result arrived exactly once and is right; timing is reported, not judged.
    """
    if rate < 1 or seconds < SHORTEST_S:
        raise UnbrokenError(f"rate must be at least 1 and seconds at least {SHORTEST_S}, to have something to show")
    out = out.resolve()
    _claim(out)
    state, results = out / "state", out / "results"
    schedule = DemoSchedule.of(seconds)
    environment = {
        "UNBROKEN_DEMO_RATE": str(rate),
        "UNBROKEN_DEMO_SECONDS": str(seconds),
        "UNBROKEN_DEMO_OUT": str(results),
    }

    def make() -> LocalCluster:
        return LocalCluster(FLOW_FILE, state, fresh=True)

    try:
        told: SimpleQueue[str] = SimpleQueue()
        with variables(environment), Harness(LocalDeployment(make), told.put) as harness:
            setting = _setting(harness.deployment.cluster, rate, seconds, schedule)
            with Screen(console) as screen:
                recording = _Drive(harness, told, screen, schedule, kill).run()
                screen.show(View("stopping"))
                harness.close()
    except KeyboardInterrupt:
        console.print("stopped before the end; nothing was checked")
        return EXIT_INTERRUPTED
    outcome = evaluate(setting, recording, state, results)
    write_files(out, outcome, recording)
    print_summary(console, outcome, out)
    return 0 if outcome.exact else EXIT_INEXACT


def choose_victim(states: Sequence[NodeStatus]) -> str:
    """The node whose loss hurts most: the leader of the ingress, with the first replica of ``stats``."""

    def harm(state: NodeStatus) -> tuple[bool, bool, int]:
        hosted = [replica.replica for replica in state.replicas]
        return ("stats.0#0" in hosted, state.leading, len(hosted))

    running = [state for state in states if state.running]
    if not running:
        raise UnbrokenError("no node answers; their logs are below state/logs")
    return max(running, key=harm).node


class Watch:
    """What the nodes of a demonstration said last. A node that is gone keeps what it said."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.states: dict[str, NodeStatus] = {}

    def note(self, states: Sequence[NodeStatus]) -> None:
        self.states |= {state.node: state for state in states if state.running}

    def delivered(self, sink: str) -> int:
        """Units that the nodes have put into a sink."""
        counts = [
            found.delivered
            for state in self.states.values()
            for stream, found in state.sinks.items()
            if stream.endswith(f">{sink}.0")
        ]
        return max(counts, default=0)

    def dead_shards(self, killed: str | None) -> list[str]:
        """Shards without any replica left: nothing more will come from them."""
        active: dict[str, bool] = {}
        for name, state in self.states.items():
            for replica in state.replicas:
                shard = replica.replica.rpartition("#")[0]
                alive = replica.state is not ReplicaState.STOPPED and name != killed
                active[shard] = active.get(shard, False) or alive
        everybody = len(self.states) == self._count
        return sorted(shard for shard, alive in active.items() if not alive) if everybody else []

    def rows_in(self) -> int:
        members = [state.ingress for state in self.states.values() if state.ingress is not None]
        return max((ingress.rows for ingress in members), default=0)


class _Drive:
    """One run from the start of the nodes to the last result."""

    def __init__(
        self,
        harness: Harness[LocalDeployment[LocalCluster]],
        told: SimpleQueue[str],
        screen: Screen,
        schedule: DemoSchedule,
        kill: bool,
    ) -> None:
        self._harness = harness
        self._cluster = harness.deployment.cluster
        self._told = told
        self._watch = Watch(self._cluster.count)
        self._screen = screen
        self._schedule = schedule
        self._kill = kill
        self._recording = Recording()
        self._rows_out = 0

    def run(self) -> Recording:
        started = time.monotonic()
        self._screen.say(f"starting {self._cluster.count} nodes")
        self._harness.start(READY_S, progress=lambda text: self._screen.show(View(text)))
        self._screen.say(f"all nodes run after {time.monotonic() - started:.0f} s; packets flow")
        with self._cluster.subscribe("live") as live:
            self._receive(live)
            self._settle()
            self._tell()
            self._recording.divergences = tuple(sorted(self._harness.divergences))
        return self._recording

    def _receive(self, live: Subscription) -> None:
        give_up = time.monotonic() + self._schedule.end_s + SLACK_S
        while True:
            # Asked before the result is taken: once it holds, everything that will come is in the queue.
            ended = live.ended
            result = live.next(0.1)
            self._watch.note(self._harness.states)
            if result is not None:
                self._take(result)
            elif ended:
                self._screen.say("the packets have ended and the last result is here")
                return
            elif time.monotonic() > give_up:
                self._screen.say(f"no end {SLACK_S:.0f} s after its time; judging what is there")
                return
            elif dead := self._watch.dead_shards(self._recording.killed):
                self._screen.say(f"no replica of {', '.join(dead)} is left; judging what is there")
                return
            if self._due():
                self._strike()
            self._tell()
            self._screen.show(self._view())

    def _tell(self) -> None:
        """Show what the harness has told, which it does from a thread of its own."""
        while not self._told.empty():
            self._screen.say(self._told.get())

    def _take(self, result: Result) -> None:
        header, recording = result.header, self._recording
        if recording.start_ms is None:
            recording.start_ms = float(header.cut_ms)
        recording.samples.append(ArrivalSample(header.pulse, result.table.num_rows, header.cut_ms, result.arrived_ms))
        recording.units.append(DeliveredUnit(header.number, header.pulse, result.table))
        self._rows_out += result.table.num_rows

    def _due(self) -> bool:
        start_ms = self._recording.start_ms
        waiting = self._kill and self._recording.killed is None and start_ms is not None
        return waiting and self._elapsed_s() >= self._schedule.kill_s

    def _strike(self) -> None:
        states = self._watch.states
        victim = choose_victim(list(states.values()))
        self._recording.killed = victim
        self._recording.kill_ms = self._harness.strike(Kill(victim)).at_ms
        self._screen.say(f"{victim} hosted {describe_node(states[victim])}")

    def _settle(self) -> None:
        """Wait until the files are complete too: they may follow the live results by a hedge delay."""
        samples = self._recording.samples
        last = samples[-1].pulse if samples else 0

        def complete() -> bool:
            self._watch.note(self._harness.look())
            return self._watch.delivered("table") >= last

        # What is missing in the files is found by comparing them.
        with contextlib.suppress(Overdue):
            until(complete, SINK_DEADLINE_S, "all results in the files")

    def _elapsed_s(self) -> float:
        start_ms = self._recording.start_ms
        return 0.0 if start_ms is None else time.time() - start_ms / 1000

    def _view(self) -> View:
        recording = self._recording
        now_ms = time.time() * 1000
        recent = [sample for sample in recording.samples[-200:] if sample.arrived_ms > now_ms - RECENT_MS]
        cuts = np.diff([sample.cut_ms for sample in recording.samples[-9:]])
        nodes = [
            (name, "killed" if name == recording.killed else describe_node(self._watch.states.get(name)))
            for name in self._cluster.nodes
        ]
        return View(
            headline=self._headline(),
            elapsed_s=self._elapsed_s(),
            total_s=self._schedule.end_s,
            rows_in=self._watch.rows_in(),
            rows_out=self._rows_out,
            pulse_ms=float(np.median(cuts)) if len(cuts) else None,
            latency_ms=float(np.median([sample.latency_ms for sample in recent])) if recent else None,
            nodes=tuple(nodes),
        )

    def _headline(self) -> str:
        if self._recording.killed is not None:
            return f"{self._recording.killed} is dead, results go on"
        if self._elapsed_s() < self._schedule.warm_s:
            return "warming up"
        return f"measuring, a node dies at {self._schedule.kill_s:.0f} s" if self._kill else "measuring"


def _setting(cluster: LocalCluster, rate: int, seconds: int, schedule: DemoSchedule) -> Setting:
    source = cluster.flow.sources[SOURCE].connector
    assert isinstance(source, Generator)
    return Setting(rate, seconds, cluster.count, cluster.flow.replicas, source.seed, schedule)


def _claim(out: Path) -> None:
    """Make ``out`` ready for a run; a directory that is not the demonstration's own is left alone."""
    if out.exists() and not out.is_dir():
        raise UnbrokenError(f"{out} is not a directory; name another one with --out")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).exists():
        raise UnbrokenError(f"{out} holds other files, which a run could replace; name another one with --out")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()
    if (out / "results").exists():
        shutil.rmtree(out / "results")
    for name in ("result.json", "timeline.csv", "masked-failure.png"):
        (out / name).unlink(missing_ok=True)
