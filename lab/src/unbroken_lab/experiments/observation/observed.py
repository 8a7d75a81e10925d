"""A flow that is run to be measured while a node of it is killed: what its results and its nodes tell meanwhile.

The results of such a flow are rows ``k, n``: the number ``n`` of input rows of key ``k`` so far. So every row of the
input that is lost or counted twice is missing or too many in the last count of its key.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unbroken.client import Result, Subscription
from unbroken.flow.environment import variables
from unbroken.local.launcher import LocalCluster
from unbroken.observe.notices import text_of
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.notices import Reported
from unbroken.testing.faults import Fault, Kill
from unbroken.testing.harness.cluster import ExposedCluster
from unbroken.testing.harness.harness import Harness
from unbroken.testing.harness.local import LocalDeployment
from unbroken.testing.harness.waiting import until
from unbroken.testing.injection.executor import Struck
from unbroken_lab.demo.measure import ArrivalSample
from unbroken_lab.experiments.flows import FLOWS

if TYPE_CHECKING:
    import pyarrow as pa

Say = Callable[[str], None]

SINK = "live"
READY_S = 180.0
FIRST_RESULT_S = 90.0
START_S = 20.0
"""Longest usual time from the first cut to the first result, by which the stream of rows has to be longer."""

END_SLACK_S = 120.0
"""How long after its time the last result may come."""

LOOK_S = 0.02


@dataclass
class Reader:
    """Takes the results of a flow on a thread of its own: when each came from which shard, and the rows per key."""

    subscription: Subscription
    by_shard: dict[int, list[ArrivalSample]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[Hashable] = field(default_factory=Counter)
    units: Counter[tuple[int, int]] = field(default_factory=Counter)
    backwards: int = 0
    last_latency_ms: float = float("inf")
    failure: Exception | None = None

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def samples(self) -> list[ArrivalSample]:
        return [sample for samples in list(self.by_shard.values()) for sample in list(samples)]

    @property
    def duplicated(self) -> int:
        """Units that came twice, and counts that did not grow."""
        return sum(count - 1 for count in self.units.values()) + self.backwards

    def lost(self, expected_rows: int) -> int:
        """Rows that are in no count; negative if there are too many."""
        return expected_rows - sum(self.counts.values())

    def ended(self) -> bool:
        """Whether the last result has been taken; raises what kept it from coming."""
        if self.failure is not None:
            raise self.failure
        return not self._thread.is_alive()

    def take(self, result: Result) -> None:
        header, shard = result.header, result.header.stream.producer.index
        sample = ArrivalSample(header.pulse, result.table.num_rows, header.cut_ms, result.arrived_ms)
        self.by_shard[shard].append(sample)
        self.last_latency_ms = sample.latency_ms
        self.units[shard, header.number] += 1
        for key, count in self.counted(result.table):
            if count <= self.counts[key]:
                self.backwards += 1
            self.counts[key] = count

    def counted(self, table: pa.Table) -> Iterable[tuple[Hashable, int]]:
        """The key of each result, and how often it was counted so far."""
        return zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True)

    def _run(self) -> None:
        try:
            for result in self.subscription:
                self.take(result)
        except Exception as error:
            self.failure = error


@dataclass(frozen=True)
class Observed:
    """A flow that runs, and the reader of its results; the reading has begun."""

    harness: Harness[LocalDeployment[ExposedCluster]]
    reader: Reader

    @property
    def cluster(self) -> LocalCluster:
        return self.harness.deployment.cluster

    def strike(self, fault: Fault) -> Struck:
        """Do a fault to it, now."""
        return self.harness.strike(fault)

    def kill(self, node: str) -> float:
        """``kill -9`` a node; when, in ms since the epoch."""
        return self.strike(Kill(node)).at_ms

    def restart(self, node: str) -> None:
        """Restart a killed node on what its directory holds, as soon as nothing of it is left."""
        self.harness.start_again(node)

    def settle(self, warm_s: float, latency_ms: float, longest_s: float) -> None:
        """Let the flow run for ``warm_s``, and then until a result is not later than ``latency_ms``.

        On a machine that is too slow for that it is gone on with after ``longest_s`` in all.
        """
        began = time.monotonic()
        while (passed := time.monotonic() - began) < longest_s and not self.reader.ended():
            if passed >= warm_s and self.reader.last_latency_ms <= latency_ms:
                return
            time.sleep(LOOK_S)

    def leader(self) -> str:
        """The node that is missed most: it leads the ingress."""
        return next(state.node for state in self.cluster.status() if state.leading)

    def layout(self) -> Layout:
        return self.harness.layout

    def controller(self) -> str | None:
        """The node that decides about the layout."""
        return self.harness.controller()

    def history(self) -> list[Reported]:
        """What was told when (``time_ms``) by whom (``node``), oldest first."""
        return self.harness.history()

    def story(self) -> list[str]:
        """The flow's history, in words."""
        return [text_of(reported.notice) for reported in self.history()]

    def state_moved(self) -> int:
        """Bytes of state that the nodes that are left have taken over from others."""
        return sum(state.traffic.get("state", 0) for state in self.cluster.status())

    def await_redundancy(self, without: str, deadline_s: float) -> float:
        """When the layout says that every shard has its replicas again on other nodes; ms since the epoch."""

        def restored() -> bool:
            layout = self.harness.layout
            return not layout.hosted(without) and not layout.short_since and not layout.joining

        wait_until(restored, deadline_s, "redundancy to come back")
        return time.time() * 1000

    def await_end(self, deadline_s: float) -> None:
        wait_until(self.reader.ended, deadline_s, "the last result")


@contextmanager
def observed(
    flow_file: str,
    load: Mapping[str, Any],
    read: Callable[[Subscription], Reader] = Reader,
    *,
    cuttable: bool = False,
) -> Iterator[Observed]:
    """Run one of the flows with ``load`` in its environment (UNBROKEN_BENCH_...); it has given its first result.

    A node that is killed stays dead. ``read`` takes the results. ``cuttable`` says that links are to be cut, which
    costs a way through proxies.
    """
    environment = {f"UNBROKEN_BENCH_{name}": str(value) for name, value in load.items()}
    with variables(environment), tempfile.TemporaryDirectory() as directory:
        path, state = FLOWS / flow_file, Path(directory) / "state"
        deployment = LocalDeployment(
            lambda: ExposedCluster(path, state, cuttable=cuttable, supervise=False), tended=False
        )
        # Nodes are not asked how they are: that would be measured, too.
        with Harness(deployment, ask_s=None) as one:
            one.start(READY_S)
            with deployment.subscribe(SINK) as results:
                reader = read(results)
                reader.start()
                wait_until(lambda: bool(reader.by_shard) or reader.ended(), FIRST_RESULT_S, "the first result")
                yield Observed(one, reader)


def wait_until(done: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Wait for what a machine with nothing else to do gives in time."""
    until(done, deadline_s, f"{what}; run it alone on the machine", LOOK_S)
