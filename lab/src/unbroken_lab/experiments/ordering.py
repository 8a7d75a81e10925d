"""`unbroken bench ordering`: a segment ordered by pulses against one ordered by a leader, with a node killed.

The measures are those of Rosinosky et al. (Active replication for latency-sensitive stream processing in Apache Flink):
latency with balanced and with very unbalanced inputs, bytes and processor time, and what the loss of the leader costs
beside that of a follower.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
from rich.table import Table

from unbroken.client import Result
from unbroken.connectors.kafka.client import client
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import ShardId
from unbroken_lab.demo.measure import Sample, Schedule
from unbroken_lab.experiments.delivery import reading
from unbroken_lab.experiments.figures import pulse
from unbroken_lab.experiments.observed import END_SLACK_S, LOOK_S, START_S, Observed, Reader, Say, observed
from unbroken_lab.experiments.ordering_figures import (
    WAYS,
    elections,
    gaps,
    latencies,
    leader_at,
    newest_cuts,
    ratios,
    terms,
    units_per_pulse,
    victim,
)
from unbroken_lab.experiments.strategies import cpu_seconds
from unbroken_lab.experiments.strategy_figures import first_notice, missing_units, spent, told_since

KAFKA = "leader-kafka"
ORDERINGS = ("pulse", "leader-zookeeper", KAFKA)
INPUTS: Mapping[str, tuple[int, int]] = {"balanced": (2_500, 2_500), "unbalanced": (5, 5_000)}
"""Rows per second of the direct input and of the other one. Rare rows come on the short way: they are those that have
to wait for the many if nobody says otherwise."""

KILLS = ("leader", "follower")
MEASURED = ShardId("counted", 0)
"""The shard that is ordered in different ways, in ``ordered.py``."""

PULSE_MS = 750
SHORTEST_S = 10
SETTLE_S = 20.0
"""How much longer than planned the warm-up may take until results come within a few pulses."""

SETTLED_PULSES = 4
KAFKA_S = 3.0
"""How long a Kafka server may take to accept a connection; one that is there does at once."""

HERE = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Case:
    """One run: who orders, what comes, and which of the two nodes is killed."""

    ordering: str
    inputs: str
    kill: str

    def __str__(self) -> str:
        return f"{self.ordering}, {self.inputs} inputs, {self.kill} killed"

    @property
    def led(self) -> bool:
        return self.ordering != "pulse"

    def to_json(self) -> dict[str, Any]:
        direct, stamped = INPUTS[self.inputs]
        rates = dict(zip(WAYS, (direct, stamped), strict=True))
        return {"ordering": self.ordering, "inputs": self.inputs, "kill": self.kill, "rates_per_s": rates}


@dataclass(frozen=True)
class OrderingSettings:
    """What to measure; ``kafka`` are the servers that keep the orders of one of the orderings."""

    orderings: Sequence[str] = ORDERINGS
    inputs: Sequence[str] = tuple(INPUTS)
    kills: Sequence[str] = KILLS
    seconds: int = 60
    kafka: str | None = None

    @classmethod
    def parse(cls, orderings: str, inputs: str, kills: str, seconds: int, kafka: str | None) -> OrderingSettings:
        """Settings as they are written on the command line."""
        if seconds < SHORTEST_S:
            raise UnbrokenError(f"a run of {seconds} s is too short to be measured; give {SHORTEST_S} or more")
        for server in [] if kafka is None else kafka.split(","):
            host, _, port = server.rpartition(":")
            if not host or "/" in host or not port.isdigit():
                raise UnbrokenError(f"{server!r} is no Kafka server; write HOST:PORT, several with commas between them")
        found = cls(
            _chosen(orderings, ORDERINGS, "ordering"),
            _chosen(inputs, tuple(INPUTS), "kind of inputs"),
            _chosen(kills, KILLS, "kill"),
            seconds,
            kafka,
        )
        if not found.cases():
            raise UnbrokenError(f"there is nothing to measure: {'; '.join(found.left_out())}")
        return found

    def cases(self) -> list[Case]:
        """All runs, those that are compared with each other one after the other."""
        measured = [ordering for ordering in self.orderings if ordering != KAFKA or self.kafka is not None]
        return [Case(ordering, inputs, kill) for inputs in self.inputs for kill in self.kills for ordering in measured]

    def left_out(self) -> list[str]:
        """What was asked for and cannot be measured."""
        missing = KAFKA in self.orderings and self.kafka is None
        return [f"{KAFKA} is left out: give the servers that keep its orders with --kafka HOST:PORT"] if missing else []

    def order_log(self, case: Case) -> str:
        return f"kafka://{self.kafka}" if case.ordering == KAFKA else "zookeeper"


@dataclass
class InputReader(Reader):
    """A reader that also tells the latencies of the two inputs apart: rows of one may come without the other's."""

    by_input: dict[str, list[Sample]] = field(default_factory=lambda: {way: [] for way in WAYS})

    def take(self, result: Result) -> None:
        super().take(result)
        for way, cut_ms in newest_cuts(result.table).items():
            sample = Sample(result.header.pulse, result.table.num_rows, cut_ms, result.arrived_ms)
            self.by_input[way].append(sample)


