"""Runs the demonstration: starts the flow, kills a node under it, and checks every result."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from unbroken.client import Result, Subscription
from unbroken.connectors.generator import Generator
from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken.local.launcher import LocalCluster
from unbroken_lab.demo.measure import Sample, Schedule
from unbroken_lab.demo.reference import DeliveredUnit
from unbroken_lab.demo.report import SOURCE, Recording, Setting, evaluate, print_summary, write_files
from unbroken_lab.demo.screen import Screen, View, describe_node

FLOW_FILE = Path(__file__).with_name("netmon.py")
MARKER = ".unbroken-demo"
"""Marks a directory as the demonstration's own, whose content it may replace."""

SHORTEST_S = 20
"""A shorter stream ends before Spark is warm, and its figures would say nothing."""

STATUS_S = 1.5
"""Nodes are asked this often how they are; each time costs them a few milliseconds that others could use."""

SLACK_S = 60.0
"""How long after its time the last result may come before the run is given up and judged as it is."""

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
    schedule = Schedule.of(seconds)
    environment = {
        "UNBROKEN_DEMO_RATE": str(rate),
        "UNBROKEN_DEMO_SECONDS": str(seconds),
        "UNBROKEN_DEMO_OUT": str(results),
    }
    try:
        with variables(environment), LocalCluster(FLOW_FILE, state, fresh=True) as cluster:
            setting = _setting(cluster, rate, seconds, schedule)
            with Screen(console) as screen:
                recording = _Drive(cluster, screen, schedule, kill).run()
                screen.show(View("stopping"))
                cluster.stop()
    except KeyboardInterrupt:
        console.print("stopped before the end; nothing was checked")
        return EXIT_INTERRUPTED
    outcome = evaluate(setting, recording, state, results)
    write_files(out, outcome, recording)
    print_summary(console, outcome, out)
    return 0 if outcome.exact else EXIT_INEXACT


def choose_victim(states: list[dict[str, Any]]) -> str:
    """The node whose loss hurts most: the leader of the ingress, with the first replica of ``stats``."""

    def harm(state: dict[str, Any]) -> tuple[bool, bool, int]:
        hosted = [replica["replica"] for replica in state.get("replicas", [])]
        leads = bool(state.get("ingress", {}).get("leading"))
        return ("stats.0#0" in hosted, leads, len(hosted))

    running = [state for state in states if state.get("state") == "running"]
    if not running:
        raise UnbrokenError("no node answers; their logs are below state/logs")
    return str(max(running, key=harm)["node"])


