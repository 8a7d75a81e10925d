"""`unbroken bench ordering`: a segment ordered by pulses against one ordered by a leader, with a node killed.

The measures are those of Rosinosky et al. (Active replication for latency-sensitive stream processing in Apache Flink):
latency with balanced and with very unbalanced inputs, bytes and processor time, and what the loss of the leader costs
beside that of a follower.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

from unbroken.client import Result
from unbroken.connectors.kafka.client import client
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import ShardId
from unbroken.protocol.values.notices import Reported
from unbroken_lab.demo.measure import ArrivalSample, DemoSchedule
from unbroken_lab.experiments.bars import draw_bars
from unbroken_lab.experiments.experiment import (
    Experiment,
    ReportClaim,
    ReportColumn,
    Row,
    Rows,
    Size,
    flat,
    parameter,
    parted,
)
from unbroken_lab.experiments.observation.figures import pulse
from unbroken_lab.experiments.observation.losses import NodeLoss
from unbroken_lab.experiments.observation.observed import END_SLACK_S, LOOK_S, START_S, Observed, Reader, Say, observed
from unbroken_lab.experiments.observation.usage import cpu_seconds, reading, spent
from unbroken_lab.experiments.ordering.figures import (
    elections,
    gaps,
    latencies,
    leader_at,
    newest_cuts,
    ordering_claims,
    terms,
    units_per_pulse,
    victim,
)
from unbroken_lab.experiments.parameters.ordered import WAYS
from unbroken_lab.experiments.recovery.strategy_figures import first_notice, missing_units, told_since

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KAFKA = "leader-kafka"
ORDERINGS = ("pulse", "leader-zookeeper", KAFKA)
INPUTS: Mapping[str, tuple[int, int]] = {"balanced": (2_500, 2_500), "unbalanced": (5, 5_000)}
"""Rows per second of the direct input and of the other one. Rare rows come on the short way: they are those that have
to wait for the many unless an order says otherwise."""

KILLS = ("leader", "follower")
MEASURED = ShardId("counted", 0)
"""The shard that is ordered in different ways, in ``ordered.py``."""

PULSE_MS = 750
SHORTEST_S = 10
QUICK_SECONDS = 20
SETTLE_S = 20.0
"""How much longer than planned the warm-up may take until results come within a few pulses."""

SETTLED_PULSES = 4
KAFKA_S = 3.0
"""How long a Kafka server may take to accept a connection; one that is there does at once."""

HERE = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class OrderingCase:
    """One run: who orders, what comes, and which of the two nodes is killed."""

    ordering: str
    inputs: str
    kill: str

    def __str__(self) -> str:
        return f"{self.ordering}, {self.inputs} inputs, {self.kill} killed"

    @property
    def led(self) -> bool:
        return self.ordering != "pulse"

    @property
    def rates(self) -> dict[str, int]:
        """Rows per second of each input."""
        return dict(zip(WAYS, INPUTS[self.inputs], strict=True))


@dataclass
class InputReader(Reader):
    """A reader that also tells the latencies of the two inputs apart: rows of one may come without the other's."""

    by_input: dict[str, list[ArrivalSample]] = field(default_factory=lambda: {way: [] for way in WAYS})

    def take(self, result: Result) -> None:
        super().take(result)
        for way, cut_ms in newest_cuts(result.table).items():
            sample = ArrivalSample(result.header.pulse, result.table.num_rows, cut_ms, result.arrived_ms)
            self.by_input[way].append(sample)


@dataclass(frozen=True)
class QuietPeriod:
    """What a flow needed in a time in which nothing happened, which began at ``since_ms``."""

    since_ms: float
    bytes: dict[str, int]
    rows: int
    cpu_cores: dict[str, float | None]

    @property
    def bytes_per_row(self) -> float | None:
        return round(self.bytes["total"] / self.rows, 1) if self.rows else None