@dataclass(frozen=True)
class Quiet:
    """What a flow needed in a time in which nothing happened, which began at ``since_ms``."""

    since_ms: float
    bytes: dict[str, int]
    rows: int
    cpu_cores: dict[str, float | None]

    @property
    def bytes_per_row(self) -> float | None:
        return round(self.bytes["total"] / self.rows, 1) if self.rows else None


@dataclass(frozen=True)
class Kill:
    """What was killed when, and whether it was the node that decides about the layout."""

    node: str
    at_ms: float
    controlled: bool


def run_ordering(settings: OrderingSettings, say: Say) -> dict[str, Any]:
    """Every ordering with all inputs and kills, each with a cluster of its own."""
    notes, cases, runs = settings.left_out(), settings.cases(), []
    for note in notes:
        say(note)
    if settings.kafka is not None and any(case.ordering == KAFKA for case in cases):
        _check_kafka(settings.kafka)
    for case in cases:
        try:
            runs.append({**case.to_json(), **_measure(case, settings, say)})
        except UnbrokenError as error:
            # The other runs take a while: what is there of them is worth having.
            say(f"{case}: failed: {error}")
            runs.append({**case.to_json(), "error": str(error)})
    return {
        "seconds": settings.seconds,
        "pulse_ms": PULSE_MS,
        "cores": os.cpu_count(),
        "notes": notes,
        "runs": runs,
        "ratios": ratios(runs),
    }


def ordering_table(result: dict[str, Any]) -> Table:
    """One line for each run."""
    table = Table(title="Who orders the input of a segment, and what that costs")
    columns = ("p50", "p99", *WAYS, "bytes", "cores", "largest", "gap", "new leader")
    for column in ("ordering", "inputs", "killed", *columns):
        table.add_column(column, justify="right" if column in columns else "left")
    for run in result["runs"]:
        case = (run["ordering"], run["inputs"], run["kill"])
        if "error" in run:
            table.add_row(*case, "failed")
            continue
        latency, by_input = run["latency_ms"], run["latency_by_input_ms"]
        table.add_row(
            *case,
            _shown(latency["before"]["p50"], " ms", 0),
            _shown(latency["before"]["p99"], " ms", 0),
            *(_shown(by_input[way]["before"]["p50"], " ms", 0) for way in WAYS),
            _shown(run["bytes_per_row"], "", 0),
            _shown(run["cpu_cores"]["nodes"], ""),
            _shown(latency["at_kill"]["max"], " ms", 0),
            _shown(run["gap_ms"]["at_kill"], " ms", 0),
            _shown(run["election_s"], " s"),
        )
    table.caption = (
        "p50, p99, p50 of each input, bytes per row and cores of the nodes: before the kill; largest latency and "
        "longest gap: at the kill; new leader: from the kill on"
    )
    return table


def _measure(case: Case, settings: OrderingSettings, say: Say) -> dict[str, Any]:
    say(f"{case}: starting four nodes")
    plan, seconds = Schedule.of(settings.seconds), int(settings.seconds + START_S)
    direct, stamped = INPUTS[case.inputs]
    load = {
        "ORDERING": "leader" if case.led else "pulse",
        "ORDER_LOG": settings.order_log(case),
        "DIRECT_RATE": direct,
        "STAMPED_RATE": stamped,
        "SECONDS": seconds,
        "PULSE_MS": PULSE_MS,
    }
    with observed("ordered.py", load, InputReader) as run:
        reader = run.reader
        assert isinstance(reader, InputReader)
        run.settle(plan.warm_s, SETTLED_PULSES * PULSE_MS, plan.warm_s + SETTLE_S)
        quiet = _stay_quiet(run, plan.kill_s - plan.warm_s, _pids(run, case, settings))
        kill = _kill(run, case)
        say(f"{case}: {kill.node} killed")
        try:
            run.await_end(seconds + END_SLACK_S)
        except UnbrokenError as error:
            raise UnbrokenError(
                f"{error}. Since the kill: {'; '.join(told_since(run.history(), kill.at_ms))}"
            ) from error
        history = run.history()
    figures = _figures(reader, quiet, kill, history, (direct + stamped) * seconds)
    latency, gap_ms = figures["latency_ms"], figures["gap_ms"]
    say(f"{case}: p50 {latency['before']['p50']} ms, at the kill {gap_ms['at_kill']} ms without results")
    return figures


