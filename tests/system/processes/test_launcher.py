"""What a local run refuses to do, and how it looks after its processes; without Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kit.support import TOKEN, wait_until
from unbroken.cli.shared import exit_code
from unbroken.coordination.documents import Member, connect
from unbroken.coordination.run_info import RunInfo
from unbroken.errors import Refused, UnbrokenError
from unbroken.local.launcher import LocalCluster
from unbroken.local.processes import spawn
from unbroken.local.terminal import follow, greet
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.node.main import NodeOptions, run_node
from unbroken.protocol.values.notices.processes import ProcessDied, ProcessRestarted, ZooKeeperRestarted

FLOW = """
from unbroken import Dataflow, Generator, Parquet

flow = Dataflow("tiny", nodes=2)
source = flow.source("numbers", Generator(lambda start, stop, seed: None, schema="n long", rate=1))
flow.segment(source, name="same")(lambda rows: rows)
flow.sink("files", "same", Parquet({out!r}))
"""


@pytest.fixture
def flow_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.py"
    path.write_text(FLOW.format(out=str(tmp_path / "out")))
    return path


def earlier_run(directory: Path) -> Path:
    """A directory as a run leaves it."""
    (directory / "node-1" / "units").mkdir(parents=True)
    (directory / "token").write_text(TOKEN)
    RunInfo("tiny", "127.0.0.1:1", directory / "token", directory, os.getpid()).write()
    return directory


def test_an_earlier_run_is_gone_on_with_and_deleted_only_when_asked(flow_file: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = LocalCluster(flow_file, state)
    assert not first.resumed
    earlier_run(state)
    second = LocalCluster(flow_file, state)
    assert second.resumed and second.token == TOKEN
    assert (state / "node-1" / "units").is_dir()
    third = LocalCluster(flow_file, state, fresh=True)
    assert not third.resumed and third.token != TOKEN
    assert sorted(path.name for path in state.iterdir()) == ["logs", "shape.json", "token"]


def test_results_in_a_sink_do_not_keep_a_run_from_going_on(flow_file: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    LocalCluster(flow_file, state)
    earlier_run(state)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "same.0-to-files.0-0000000001.parquet").touch()
    assert LocalCluster(flow_file, state).resumed


def test_the_state_of_a_flow_of_another_shape_is_refused(flow_file: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    LocalCluster(flow_file, state)
    earlier_run(state)
    flow_file.write_text(flow_file.read_text().replace('name="same"', 'name="other"').replace('"same"', '"other"'))
    with pytest.raises(UnbrokenError, match=r"the segments: was \['same'\] and is \['other'\]"):
        LocalCluster(flow_file, state)
    assert (state / "node-1" / "units").is_dir()


def test_the_state_of_a_flow_with_other_keys_is_refused_before_anything_starts(flow_file: Path, tmp_path: Path) -> None:
    state, split = tmp_path / "state", 'name="same", shards=2, shard_by=["value"]'
    flow_file.write_text(flow_file.read_text().replace('name="same"', split))
    LocalCluster(flow_file, state)
    earlier_run(state)
    assert LocalCluster(flow_file, state).resumed
    flow_file.write_text(flow_file.read_text().replace('["value"]', '["id"]'))
    with pytest.raises(Refused, match=r"split for same: was \['value'\] and is \['id'\]\. Run the file") as refused:
        LocalCluster(flow_file, state)
    assert exit_code(refused.value) == 2
    assert (state / "node-1" / "units").is_dir()
    flow_file.write_text(flow_file.read_text().replace('shard_by=["id"]', 'shard_by=["value"], output_mode="update"'))
    assert LocalCluster(flow_file, state).resumed  # an upgrade may have changed that: the nodes know


def test_a_damaged_shape_is_told(flow_file: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    LocalCluster(flow_file, state)
    earlier_run(state)
    for damage in ("", "{}", '{"program": 5}', "[]"):
        (state / "shape.json").write_text(damage)
        with pytest.raises(UnbrokenError, match=r"shape\.json is damaged .* --fresh"):
            LocalCluster(flow_file, state)


def test_a_start_that_was_interrupted_at_once_is_started_over(flow_file: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "shape.json").write_text("{}")
    assert not LocalCluster(flow_file, state).resumed


def test_a_directory_of_something_else_is_never_deleted(flow_file: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(UnbrokenError, match="left alone"):
            LocalCluster(flow_file, home, fresh=fresh)
    assert (home / "thesis.tex").read_text() == "years of work"
    with pytest.raises(UnbrokenError, match="is not a directory"):
        LocalCluster(flow_file, home / "thesis.tex", fresh=True)


def test_sinks_are_looked_at_before_anything_is_deleted(flow_file: Path, tmp_path: Path) -> None:
    state = earlier_run(tmp_path / "state")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "same.0-to-files.0-0000000001.parquet").touch()
    with pytest.raises(UnbrokenError, match="sink files"):
        LocalCluster(flow_file, state, fresh=True)
    assert (state / "node-1" / "units").is_dir()


def test_a_new_run_may_add_to_sinks_if_it_is_told_to(
    flow_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "same.0-to-files.0-0000000001.parquet").touch()
    with pytest.raises(UnbrokenError, match="--add-to-sinks"):
        LocalCluster(flow_file, tmp_path / "state")
    cluster = LocalCluster(flow_file, tmp_path / "state", add_to_sinks=True)
    started: list[list[str]] = []
    monkeypatch.setattr("unbroken.local.launcher.spawn", lambda command, **_: started.append(command))
    monkeypatch.setattr(cluster, "zookeeper_for", lambda name: "zk:1")
    cluster.start_node("node-1")
    assert "--add-to-sinks" in started[0]


def test_the_flow_file_is_not_deleted_with_the_state(flow_file: Path, tmp_path: Path) -> None:
    earlier_run(tmp_path)
    with pytest.raises(UnbrokenError, match="lies in"):
        LocalCluster(flow_file, tmp_path, fresh=True)
    assert flow_file.exists()


@pytest.mark.cluster
def test_a_run_that_goes_on_is_left_alone(flow_file: Path, tmp_path: Path) -> None:
    state = earlier_run(tmp_path / "state")
    with EmbeddedZooKeeper(tmp_path / "zk", tmp_path / "zk.log") as server:
        RunInfo("tiny", server.address, state / "token", state, os.getpid()).write()
        with pytest.raises(UnbrokenError, match=f"flow tiny runs in .*process {os.getpid()}"):
            LocalCluster(flow_file, state, fresh=True)
        assert (state / "node-1" / "units").is_dir()
    LocalCluster(flow_file, state, fresh=True)


def test_a_damaged_run_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"flow": "ti')
    with pytest.raises(UnbrokenError, match=r"run\.json is damaged"):
        RunInfo.read(tmp_path)


def test_a_node_refuses_a_directory_of_something_else(flow_file: Path, tmp_path: Path) -> None:
    used = tmp_path / "node-1"
    (used / "units").mkdir(parents=True)
    options = NodeOptions("node-1", flow_file, "127.0.0.1:1", used, TOKEN)
    with pytest.raises(UnbrokenError, match="is not the directory of a node"):
        run_node(options)


def test_the_state_of_a_node_is_kept_per_flow(flow_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".unbroken" / "tiny" / "n" / "units").mkdir(parents=True)
    with pytest.raises(UnbrokenError, match=r"\.unbroken/tiny/n holds files"):
        run_node(NodeOptions("n", flow_file, "127.0.0.1:1", None, TOKEN))


class Sleepers(LocalCluster):
    """A local run whose nodes are processes that do nothing."""

    def start_node(self, name: str, standby: bool = False) -> None:
        self._told_dead.discard(name)
        command = [sys.executable, "-c", "import time; time.sleep(100)"]
        self.nodes[name] = spawn(command, log_file=self.logs / f"{name}.log")


@pytest.mark.cluster
def test_zookeeper_is_restarted_and_the_dead_are_told_once(flow_file: Path, tmp_path: Path) -> None:
    with Sleepers(flow_file, tmp_path / "state") as cluster:
        cluster.start()
        address = cluster.zookeeper.address
        zk = connect(address, 10, token=cluster.token)
        try:
            member = Member("node-2", "127.0.0.1:1", "127.0.0.1:2", "here", 1, "x")
            zk.create("/unbroken/tiny/members/node-2", member.to_bytes(), makepath=True)
        finally:
            zk.stop()
            zk.close()
        assert cluster.tend() == []
        [state] = cluster.status()
        assert (state.node, state.state, state.push) == ("node-2", "silent", "127.0.0.1:2")
        cluster.nodes["node-1"].kill9()
        cluster.zookeeper.kill9()
        wait_until(lambda: not cluster.zookeeper.alive(), 30, "the end of ZooKeeper")
        wait_until(lambda: not cluster.nodes["node-1"].alive(), 30, "the end of node-1")
        # The last known members are shown while ZooKeeper is away.
        dead, silent = cluster.status()
        assert (dead.state, dead.reason) == ("dead", "killed by signal 9")
        assert (silent.node, silent.state) == ("node-2", "silent")
        log = str(cluster.logs / "node-1.log")
        assert cluster.tend() == [ProcessDied("node-1", -9, log), ZooKeeperRestarted()]
        assert cluster.zookeeper.address == address
        wait_until(lambda: cluster.tend() == [ProcessRestarted("node-1")], 30, "node-1 to be started again")
        assert cluster.nodes["node-1"].alive() and cluster.tend() == []
        reader = cluster._reader
        assert reader is not None
        wait_until(reader.directory.refresh, 30, "the reader to find ZooKeeper again")
        assert [state.node for state in cluster.status()] == ["node-2"]


@pytest.mark.cluster
def test_a_run_ends_when_no_node_is_left(flow_file: Path, tmp_path: Path) -> None:
    console = Console(width=200)
    with Sleepers(flow_file, tmp_path / "state", supervise=False) as cluster, console.capture() as captured:
        cluster.start()
        greet(cluster, console)
        for process in cluster.nodes.values():
            process.kill9()
        with pytest.raises(UnbrokenError, match="no node of tiny is left"):
            follow(cluster, console)
    text = captured.get()
    assert f"ZooKeeper at {cluster.zookeeper.host}:" in text
    assert f"unbroken status --watch --dir {tmp_path / 'state'}" in text
    assert "node-1 is dead: killed by signal 9" in text and "node-2 is dead" in text