@dataclass(frozen=True)
class Orderings(Experiment):
    """Every ordering with all inputs and kills, each with a cluster of its own."""

    name = "ordering"
    title = "Input ordered by pulses or by a leader, and a node that is killed"
    source = "unbroken bench ordering, with the measures of Rosinosky et al."
    columns: ClassVar = (
        ReportColumn("ordering", "ordering"),
        ReportColumn("inputs", "inputs"),
        ReportColumn("kill", "killed"),
        ReportColumn("latency_ms.before.p50", "p50", " ms", 0),
        ReportColumn("latency_ms.before.p99", "p99", " ms", 0),
        *(ReportColumn(f"latency_by_input_ms.{way}.before.p50", f"p50 {way}", " ms", 0) for way in WAYS),
        ReportColumn("bytes_per_row", "bytes per row", digits=0),
        ReportColumn("cpu_cores.nodes", "cores", digits=2),
        ReportColumn("latency_ms.at_kill.max", "largest latency", " ms", 0),
        ReportColumn("gap_ms.at_kill", "longest gap", " ms", 0),
        ReportColumn("election_s", "new leader", " s", 2),
    )
    caption = (
        "p50, p99, p50 of each input, bytes per row and cores of the nodes: before the kill; largest latency and "
        "longest gap: at the kill; new leader: from the kill on."
    )

    orderings: str = parameter(",".join(ORDERINGS), "Ways to order input.")
    inputs: str = parameter(",".join(INPUTS), "Rates of the two inputs.")
    kills: str = parameter(",".join(KILLS), "Which node is killed, one run each.")
    seconds: int = parameter(60, "Length of each run from its first result on.")
    kafka: str | None = parameter(None, "Servers for leader-kafka as HOST:PORT, which is left out without them.", str)

    def __post_init__(self) -> None:
        if self.seconds < SHORTEST_S:
            raise UnbrokenError(f"a run of {self.seconds} s is too short to be measured; give {SHORTEST_S} or more")
        for server in [] if self.kafka is None else self.kafka.split(","):
            host, _, port = server.rpartition(":")
            if not host or "/" in host or not port.isdigit():
                raise UnbrokenError(f"{server!r} is no Kafka server; write HOST:PORT, several with commas between them")
        if not self.runs():
            raise UnbrokenError(f"there is nothing to measure: {self.left_out()}")

    def runs(self) -> list[OrderingCase]:
        """All runs, those that are compared with each other one after the other."""
        wanted = parted(self.orderings, ORDERINGS, "ordering")
        measured = [ordering for ordering in wanted if ordering != KAFKA or self.kafka is not None]
        inputs, kills = parted(self.inputs, tuple(INPUTS), "kind of inputs"), parted(self.kills, KILLS, "kill")
        return [OrderingCase(ordering, each, kill) for each in inputs for kill in kills for ordering in measured]

    def left_out(self) -> str:
        """What was asked for and cannot be measured."""
        missing = KAFKA in parted(self.orderings, ORDERINGS, "ordering") and self.kafka is None
        return f"{KAFKA} is left out: give the servers that keep its orders with --kafka HOST:PORT" if missing else ""

    def order_log(self, case: OrderingCase) -> str:
        return f"kafka://{self.kafka}" if case.ordering == KAFKA else "zookeeper"

    def scale(self, size: Size) -> str:
        load = f"Four nodes on one machine, {self.seconds} s from the first result on, pulses of {PULSE_MS} ms"
        return "; ".join(filter(None, (load, self.left_out())))

    def cases(self, size: Size) -> Sequence[Row]:
        runs = [OrderingCase("leader-zookeeper", "unbalanced", "leader")] if size.quick else self.runs()
        if self.kafka is not None and any(case.ordering == KAFKA for case in runs):
            _check_kafka(self.kafka)
        return [{"ordering": case.ordering, "inputs": case.inputs, "kill": case.kill} for case in runs]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        run = OrderingCase(*(str(case[name]) for name in ("ordering", "inputs", "kill")))
        seconds = int(size.of(self.seconds, QUICK_SECONDS))
        figures = _measure(run, self.order_log(run), seconds, self.kafka, say)
        return [flat({"rates_per_s": run.rates, **figures})]

    def draw(self, rows: Rows, figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        columns = ("ordering", "inputs", "kill")
        draw_bars(
            upper, rows, columns, {"latency_ms.before.p50": "p50", "latency_ms.before.p99": "p99"}, "latency in ms"
        )
        draw_bars(lower, rows, columns, {"gap_ms.at_kill": ""}, "gap at the kill in ms")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        return ordering_claims(rows)


def _measure(case: OrderingCase, order_log: str, measured_s: int, kafka: str | None, say: Say) -> dict[str, Any]:
    plan, seconds = DemoSchedule.of(measured_s), int(measured_s + START_S)
    direct, stamped = INPUTS[case.inputs]
    load = {
        "ORDERING": "leader" if case.led else "pulse",
        "ORDER_LOG": order_log,
        "DIRECT_RATE": direct,
        "STAMPED_RATE": stamped,
        "SECONDS": seconds,
        "PULSE_MS": PULSE_MS,
    }
    with observed("ordered.py", load, InputReader) as run:
        reader = run.reader
        assert isinstance(reader, InputReader)
        run.settle(plan.warm_s, SETTLED_PULSES * PULSE_MS, plan.warm_s + SETTLE_S)
        quiet = _stay_quiet(run, plan.kill_s - plan.warm_s, _pids(run, kafka if case.ordering == KAFKA else None))
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
    reader: InputReader, quiet: QuietPeriod, kill: NodeLoss, history: Sequence[Reported], rows: int
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


def _stay_quiet(run: Observed, seconds: float, pids: Mapping[str, Sequence[int]]) -> QuietPeriod:
    """Let the flow run, and tell what it needed; ``pids`` are the processes whose time is counted, by what they are."""
    since_ms, first, began = time.time() * 1000, reading(run), time.monotonic()
    began_cpu = {name: cpu_seconds(found) for name, found in pids.items()}
    while time.monotonic() < began + seconds:
        if run.reader.ended():
            raise UnbrokenError("the flow ended before the kill; run it alone on the machine")
        time.sleep(LOOK_S)
    used = {name: cpu_seconds(found) - began_cpu[name] for name, found in pids.items()}
    passed, last = time.monotonic() - began, reading(run)
    cores = {name: round(used[name] / passed, 3) if found else None for name, found in pids.items()}
    return QuietPeriod(since_ms, spent(first, last), last.rows - first.rows, cores)


def _kill(run: Observed, case: OrderingCase) -> NodeLoss:
    """Kill the node with the replica that leads, or the one with the other; by pulses, with the first or the second."""
    hosts = list(run.layout().working_nodes_of(MEASURED))
    leader = leader_at(terms(run.history(), MEASURED), time.time() * 1000)
    if case.led and leader is None:
        raise UnbrokenError(f"no node has the lead of {MEASURED}")
    node, controller = victim(hosts, None if leader is None else leader.node, case.kill), run.controller()
    return NodeLoss(node, run.kill(node), node == controller)


def _pids(run: Observed, kafka: str | None) -> dict[str, list[int]]:
    """The processes of the nodes and of the servers beside them; none for a server that is not used or elsewhere."""
    zookeeper = run.cluster.zookeeper.pid
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