def _figures(
    reader: InputReader, quiet: Quiet, kill: Kill, history: Sequence[dict[str, Any]], rows: int
) -> dict[str, Any]:
    samples, times = reader.samples, (quiet.since_ms, kill.at_ms)
    detected_ms = first_notice(history, kill.at_ms, (kill.node,))
    before = [sample for sample in samples if quiet.since_ms <= sample.arrived_ms < kill.at_ms]
    return {
        "latency_ms": latencies(samples, *times),
        "latency_by_input_ms": {way: latencies(found, *times) for way, found in reader.by_input.items()},
        "gap_ms": gaps(samples, *times),
        "pulse_ms": pulse(before),
        "units_per_pulse": units_per_pulse(samples, *times),
        "bytes": quiet.bytes,
        "bytes_per_row": quiet.bytes_per_row,
        "rows": quiet.rows,
        "cpu_cores": quiet.cpu_cores,
        "killed": kill.node,
        "controlled": kill.controlled,
        "detection_s": None if detected_ms is None else round((detected_ms - kill.at_ms) / 1000, 3),
        **elections(terms(history, MEASURED), kill.at_ms, kill.node),
        "lost": reader.lost(rows),
        "duplicated": reader.duplicated,
        "missing_units": missing_units([number for _, number in reader.units]),
        "story": told_since(history, kill.at_ms),
    }


def _stay_quiet(run: Observed, seconds: float, pids: Mapping[str, Sequence[int]]) -> Quiet:
    """Let the flow run, and tell what it needed; ``pids`` are the processes whose time is counted, by what they are."""
    since_ms, first, began = time.time() * 1000, reading(run), time.monotonic()
    began_cpu = {name: cpu_seconds(found) for name, found in pids.items()}
    while time.monotonic() < began + seconds:
        if run.reader.ended():
            raise UnbrokenError("the flow ended before the kill; the machine may be too busy: try again alone")
        time.sleep(LOOK_S)
    used = {name: cpu_seconds(found) - began_cpu[name] for name, found in pids.items()}
    passed, last = time.monotonic() - began, reading(run)
    cores = {name: round(used[name] / passed, 3) if found else None for name, found in pids.items()}
    return Quiet(since_ms, spent(first, last), last.rows - first.rows, cores)


def _kill(run: Observed, case: Case) -> Kill:
    """Kill the node with the replica that leads, or the one with the other; by pulses, with the first or the second."""
    hosts = list(run.layout().working_nodes_of(MEASURED))
    leader = leader_at(terms(run.history(), MEASURED), time.time() * 1000)
    if case.led and leader is None:
        raise UnbrokenError(f"nobody has the lead of {MEASURED}")
    node, controller = victim(hosts, None if leader is None else leader.node, case.kill), run.controller()
    return Kill(node, run.kill(node), node == controller)


def _pids(run: Observed, case: Case, settings: OrderingSettings) -> dict[str, list[int]]:
    """The processes of the nodes and of the servers beside them; none for a server that is not used or elsewhere."""
    zookeeper = run.cluster.zookeeper.pid
    kafka = settings.kafka if case.ordering == KAFKA else None
    return {
        "nodes": [process.pid for process in run.cluster.nodes.values()],
        "zookeeper": [] if zookeeper is None else [zookeeper],
        "kafka": [] if kafka is None else _listeners(kafka),
    }


def _listeners(servers: str) -> list[int]:
    """Processes of this machine and user that serve at these addresses."""
    places = [server.rpartition(":") for server in servers.split(",")]
    ports = {int(port) for host, _, port in places if host in HERE}
    found: set[int] = set()
    with contextlib.suppress(psutil.AccessDenied):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port in ports and connection.pid:
                found.add(connection.pid)
    return sorted(found)


def _check_kafka(servers: str) -> None:
    """Refuse servers that are not there before the first run: nodes would wait for them until the deadline."""
    client()
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), KAFKA_S):
            return
    raise UnbrokenError(f"no Kafka answers at {servers}; start it, or leave --kafka out")


def _chosen(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    """Names that are written with commas between them, each once."""
    names = [name.strip() for name in text.split(",")]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise UnbrokenError(f"there is no {what} {', '.join(unknown)}; use some of: {','.join(known)}")
    return tuple(dict.fromkeys(names))


def _shown(value: float | None, unit: str, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"
