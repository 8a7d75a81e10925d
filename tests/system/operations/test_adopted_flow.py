"""Every process of a flow is killed and ZooKeeper's data are deleted: the disks continue the run, exactly once."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from kit.faults import strike
from kit.places import FLOWS
from kit.support import wait_until
from unbroken.cli import cli
from unbroken.coordination.documents import connect, read_layout
from unbroken.local.launcher import LocalCluster
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.testing.faults import Kill

PULSES = 24
ROWS_PER_PULSE = 2_000
ROWS = ROWS_PER_PULSE * PULSES
KILL_AT_UNIT = 5
COUNTED = FLOWS / "counted.py"

STEPPED = """
import runpy

flow = runpy.run_path({counted!r})["flow"]
numbers = flow.sources["numbers"].connector
numbers.rate, numbers.batch_rows, numbers.limit = None, {rows_per_pulse}, {rows}
"""


def held(directory: Path) -> dict[str, list[str]]:
    return {path.name: [str(r) for r in ReplicaDirs(path).present()] for path in sorted(directory.glob("node-*"))}


def delivered(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("jsonl/*.jsonl"))


def final(out: Path) -> dict[int, tuple[int, int]]:
    """Key to the last (rows, sum) that the files say, each of which may be there once only."""
    found: dict[int, tuple[int, int]] = {}
    for path in sorted(out.glob("jsonl/*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            assert (row["n"], row["total"]) > found.get(row["k"], (0, 0)), "a sum goes back"
            found[row["k"]] = (row["n"], row["total"])
    return found


def expected() -> dict[int, tuple[int, int]]:
    out: dict[int, tuple[int, int]] = {}
    for value in range(ROWS):
        key = (value * 31) % 101
        count, total = out.get(key, (0, 0))
        out[key] = (count + 1, total + value)
    return out


def states(cluster: LocalCluster) -> dict[str, str]:
    return {state.node: state.state.value for state in cluster.status()}


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_a_flow_whose_zookeeper_has_lost_its_data_is_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, state, flow_file = tmp_path / "out", tmp_path / "state", tmp_path / "stepped.py"
    monkeypatch.setenv("FLOW_OUT", str(out))
    monkeypatch.setenv("FLOW_NODES", "2")
    flow_file.write_text(STEPPED.format(counted=str(COUNTED), rows_per_pulse=ROWS_PER_PULSE, rows=ROWS))
    with LocalCluster(flow_file, state) as cluster:
        cluster.start()
        wait_until(lambda: len(delivered(out)) >= 2 * KILL_AT_UNIT, 120, "some results")
        for node in cluster.nodes:
            strike(cluster, Kill(node))
        # Not a fault of the vocabulary: there ZooKeeper comes back with its data.
        cluster.zookeeper.kill9()
    before, disks, runs = delivered(out), held(state), {ReplicaDirs(p).run().id for p in state.glob("node-*")}
    assert len(before) < 2 * PULSES, "the flow ended before it could be killed"
    assert len(runs) == 1 and all(disks.values())
    shutil.rmtree(state / "zookeeper" / "data")

    with LocalCluster(flow_file, state) as cluster:
        assert cluster.resumed
        cluster.start()
        wait_until(lambda: set(states(cluster).values()) == {"unadopted"} and len(cluster.status()) == 2, 90, "nodes")
        client = connect(cluster.zookeeper.address, 5, token=cluster.token)
        quiet_until = time.monotonic() + 2
        wait_until(lambda: time.monotonic() > quiet_until, 30, "a controller to decide, if it did")
        assert read_layout(client, "counted") is None, "the flow must not begin anew"
        assert held(state) == disks and delivered(out) == before
        history = CliRunner().invoke(cli, ["history", "--dir", str(state), "--json"]).output
        assert "layout_missing" in {json.loads(line)["kind"] for line in history.splitlines()}
        told = CliRunner().invoke(cli, ["adopt", "--dir", str(state), "--json"])
        assert told.exit_code == 0, told.output
        assert {json.loads(told.stdout)["run"]} == runs
        layout = read_layout(client, "counted")
        assert layout is not None and {layout.run} == runs
        client.stop()
        client.close()
        wait_until(lambda: len(delivered(out)) == 2 * PULSES, 120, "the rest of the results")
        assert set(before) <= set(delivered(out))
    assert final(out) == expected()
