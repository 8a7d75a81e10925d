"""A flow is paused, loses its leader meanwhile, and goes on: nothing is read in between, and every result is exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kit.faults import strike
from kit.places import FLOWS
from kit.support import wait_until
from unbroken.cli import cli
from unbroken.client import Result, Subscription
from unbroken.local.launcher import LocalCluster
from unbroken.testing.faults import Kill

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROWS_PER_PULSE = 2_000
PULSES = 80
ROWS = ROWS_PER_PULSE * PULSES
COUNTED = FLOWS / "counted.py"
WAIT_S = 300.0

# Rows by the pulse instead of by the clock: what is read says how many pulses had rows.
STEPPED = """
import runpy

flow = runpy.run_path({counted!r})["flow"]
numbers = flow.sources["numbers"].connector
numbers.rate, numbers.batch_rows, numbers.limit = None, {rows_per_pulse}, {rows}
"""


class Reader:
    """What a subscriber has got so far."""

    def __init__(self, results: Subscription) -> None:
        self._results = results
        self.got: list[Result] = []

    def take(self) -> None:
        while (result := self._results.next(0.05)) is not None:
            self.got.append(result)

    def pulse(self) -> int:
        self.take()
        return max((result.header.pulse for result in self.got), default=0)

    @property
    def rows(self) -> int:
        """Rows of the source that are in the results."""
        self.take()
        return sum(count for count, _ in self.totals().values())

    @property
    def ended(self) -> bool:
        self.take()
        return self._results.ended

    def totals(self) -> dict[int, tuple[int, int]]:
        out: dict[int, tuple[int, int]] = {}
        for result in sorted(self.got, key=lambda result: result.header.number):
            out |= {row["k"]: (row["n"], row["total"]) for row in result.table.to_pylist()}
        return out


def expected() -> dict[int, tuple[int, int]]:
    out: dict[int, tuple[int, int]] = {}
    for value in range(ROWS):
        count, total = out.get(value * 31 % 101, (0, 0))
        out[value * 31 % 101] = (count + 1, total + value)
    return out


def command(cluster: LocalCluster, *words: str) -> dict[str, object]:
    done = CliRunner().invoke(cli, [*words, "--dir", str(cluster.directory), "--json"])
    assert done.exit_code == 0, done.output
    value: dict[str, object] = json.loads(done.stdout)
    return value


def leader(cluster: LocalCluster) -> str | None:
    return next((s.node for s in cluster.status() if s.leading), None)


def rows_read(cluster: LocalCluster) -> int:
    return max(state.ingress.rows for state in cluster.status() if state.ingress is not None)


def test_a_paused_flow_reads_nothing_whoever_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_OUT", str(tmp_path / "out"))
    path = tmp_path / "stepped.py"
    path.write_text(STEPPED.format(counted=str(COUNTED), rows_per_pulse=ROWS_PER_PULSE, rows=ROWS))
    with LocalCluster(path, tmp_path / "state") as cluster:
        cluster.start()
        cluster.wait_ready(WAIT_S)
        with cluster.subscribe("live") as results:
            reader = Reader(results)
            wait_until(lambda: reader.pulse() >= 3, WAIT_S, "the first results")
            assert command(cluster, "pause", "--wait", str(WAIT_S), "--reason", "a test")["changed"]
            read = rows_read(cluster)
            assert 0 < read < ROWS, "the flow had read everything before it was paused"
            wait_until(lambda: reader.rows == read, WAIT_S, "all that was read to be delivered")
            lost = leader(cluster)
            assert lost is not None
            strike(cluster, Kill(lost))

            def another_leads() -> bool:
                cluster.tend()
                return leader(cluster) not in (None, lost)

            wait_until(another_leads, WAIT_S, "another leader", 0.5)
            before = reader.pulse()
            wait_until(lambda: reader.pulse() >= before + 2, WAIT_S, "pulses without rows")
            assert rows_read(cluster) == read == reader.rows, "a paused flow was read"

            def whole() -> bool:
                cluster.tend()
                status = command(cluster, "status")["summary"]
                assert isinstance(status, dict) and status["pause"]["reason"] == "a test"
                return bool(status["well"])

            wait_until(whole, WAIT_S, lambda: f"redundancy to come back: {command(cluster, 'status')['summary']}", 1.0)
            assert rows_read(cluster) == read
            resumed = command(cluster, "resume", "--wait", str(WAIT_S))
            assert resumed["changed"]
            wait_until(lambda: reader.ended, WAIT_S, lambda: f"the end, after {reader.rows} of {ROWS} rows")
            wait_until(lambda: reader.rows == ROWS, 30, "the last results")
        told = CliRunner().invoke(cli, ["history", "--dir", str(cluster.directory), "--json"]).output
    assert reader.totals() == expected()
    keys = [(str(result.header.stream), result.header.number) for result in reader.got]
    assert len(keys) == len(set(keys)), "a result came twice"
    notices = [json.loads(line) for line in told.splitlines()]
    assert [each["fields"] for each in notices if each["kind"] == "flow_paused"] == [{"reason": "a test"}]
    assert sum(each["kind"] == "flow_resumed" for each in notices) == 1
