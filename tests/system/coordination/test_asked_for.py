"""Orders to a running flow through a real ZooKeeper and its controller, without Spark: what is said, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.support import TOKEN, wait_until
from kit.topologies import chain
from unbroken.cli.shared import EXIT_DEADLINE, EXIT_FAILED, EXIT_REFUSED, EXIT_UNREACHABLE
from unbroken.coordination.documents import Member, connect, read_history, read_layout, read_pause
from unbroken.coordination.run_info import RunInfo
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.program import Program
from unbroken.local.zookeeper_server import EmbeddedZooKeeper
from unbroken.node.membership.controller import ControlSettings
from unbroken.node.membership.session import Callbacks, Coordination
from unbroken.node.replicas.programs import Programs
from unbroken.operations import pause as pausing
from unbroken.protocol.values.notices.placement import FlowPaused, FlowResumed
from unbroken.spark.analysis.analysis import Analysis
from unit.cli.asking import ask, facts

pytestmark = pytest.mark.cluster

FLOW = "asked"
DEADLINE_S = 30.0
NODES = ("node-1", "node-2")


def joined(name: str, address: str) -> Coordination:
    """A node as ZooKeeper sees it, and a candidate for controller."""

    def unknown(generation: int) -> Program:
        raise AssertionError(f"somebody asked for generation {generation} of the code")

    program = Program(1, "flow.py", "", chain((1,)), {})
    programs = Programs(program, Dataflow(FLOW, nodes=2), unknown, lambda flow, order: Analysis({}))
    member = Member(name, f"{name}:1", "", "here", 1, name, "disk")
    told: list[Coordination] = []
    callbacks = Callbacks(
        members=lambda _: None,
        layout=lambda _: None,
        in_sync=lambda _: None,
        tell=lambda notice: told[0].report(notice),
        noted=lambda _: None,
        linked=lambda: NODES,
        connected=lambda: NODES,
    )
    settings = ControlSettings(2, transfers=4, return_grace_s=30)
    told.append(Coordination(connect(address, 10, token=TOKEN), FLOW, member, programs, settings, callbacks))
    return told[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    directory: Path = tmp_path_factory.mktemp("zookeeper")
    with EmbeddedZooKeeper(directory / "zk", directory / "zk.log") as running, ExitStack() as stack:
        for name in NODES:
            node = joined(name, running.address)
            stack.callback(node.close)
            node.start()
        client = connect(running.address, 10, token=TOKEN)
        stack.callback(client.close)
        stack.callback(client.stop)
        wait_until(lambda: read_layout(client, FLOW), DEADLINE_S, "the first layout")
        yield running


@pytest.fixture
def run(server: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """The options that name the flow, whose nodes nobody can ask."""
    (tmp_path / "token").write_text(TOKEN)
    RunInfo(FLOW, server.address, tmp_path / "token", tmp_path, None).write()
    yield "--dir", str(tmp_path)
    ask("resume", "--dir", str(tmp_path), "--wait", "0")


def test_pause_and_resume_reach_the_layout_and_the_history(server: EmbeddedZooKeeper, run: tuple[str, ...]) -> None:
    client = connect(server.address, 10, token=TOKEN)
    try:
        there = facts("pause", *run, "--wait", "0", "--reason", "the topic is moved")
        assert there["changed"] and there["paused"] and there["reason"] == "the topic is moved"
        pausing.wait_known(client, FLOW, True, DEADLINE_S)
        layout = read_layout(client, FLOW)
        assert layout is not None and layout.pause == read_pause(client, FLOW)
        again = ask("pause", *run, "--wait", "0")
        assert again.exit_code == 0 and "paused already, since" in again.stdout and "topic is moved" in again.stdout
        over = facts("resume", *run, "--wait", "0")
        assert over["changed"] and over["lasted_s"] >= 0
        pausing.wait_known(client, FLOW, False, DEADLINE_S)
        assert facts("resume", *run, "--wait", "0")["changed"] is False
        notices = [reported.notice for reported in read_history(client, FLOW)]
        assert FlowPaused("the topic is moved") in notices
        assert any(isinstance(notice, FlowResumed) for notice in notices)
    finally:
        client.stop()
        client.close()


def test_a_pause_that_is_not_complete_in_time_stays_asked_for(run: tuple[str, ...]) -> None:
    """The nodes of this flow answer nobody, so that nobody knows whether they rest."""
    told = ask("pause", *run, "--wait", "2")
    assert told.exit_code == EXIT_DEADLINE and "stays asked for" in told.stderr
    assert facts("pause", *run, "--wait", "0")["changed"] is False


@pytest.mark.parametrize("words", [["pause"], ["resume"], ["status"], ["history"], ["drain", "node-1"]])
def test_without_the_token_a_flow_is_neither_seen_nor_changed(
    server: EmbeddedZooKeeper, run: tuple[str, ...], tmp_path: Path, words: list[str]
) -> None:
    elsewhere = ("--zookeeper", server.address)
    assert ask(*words, *elsewhere).exit_code == EXIT_REFUSED
    (tmp_path / "other").write_text("another token, as long as it has to be")
    told = ask(*words, *elsewhere, "--token-file", str(tmp_path / "other"))
    assert told.exit_code == EXIT_FAILED and f"the token does not open flow {FLOW}" in told.stderr


def test_a_reason_is_one_line(run: tuple[str, ...]) -> None:
    assert ask("pause", *run, "--reason", "two\nlines").exit_code == EXIT_REFUSED
    assert ask("pause", *run, "--reason", "x" * 300).exit_code == EXIT_REFUSED


def test_the_history_for_people_and_programs(run: tuple[str, ...]) -> None:
    def kinds() -> list[str]:
        return [json.loads(line)["kind"] for line in ask("history", *run, "--json").stdout.splitlines()]

    # Other tests have paused the flow: the report that it has resumed comes a moment after they ended.
    wait_until(lambda: kinds().count("flow_paused") == kinds().count("flow_resumed"), 30, "the flow to resume", 0.2)
    told = ask("history", *run)
    assert told.exit_code == 0 and "first layout on node-1, node-2" in told.stdout
    lines = ask("history", *run, "--json").stdout.splitlines()
    assert [json.loads(line)["text"] for line in lines] == [
        line.partition(": ")[2] for line in told.stdout.splitlines()
    ]
    assert ask("history", *run, "--json", "--last", "1").stdout.splitlines() == lines[-1:]
    assert ask("history", *run, "--last", "0").stdout == ""
    assert ask("history", *run, "--last", "9999", "--json").stdout.splitlines() == lines


def test_orders_that_make_no_sense_are_refused(run: tuple[str, ...]) -> None:
    for words, why in (
        (("drain", "node-1"), "cannot be drained"),
        (("drain", "node-9"), "no node 'node-9'"),
        (("drain", "node-1", "--undo"), "is not being drained"),
        (("reinit", "s0", "node-1"), "is not a shard"),
        (("reinit", "s0.7", "node-1"), "has no replica on"),
        (("upgrade",), "name the file"),
        (("upgrade", "--undo"), "is not being upgraded"),
    ):
        told = ask(*words, *run)
        assert told.exit_code == EXIT_REFUSED, words
        assert why in told.stderr.replace("\n", " "), words
        assert facts(*words, *run)["exit_code"] == EXIT_REFUSED


def test_an_order_that_takes_too_long_stays_asked_for(run: tuple[str, ...]) -> None:
    told = ask("reinit", "s0.0", "node-1", *run, "--wait", "1.5")
    assert told.exit_code == EXIT_DEADLINE and "it stays asked for" in told.stderr.replace("\n", " ")


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(TOKEN)
    RunInfo("gone", "127.0.0.1:9", tmp_path / "token", tmp_path, None).write()
    monkeypatch.setattr("unbroken.cli.shared.ANSWER_DEADLINE_S", 0.5)
    monkeypatch.setattr("unbroken.cli.status.ANSWER_DEADLINE_S", 0.5)
    for words in (("status",), ("history",), ("pause",)):
        told = ask(*words, "--dir", str(tmp_path))
        assert told.exit_code == EXIT_UNREACHABLE and "no ZooKeeper answers" in told.stderr


def test_a_flow_that_this_zookeeper_does_not_know(server: EmbeddedZooKeeper, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    where = ("--zookeeper", server.address, "--token-file", str(tmp_path / "token"))
    assert ask("status", "other", *where).exit_code == EXIT_UNREACHABLE
    assert ask("pause", "other", *where).exit_code == EXIT_REFUSED, "it has not begun"