class _Watcher:
    """Asks the nodes how they are, on a thread of its own, so that a silent node delays nothing."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._told: set[tuple[str, int, str]] = set()
        self._thread = threading.Thread(target=self._work, name="demo-watcher", daemon=True)
        self.divergences: set[str] = set()
        self.states: dict[str, dict[str, Any]] = {}
        self.sentences: list[str] = []

    def __enter__(self) -> _Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join(timeout=10)

    def look(self) -> None:
        """Ask once. A node that is gone keeps what it said last."""
        with self._lock:
            try:
                self._cluster.tend()
                self._note(self._cluster.status())
            except Exception as error:
                # What nodes say is mostly for show here: results are what the run is judged by.
                self.sentences.append(f"the nodes could not be asked: {error}")

    def _note(self, states: list[dict[str, Any]]) -> None:
        for state in states:
            if state.get("state") != "running":
                continue
            self.states[state["node"]] = state
            self.divergences |= set(state.get("divergences", []))
            for entry in state.get("story", []):
                key = (state["node"], entry["time_ms"], entry["sentence"])
                if key not in self._told:
                    self._told.add(key)
                    self.sentences.append(f"{state['node']}: {entry['sentence']}")

    def delivered(self, sink: str) -> int:
        """Units that the nodes have put into a sink."""
        counts = [
            value["delivered"]
            for state in list(self.states.values())
            for stream, value in state.get("sinks", {}).items()
            if stream.endswith(f">{sink}.0")
        ]
        return max(counts, default=0)

    def dead_shards(self, killed: str | None) -> list[str]:
        """Shards without any replica left: nothing more will come from them."""
        active: dict[str, bool] = {}
        for name, state in list(self.states.items()):
            for replica in state.get("replicas", []):
                shard = str(replica["replica"]).rpartition("#")[0]
                alive = replica["state"] != "stopped" and name != killed
                active[shard] = active.get(shard, False) or alive
        everybody = len(self.states) == self._cluster.count
        return sorted(shard for shard, alive in active.items() if not alive) if everybody else []

    def rows_in(self) -> int:
        ingresses = [state["ingress"] for state in list(self.states.values()) if state.get("ingress")]
        return max((int(ingress["rows"]) for ingress in ingresses), default=0)

    def _work(self) -> None:
        while not self._closed.wait(STATUS_S):
            self.look()


class _Drive:
    """One run from the start of the nodes to the last result."""

    def __init__(self, cluster: LocalCluster, screen: Screen, schedule: Schedule, kill: bool) -> None:
        self._cluster = cluster
        self._screen = screen
        self._schedule = schedule
        self._kill = kill
        self._recording = Recording()
        self._rows_out = 0

    def run(self) -> Recording:
        started = time.monotonic()
        self._screen.say(f"starting {self._cluster.count} nodes")
        self._cluster.start()
        self._cluster.wait_ready(progress=lambda text: self._screen.show(View(text)))
        self._screen.say(f"all nodes run after {time.monotonic() - started:.0f} s; packets flow")
        with self._cluster.subscribe("live") as live, _Watcher(self._cluster) as watcher:
            self._receive(live, watcher)
            self._settle(watcher)
            self._tell(watcher)
            self._recording.divergences = tuple(sorted(watcher.divergences))
        return self._recording

    def _receive(self, live: Subscription, watcher: _Watcher) -> None:
        give_up = time.monotonic() + self._schedule.end_s + SLACK_S
        while True:
            # Asked before the result is taken: once it holds, everything that will come is in the queue.
            ended = live.ended
            result = live.next(0.1)
            if result is not None:
                self._take(result)
            elif ended:
                self._screen.say("the packets have ended and the last result is here")
                return
            elif time.monotonic() > give_up:
                self._screen.say(f"no end {SLACK_S:.0f} s after its time; judging what is there")
                return
            elif dead := watcher.dead_shards(self._recording.killed):
                self._screen.say(f"no replica of {', '.join(dead)} is left; judging what is there")
                return
            if self._due():
                self._strike(watcher)
            self._tell(watcher)
            self._screen.show(self._view(watcher))

    def _tell(self, watcher: _Watcher) -> None:
        while watcher.sentences:
            self._screen.say(watcher.sentences.pop(0))

    def _take(self, result: Result) -> None:
        header, recording = result.header, self._recording
        if recording.start_ms is None:
            recording.start_ms = float(header.cut_ms)
        recording.samples.append(Sample(header.pulse, result.table.num_rows, header.cut_ms, result.arrived_ms))
        recording.units.append(DeliveredUnit(header.number, header.pulse, result.table))
        self._rows_out += result.table.num_rows

    def _due(self) -> bool:
        start_ms = self._recording.start_ms
        waiting = self._kill and self._recording.killed is None and start_ms is not None
        return waiting and self._elapsed_s() >= self._schedule.kill_s

    def _strike(self, watcher: _Watcher) -> None:
        victim = choose_victim(list(watcher.states.values()))
        self._recording.killed = victim
        self._recording.kill_ms = time.time() * 1000
        self._cluster.nodes[victim].kill9()
        self._screen.say(f"kill -9 of {victim}, which hosted {describe_node(watcher.states[victim])}")

    def _settle(self, watcher: _Watcher) -> None:
        """Wait until the files are complete too: they may follow the live results by a hedge delay."""
        samples = self._recording.samples
        last = samples[-1].pulse if samples else 0
        deadline = time.monotonic() + SINK_DEADLINE_S
        while True:
            watcher.look()
            if watcher.delivered("table") >= last or time.monotonic() > deadline:
                return
            time.sleep(0.2)

    def _elapsed_s(self) -> float:
        start_ms = self._recording.start_ms
        return 0.0 if start_ms is None else time.time() - start_ms / 1000

    def _view(self, watcher: _Watcher) -> View:
        recording = self._recording
        now_ms = time.time() * 1000
        recent = [sample for sample in recording.samples[-200:] if sample.arrived_ms > now_ms - RECENT_MS]
        cuts = np.diff([sample.cut_ms for sample in recording.samples[-9:]])
        nodes = [
            (name, "killed" if name == recording.killed else describe_node(watcher.states.get(name, {})))
            for name in self._cluster.nodes
        ]
        return View(
            headline=self._headline(),
            elapsed_s=self._elapsed_s(),
            total_s=self._schedule.end_s,
            rows_in=watcher.rows_in(),
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


def _setting(cluster: LocalCluster, rate: int, seconds: int, schedule: Schedule) -> Setting:
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
