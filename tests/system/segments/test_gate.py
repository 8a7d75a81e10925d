"""Several source instances in one query: every trigger takes a whole cut, also when it takes long to come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from kit.support import wait_until
from kit.two_nodes import TwoNodes
from unbroken import Client, Dataflow, Generator
from unbroken.node.ingress.service import IngressService
from unbroken.protocol.instructions import PollSources
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.transport.calls import GateAnswer, GateQuestion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNITS = 8
ROWS = 10
GATE_WAIT_MS = 100


class Held:
    """Pulses that are cut only after the test has let them go."""

    def __init__(self) -> None:
        self.let_go = threading.Semaphore(1)
        self.closed = threading.Event()

    def hold(self, cut: Callable[[IngressService, PollSources], None]) -> Callable[[IngressService, PollSources], None]:
        """``cut``, which asks the sources for the next pulse, when its turn has come."""

        def when_let_go(service: IngressService, step: PollSources) -> None:
            while not self.let_go.acquire(timeout=0.05):
                if self.closed.is_set():
                    break
            cut(service, step)

        return when_let_go


def made(start: int, stop: int, seed: int) -> pa.Table:
    index = np.arange(start, stop)
    return pa.table({"k": index % 5, "v": index})


def united(left: DataFrame, right: DataFrame) -> DataFrame:
    marked = [frame.select("v", F.lit(side).alias("side")) for frame, side in ((left, "l"), (right, "r"))]
    return marked[0].union(marked[1])


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    a, b = left.select("v"), right.select(F.col("v").alias("rv"))
    return a.join(b, F.expr("v = rv")).select("v", F.lit("j").alias("side"))


def used_twice(left: DataFrame, right: DataFrame) -> DataFrame:
    """The first input as two instances, and the second one."""
    even = left.where("v % 2 = 0").select("v", F.lit("even").alias("side"))
    odd = left.where("v % 2 = 1").select("v", F.lit("odd").alias("side"))
    return even.union(odd).union(right.select("v", F.lit("r").alias("side")))


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., DataFrame]
    expected: Callable[[int], list[str]]
    """The sides on which row v must be seen in its unit."""


CASES = [
    Case("union", united, lambda v: ["l", "r"]),
    Case("join", joined, lambda v: ["j"]),
    Case("twice", used_twice, lambda v: ["even" if v % 2 == 0 else "odd", "r"]),
]


def stream_of(case: Case) -> StreamId:
    return StreamId(ShardId(case.name, 0), ShardId(f"{case.name}-out", 0))


def rows_of(table: pa.Table) -> list[tuple[int, str]]:
    return sorted(zip(table.column("v").to_pylist(), table.column("side").to_pylist(), strict=True))


Units = dict[str, list[dict[str, list[tuple[int, str]]]]]


@pytest.fixture(scope="module")
def units(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Units:
    """Every unit of every case on both nodes: case name -> unit -> node -> rows."""
    held = Held()
    flow = Dataflow("gated", nodes=2, pulse_min="20ms", pulse_start="20ms", gate_wait=GATE_WAIT_MS)
    flow.source("left", Generator(made, schema="k long, v long", rate=None, batch_rows=ROWS, limit=ROWS * UNITS))
    flow.source("right", Generator(made, schema="k long, v long", rate=None, batch_rows=ROWS, limit=ROWS * UNITS))
    for case in CASES:
        flow.segment("left", "right", name=case.name)(case.function)
        flow.sink(f"{case.name}-out", case.name, Client())
    out: Units = {}
    cluster = TwoNodes(flow, spark, tmp_path_factory.mktemp("nodes"))
    trap = Trap(list(cluster.nodes.values()), held, 2 * len(CASES))
    with cluster, pytest.MonkeyPatch.context() as patch:
        patch.setattr(IngressService, "_poll_anyway", held.hold(IngressService._poll_anyway))
        try:
            for case in CASES:
                stream = stream_of(case)
                cluster.wait_for_unit(stream, UNITS, 180)
                out[case.name] = [
                    {name: rows_of(cluster.unit(name, stream, number)) for name in "ab"}
                    for number in range(1, UNITS + 1)
                ]
            for node in cluster.nodes.values():
                assert node.protocol is not None
                assert node.protocol.digest_exchange.divergences == []
                node.protocol.check()
            trap.check()
        finally:
            held.closed.set()
    return out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.timeout(900)
def test_no_cut_is_halved_when_the_gate_gives_up_waiting(case: Case, units: Units) -> None:
    for number, unit in enumerate(units[case.name], start=1):
        assert unit["a"] == unit["b"], f"replicas differ in unit {number}"
        span = range((number - 1) * ROWS, number * ROWS)
        assert unit["a"] == sorted((v, side) for v in span for side in case.expected(v)), f"half a cut in unit {number}"


class Trap:
    """Holds each "nothing yet" of the nodes' gates back until the cut is there, so that the next instance could get it.

    The cut that all wait for is let go when the gates of all replicas have given up, so that each of them has
    the chance to halve every cut but the first.
    """

    def __init__(self, nodes: list[Any], held: Held, replicas: int) -> None:
        self._held = held
        self._replicas = replicas
        self._lock = threading.Lock()
        self._given_up: dict[int, set[ReplicaId]] = {start: set() for start in range(1, UNITS)}
        for node in nodes:
            node.service.ask_gate = partial(self._ask, node, node.service.ask_gate)

    def check(self) -> None:
        """The trap was set for every replica at every cut."""
        assert {start: len(replicas) for start, replicas in self._given_up.items()} == dict.fromkeys(
            range(1, UNITS), self._replicas
        )

    def _ask(self, node: Any, ask: Callable[[GateQuestion], GateAnswer], question: GateQuestion) -> GateAnswer:
        answer, start, replica = ask(question), question.start, question.replica
        if answer.offset == start and start in self._given_up:
            self._give_up(replica, start)
            inboxes = node.protocol.replicas[replica].inboxes.values()
            wait_until(
                lambda: self._held.closed.is_set() or all(inbox.available > start for inbox in inboxes),
                45,
                f"cut {start + 1} of {replica}",
            )
        return answer

    def _give_up(self, replica: ReplicaId, start: int) -> None:
        with self._lock:
            before = len(self._given_up[start])
            self._given_up[start].add(replica)
            if before < len(self._given_up[start]) == self._replicas:
                self._held.let_go.release()
