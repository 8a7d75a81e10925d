"""Nodes are killed for good under segments that are kept available in different ways: every result is as without it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kit.faults import strike
from kit.support import wait_until
from system.strategies.guarded_flow import JITTER_MS, KEYS, STEP_MS, WINDOW_S
from unbroken.coordination.documents import connect, read_history, read_layout
from unbroken.flow.environment import variables
from unbroken.local.launcher import LocalCluster
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.placement import NodeSuspected, PlaceReturned, TakenOver
from unbroken.protocol.values.notices.replicas import StandbyPromoted
from unbroken.testing.faults import Kill

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SEGMENTS = ("passed", "rebuilt", "copied", "followed")
DEADLINE_S = 300.0
FURTHER = 4
"""Units of every segment that show that it goes on."""


class Guarded:
    """The running flow, its layout, its history, and what it has delivered."""

    def __init__(self, directory: Path) -> None:
        self.results = directory / "results"
        self.cluster = LocalCluster(Path(__file__).with_name("guarded_flow.py"), directory / "state")

    def layout(self) -> Layout:
        client = connect(self.cluster.zookeeper.address, 10, token=self.cluster.token)
        try:
            layout = read_layout(client, "guarded")
        finally:
            client.stop()
            client.close()
        assert layout is not None
        return layout

    def notices(self) -> list[Notice]:
        client = connect(self.cluster.zookeeper.address, 10, token=self.cluster.token)
        try:
            return [reported.notice for reported in read_history(client, "guarded")]
        finally:
            client.stop()
            client.close()

    def whole(self) -> bool:
        layout = self.layout()
        return not layout.short_since and not layout.joining and not layout.homes

    def node_of(self, segment: str) -> NodeId:
        """Where the replica is that the others stand by for."""
        return next(iter(self.layout().working_nodes_of(ShardId(segment, 0))))

    def files(self, segment: str) -> dict[tuple[int, int], Path]:
        """The files of a segment by unit and shard; a unit without rows leaves none."""
        pattern = re.compile(rf"{segment}\.(\d+)-to-{segment}-files\.0-(\d+)\.parquet")
        found = [(pattern.fullmatch(path.name), path) for path in (self.results / segment).glob("*.parquet")]
        return {(int(match[2]), int(match[1])): path for match, path in found if match is not None}

    def units(self, segment: str) -> dict[int, list[dict[str, Any]]]:
        """The rows of each unit, of all shards."""
        out: dict[int, list[dict[str, Any]]] = {}
        for (number, _), path in sorted(self.files(segment).items()):
            out.setdefault(number, []).extend(pq.read_table(path).to_pylist())
        return out

    def last(self, segment: str) -> int:
        """The last unit that all shards have delivered."""
        newest: dict[int, int] = {}
        for number, shard in self.files(segment):
            newest[shard] = max(number, newest.get(shard, 0))
        return min(newest.get(shard, 0) for shard in range(self.cluster.topology.segments[segment]))

    def await_results(self) -> None:
        wanted = {segment: self.last(segment) + FURTHER for segment in SEGMENTS}
        for segment, number in wanted.items():
            wait_until(lambda: self.last(segment) >= number, DEADLINE_S, f"unit {number} of {segment}", 0.1)  # noqa: B023

    def lose(self, node: NodeId) -> None:
        """kill -9, for good: everything has to go on elsewhere."""
        began = time.monotonic()
        before = self.layout()
        gone = {str(replica) for replica in before.hosted(node)}
        strike(self.cluster, Kill(node))
        self.await_results()
        print(f"{node} lost with {sorted(gone)}; results of all segments again after {time.monotonic() - began:.1f} s")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    with variables({"UNBROKEN_TEST_OUT": str(tmp_path / "results")}):
        flow = Guarded(tmp_path)
        with flow.cluster:
            flow.cluster.start()
            yield flow


def test_results_are_exact_when_a_node_is_lost(guarded: Guarded) -> None:
    """It has the primary of a passive standby and a segment whose state is built again."""
    guarded.await_results()
    node = guarded.node_of("copied")
    assert node == guarded.node_of("rebuilt")
    guarded.lose(node)
    notices = guarded.notices()
    taken = [each for each in notices if isinstance(each, TakenOver)]
    assert any(each.from_copy for each in taken)
    assert any(not each.from_copy and each.lost[0].shard.part == "rebuilt" for each in taken)
    assert any(isinstance(each, NodeSuspected) and each.suspect == node for each in notices)
    check_everything(guarded)


def test_a_place_is_given_back_and_lost_again(guarded: Guarded) -> None:
    """Replicas that share the load stand in for each other, and a standby begins to send."""
    guarded.await_results()
    node = guarded.node_of("followed")
    assert node in {guarded.node_of("passed"), guarded.node_of("copied")}
    for _ in range(2):
        guarded.lose(node)
        guarded.cluster.start_node(node)
        wait_until(guarded.whole, DEADLINE_S, "everything in its place", 0.3)
    notices = guarded.notices()
    returned = [each for each in notices if isinstance(each, PlaceReturned) and each.replica.shard.part == "passed"]
    assert [each.node for each in returned] == [node, node]
    assert any(isinstance(each, StandbyPromoted) and each.replica.shard.part == "followed" for each in notices)
    check_everything(guarded)


def check_everything(flow: Guarded) -> None:
    last = flow.last("passed")
    flow.cluster.stop()
    check_rows(flow, last)
    check_totals(flow, last)
    check_windows(flow)


def check_rows(flow: Guarded, last: int) -> None:
    """Replicas that share the load pass every row on once, between them."""
    values = [row["v"] for number, rows in flow.units("passed").items() if number <= last for row in rows]
    assert sorted(values) == list(range(len(values))), "rows are missing or there twice"
    shares = {shard for _, shard in flow.files("passed")}
    assert shares == {0, 1}, "one of them had nothing to do"


def check_totals(flow: Guarded, last: int) -> None:
    """Totals per key, after each unit, of all rows up to it."""
    ends: dict[int, int] = {}
    seen = 0
    for number, rows in flow.units("passed").items():
        seen += len(rows)
        if number <= last:
            ends[number] = seen
    for segment in ("copied", "followed"):
        found = flow.units(segment)
        assert set(ends) & set(range(max(found))) <= set(found), f"a unit of {segment} is missing"
        for number, rows in found.items():
            for row in rows if number in ends else ():
                mine = range(row["k"], ends[number], KEYS)
                assert (row["n"], row["total"]) == (len(mine), sum(mine)), f"unit {number} of {segment}"


def check_windows(flow: Guarded) -> None:
    """Each window comes once, with all its rows."""
    units = flow.units("rebuilt").values()
    windows = [(int(row["start"].timestamp() * 1000), row["n"]) for rows in units for row in rows]
    assert windows, "no window was closed"
    starts = sorted(start for start, _ in windows)
    assert starts == sorted(set(starts)), "a window came twice"
    rows = sum(len(rows) for rows in flow.units("passed").values()) + 100_000
    times = [i * STEP_MS - (i * 7919) % JITTER_MS + 10_000 for i in range(rows)]
    length = WINDOW_S * 1000
    for start, count in windows:
        assert count == sum(1 for at in times if start <= at < start + length), f"window {start}"
    assert starts == list(range(starts[0], starts[-1] + 1, length)), "a window is missing"
