"""A node is killed with kill -9 while results flow: nothing is lost, doubled or changed, and nothing is left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from kit.faults import strike
from kit.places import FLOWS
from kit.support import wait_until
from unbroken.cli import cli
from unbroken.client import Result, Subscription
from unbroken.local.launcher import LocalCluster
from unbroken.observe.status.codec import decode
from unbroken.observe.status.flow import FlowStatus
from unbroken.security.certificates import credentials
from unbroken.testing.faults import Kill
from unbroken.transport.auth import open_client
from unbroken.transport.calls import StatusQuestion, call

PULSES = 24
ROWS_PER_PULSE = 2_000
ROWS = ROWS_PER_PULSE * PULSES
KILL_AT_PULSE = 6
COUNTED = FLOWS / "counted.py"

# Rows by the pulse instead of by the clock: however long Spark takes to start, the kill is amid the pulses.
STEPPED = """
import runpy

flow = runpy.run_path({counted!r})["flow"]
numbers = flow.sources["numbers"].connector
numbers.rate, numbers.batch_rows, numbers.limit = None, {rows_per_pulse}, {rows}
"""


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLOW_OUT", str(tmp_path / "out"))
    return tmp_path / "out"


@pytest.fixture
def flow_file(tmp_path: Path) -> Path:
    path = tmp_path / "stepped.py"
    path.write_text(STEPPED.format(counted=str(COUNTED), rows_per_pulse=ROWS_PER_PULSE, rows=ROWS))
    return path


def expected() -> dict[int, tuple[int, int]]:
    """Key to (rows, sum) over the whole input."""
    out: dict[int, tuple[int, int]] = {}
    for value in range(ROWS):
        key = (value * 31) % 101
        count, total = out.get(key, (0, 0))
        out[key] = (count + 1, total + value)
    return out


def read_to(results: Subscription, deadline_s: float, stop_at_pulse: int | None = None) -> list[Result]:
    """Results until a pulse or until the flow has ended."""
    got: list[Result] = []

    def done() -> bool:
        result = results.next(0.2)
        if result is not None:
            got.append(result)
        reached = stop_at_pulse is not None and any(r.header.pulse >= stop_at_pulse for r in got)
        return reached or results.ended

    wait_until(done, deadline_s, "results")
    while results.ended and (result := results.next(0.2)) is not None:
        got.append(result)
    return got


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_killing_the_ingress_leader_is_not_noticed(
    out: Path, flow_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(psutil.Process().children(recursive=True))
    # A temporary directory of its own: in the system's one are the files of whatever else runs on the machine.
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={temporary}")
    with LocalCluster(flow_file, tmp_path / "state") as cluster:
        cluster.start()
        cluster.wait_ready(300)
        processes = set(psutil.Process().children(recursive=True)) - before
        assert len(processes) > 2 * cluster.count
        with cluster.subscribe("live") as results:
            got = read_to(results, 180, stop_at_pulse=KILL_AT_PULSE)
            leader = next(s.node for s in cluster.status() if s.leading)
            assert not results.ended, "the flow ended before a node could be killed"
            strike(cluster, Kill(leader))
            got += read_to(results, 180)
            check_cli(tmp_path / "state", leader)
            check_journals(tmp_path, [name for name in cluster.nodes if name != leader])
        check_token(cluster)
        wait_until(lambda: delivered(cluster), 60, "delivery to the files")
    check_results(got, out)
    assert not spark_files(temporary)
    wait_until(lambda: not any(process.is_running() for process in processes), 20, "the end of every process")


def check_journals(directory: Path, survivors: list[str]) -> None:
    """The decisions of the nodes that stayed are repeated here, in another process, to the same instructions."""
    for node in survivors:
        file = directory / f"{node}.journal"
        asked = ["journal", node, "--dir", str(directory / "state"), "--out", str(file), "--json"]
        told = CliRunner().invoke(cli, asked)
        assert told.exit_code == 0 and json.loads(told.output)["file"] == str(file), told.output
        done = CliRunner().invoke(cli, ["journal", "replay", str(file), "--json"])
        *steps, last = map(json.loads, done.output.splitlines())
        assert done.exit_code == 0 and last["node"] == node, last
        assert (last["different"], last["missing"], last["shown_only"]) == (0, 0, 0), last
        assert last["steps"] == len(steps) > 100 and all(step["same"] for step in steps)
        kinds = {step["event"]["kind"] for step in steps}
        assert {"started", "link-lost", "unit-arrived", "received"} <= kinds, kinds
        assert any(step["instructions"] for step in steps)


def spark_files(temporary: Path) -> set[str]:
    """What Spark has put into the system's temporary directory, where nothing removes what a killed one has left."""
    names = ("spark-*", "blockmgr-*", "artifacts-*", "liblz4-*")
    return {path.name for pattern in names for path in temporary.glob(pattern)}


def delivered(cluster: LocalCluster) -> bool:
    """Whether every sink has the last pulse, by the word of nodes that answer."""
    states = cluster.status()
    last = max((state.ingress.pulse for state in states if state.ingress is not None), default=None)
    sinks: dict[str, int] = {}
    for state in states:
        for stream, sink in state.sinks.items():
            sinks[stream] = max(sinks.get(stream, 0), sink.delivered)
    return bool(sinks) and all(count == last for count in sinks.values())


def check_results(got: list[Result], out: Path) -> None:
    """The client, the Parquet files and the JSON lines all say the same, each unit once."""
    keys = [(str(r.header.stream), r.header.number) for r in got]
    assert len(keys) == len(set(keys))
    live: dict[int, tuple[int, int]] = {}
    for result in sorted(got, key=lambda r: r.header.number):
        for row in result.table.to_pylist():
            live[row["k"]] = (row["n"], row["total"])
            assert row["cut_ms"] == result.header.cut_ms
    assert live == expected()
    rows = sum(result.table.num_rows for result in got)
    parquet = [pq.read_table(path) for path in sorted((out / "parquet").glob("*.parquet"))]
    assert sum(table.num_rows for table in parquet) == rows
    lines = [line for path in sorted((out / "jsonl").glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert len(lines) == rows
    final: dict[int, tuple[int, int]] = {}
    for line in lines:
        row = json.loads(line)
        final[row["k"]] = max(final.get(row["k"], (0, 0)), (row["n"], row["total"]))
    assert final == expected()


def check_cli(directory: Path, killed: str) -> None:
    """`status` shows the survivors and `history` tells what happened."""
    runner = CliRunner()
    said = runner.invoke(cli, ["status", "--dir", str(directory), "--json"]).stdout
    assert any(state.running and state.node != killed for state in decode(FlowStatus, said.encode()).nodes)
    assert "sums.0" in runner.invoke(cli, ["status", "--dir", str(directory)], env={"COLUMNS": "200"}).output
    story = runner.invoke(cli, ["history", "--dir", str(directory), "--json"]).output
    assert "ingress_led" in {json.loads(line)["kind"] for line in story.splitlines()}


def check_token(cluster: LocalCluster) -> None:
    """Nobody gets in without the token, and the token is for its owner only."""
    address = next(s.address for s in cluster.status() if s.running and s.address)
    client = open_client(address, credentials("another token, as long as it has to be"))
    with pytest.raises(flight.FlightUnavailableError):
        call(client, StatusQuestion(), 5)
    assert os.stat(cluster.directory / "token").st_mode & 0o077 == 0
