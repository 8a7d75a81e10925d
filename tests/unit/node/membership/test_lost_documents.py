"""ZooKeeper has lost its data, or is another one: what a node does with its disk. No Spark, no server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kit.hosts import hosting
from kit.support import TOKEN
from unbroken import Client, Dataflow, Generator
from unbroken.coordination.documents import DISK, FlowDocument
from unbroken.errors import UnbrokenError
from unbroken.flow.plan import build_topology
from unbroken.flow.program import Program
from unbroken.node import main as node_main
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.membership.documents_copy import FILE, CoordinationCopy
from unbroken.node.node import Node
from unbroken.node.replicas.directories import IDENTITY, ReplicaDirs
from unbroken.node.replicas.programs import Programs
from unbroken.node.replicas.retired_replicas import Retiring
from unbroken.protocol.ingress.log import Entry, InSync
from unbroken.protocol.instructions import StopReplica
from unbroken.protocol.placement.adoption import LogEnd, adopt
from unbroken.protocol.placement.controller import Decision, first_layout
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.placement import FirstLayoutRefused, LayoutForeign, LayoutMissing
from unbroken.protocol.values.notices.replicas import ReplicasKeptAside
from unbroken.protocol.values.run import NO_RUN, RunIdentity

OLD = [ReplicaId.parse("ingress.0#2"), ReplicaId.parse("seg.0#2")]
RUN = RunIdentity("the-run", frozenset({"an-earlier-one"}))


def declared() -> tuple[Dataflow, Programs]:
    flow = Dataflow("x", nodes=2)
    flow.source("g", Generator(rate=100))
    flow.segment("g", name="seg", replicas=2)(lambda rows: rows)
    flow.sink("out", "seg", Client())
    first = Program.first(flow, build_topology(flow), "f.py", "")

    def unknown(generation: int) -> Program:
        raise AssertionError(f"generation {generation} is asked for")

    return flow, Programs(first, flow, unknown, lambda flow, order: pytest.fail("Spark is asked"))


@pytest.fixture
def dirs(tmp_path: Path) -> ReplicaDirs:
    """The disk of a node in a flow in which replicas were replaced once; 500 entries are in its log."""
    dirs = ReplicaDirs(tmp_path / "a")
    dirs.identity()
    dirs.belong(RUN)
    dirs.begin(OLD)
    log = IngressLogFile(dirs.ingress_log(OLD[0]))
    for number in range(1, 501):
        log.append(Entry(number, 7, b"acknowledged push %d" % number, 0, False))
    log.close()
    (dirs.replicas / "seg.0#2" / "checkpoint").mkdir()
    return dirs


def entries(path: Path) -> int:
    return len(IngressLogFile(path).read())


def recover(dirs: ReplicaDirs, layout: Layout) -> dict[ReplicaId, Any]:
    host = hosting(name="a", dirs=dirs, topology_of=declared()[1].use)
    return dict(host.recover(layout, dirs.identity()))


def test_there_is_no_first_layout_on_the_disks_of_a_run(dirs: ReplicaDirs) -> None:
    topology = declared()[1].topology
    present = {"a": dirs.identity(), "b": "other"}
    decision = first_layout(topology, 2, present, {"a": dirs.run().id, "b": ""}, "another-run")
    assert decision == FirstLayoutRefused(("a",), ("the-run",))
    assert isinstance(first_layout(topology, 2, present, {}, "another-run"), Decision)


def test_a_node_takes_no_layout_of_another_run_and_keeps_all_it_has(dirs: ReplicaDirs) -> None:
    with pytest.raises(UnbrokenError, match=r"belongs to run the-run.*layout of run another") as refused:
        dirs.belong(RunIdentity("another"))
    for way in ("--zookeeper", "unbroken adopt", "--fresh"):
        assert way in str(refused.value)
    assert dirs.run() == RUN and dirs.present() == OLD and entries(dirs.ingress_log(OLD[0])) == 500
    dirs.belong(RUN)


def test_a_disk_belongs_to_no_run_until_it_takes_a_layout(tmp_path: Path) -> None:
    dirs = ReplicaDirs(tmp_path)
    disk = dirs.identity()
    assert dirs.run() == NO_RUN
    dirs.begin(OLD)
    dirs.belong(RUN)
    assert ReplicaDirs(tmp_path).run() == RUN and dirs.identity() == disk and dirs.begun(OLD[0])


def test_what_a_layout_does_not_place_here_is_put_aside(dirs: ReplicaDirs) -> None:
    """Even if the documents are those of this run, they are no proof that another disk has the state."""
    topology = declared()[1].topology
    layout = chained_placement(topology, {"a": dirs.identity(), "b": "other"}, RUN.id)
    got = recover(dirs, layout)
    assert not set(got) & set(OLD)
    assert [each.replica for each in dirs.set_aside()] == OLD and not set(dirs.present()) & set(OLD)
    assert entries(dirs.retired / "ingress.0#2" / "log") == 500
    assert (dirs.retired / "seg.0#2" / "checkpoint").is_dir()
    dirs.forget(dirs.set_aside()[0])
    assert [each.replica for each in dirs.set_aside()] == [OLD[1]] and not list(dirs.root.glob("dropped-*"))


def committed(home: Path, units: int) -> None:
    """A checkpoint whose state reaches to unit ``units``."""
    for kind, lines in (("offsets", ["v1", "{}", json.dumps({"cut": units})]), ("commits", ["v1", "{}"])):
        (home / "checkpoint" / kind).mkdir(parents=True, exist_ok=True)
        (home / "checkpoint" / kind / "0").write_text("\n".join(lines))


def retired(dirs: ReplicaDirs) -> list[str]:
    return [each.name for each in dirs.set_aside()]


def looked(dirs: ReplicaDirs, told: list[Notice]) -> list[str]:
    """What is kept aside after a look, by a layout under which nothing is redundant elsewhere."""
    topology = declared()[1].topology
    layout = chained_placement(topology, {"a": dirs.identity(), "b": "other"}, RUN.id)
    layout = layout.without(list(layout.placement))
    view = SimpleNamespace(layout=layout, topology=topology)
    life: Any = SimpleNamespace(name="a", tell=told.append)
    Retiring(life, dirs, lambda: cast(Any, view)).look(0)
    return retired(dirs)


def test_nothing_is_removed_for_a_later_replica_that_began_with_nothing(dirs: ReplicaDirs) -> None:
    """Neither at once nor by a look at what is kept, and also if both have the same name."""
    later, told = ReplicaId.parse("seg.0#5"), list[Notice]()
    committed(dirs.replicas / "seg.0#2", 90)
    dirs.retire(OLD[1])
    for _ in range(2):
        dirs.adopt(later, dirs.begin_anew(later, 100, 120, ()))
        dirs.retire(later)
    committed(dirs.retired / "seg.0#5", 150)
    names = ["seg.0#2", "seg.0#5", "seg.0#5~2"]
    assert retired(dirs) == names and looked(dirs, told) == names
    [notice] = told
    assert isinstance(notice, ReplicasKeptAside) and notice.directories == tuple(names) and notice.size_bytes > 0


def test_a_replica_that_a_later_one_contains_is_removed(dirs: ReplicaDirs) -> None:
    committed(dirs.replicas / "seg.0#2", 90)
    dirs.retire(OLD[1])
    for name, units in (("seg.0#5", 80), ("seg.0#6", 95)):
        dirs.begin([ReplicaId.parse(name)])
        committed(dirs.replicas / name, units)
        dirs.retire(ReplicaId.parse(name))
    (dirs.retired / "seg.0#6" / "stopped").touch()
    assert looked(dirs, []) == ["seg.0#2", "seg.0#6"], "one that was stopped proves nothing"
    (dirs.retired / "seg.0#6" / "stopped").unlink()
    assert looked(dirs, []) == ["seg.0#6"]


def test_a_replica_that_stops_is_noted(dirs: ReplicaDirs) -> None:
    hosting(dirs=dirs, controller=None).stop(StopReplica(OLD[1], "it differs from its sibling"))
    dirs.retire(OLD[1])
    assert [(each.replica, each.unbroken) for each in dirs.set_aside()] == [(OLD[1], False)]


def test_the_copy_of_the_documents_says_how_the_flow_continues(dirs: ReplicaDirs) -> None:
    topology = declared()[1].topology
    layout = chained_placement(topology, {"a": dirs.identity(), "b": "other"}, RUN.id)
    for replica in OLD:
        layout = layout.without([found for found in layout.hosted("a") if found.shard == replica.shard])
        layout, _ = layout.with_joining(replica.shard, "a")
        layout = layout.with_full(layout.joining)
    assert set(layout.hosted("a")) == set(OLD)
    copy = CoordinationCopy(dirs)
    copy.keep_layout(layout)
    copy.keep_in_sync(InSync(7, "a", frozenset({"a"}), 12))
    copy.keep_flow(FlowDocument(RUN, {}))
    copy.keep_layout(layout.without([]).without([]))
    copy.keep_layout(layout)
    copy.keep_in_sync(InSync(6, "b", frozenset({"b"}), 11))
    again = CoordinationCopy(ReplicaDirs(dirs.root))
    report = again.report("a", running=False)
    assert report.layout is not None and report.layout.version == layout.version + 2, "the newest is kept"
    assert report.sync == InSync(7, "a", frozenset({"a"}), 12) and again.flow == FlowDocument(RUN, {})
    assert report.held == {OLD[0]: 500, OLD[1]: 0} and report.log == LogEnd(7, 500) and report.run == RUN.id
    decided = adopt([report], without=["b"])
    assert {r: n for r, n in decided.layout.placement.items() if n == "a"} == dict.fromkeys(OLD, "a")
    assert decided.sync == InSync(8, "a", frozenset({"a"}), 13)
    got = recover(dirs, decided.layout)
    assert set(got) == set(OLD) and len(got[OLD[0]].log.entries) == 500


def test_a_damaged_copy_says_what_to_do(dirs: ReplicaDirs) -> None:
    (dirs.root / FILE).write_text("{")
    with pytest.raises(UnbrokenError, match="Delete it"):
        CoordinationCopy(dirs)


def test_the_code_of_later_generations_is_kept(dirs: ReplicaDirs) -> None:
    program = Program(3, "f.py", "text", declared()[1].topology, {})
    CoordinationCopy(dirs).keep_program(program)
    assert CoordinationCopy(dirs).program(3) == program and CoordinationCopy(dirs).program(2) is None


def test_the_identity_says_the_run(dirs: ReplicaDirs) -> None:
    known = (dirs.root / IDENTITY).read_text().splitlines()[0]
    assert json.loads(known.partition(" ")[2])["run"] == {"id": "the-run", "supersedes": ["an-earlier-one"]}


@pytest.fixture
def node(dirs: ReplicaDirs) -> Iterator[Node]:
    flow, programs = declared()
    node = Node("a", flow, programs, dirs, TOKEN, "127.0.0.1", 0)
    yield node
    node.close()


def layout_of(run: str, dirs: ReplicaDirs) -> Layout:
    return chained_placement(declared()[1].topology, {"a": dirs.identity(), "b": "other"}, run)


def test_a_node_that_finds_the_layout_of_another_run_ends_with_both_ids(node: Node, dirs: ReplicaDirs) -> None:
    node.on_layout(layout_of("another", dirs))
    node.on_in_sync(InSync(1, "a", frozenset({"a"}), 0))
    with pytest.raises(UnbrokenError, match=r"belongs to run the-run.*layout of run another"):
        node.await_layout(1)
    assert dirs.present() == OLD and entries(dirs.ingress_log(OLD[0])) == 500 and node.copy.layout is None


def test_a_node_that_misses_its_layout_says_so_and_waits(node: Node, dirs: ReplicaDirs) -> None:
    assert node.status().state == "starting"
    report = DISK.decode(node.disk_document()).report
    assert report.run == RUN.id and report.held == {OLD[0]: 500, OLD[1]: 0}
    assert node.status().state == "unadopted" and node.status().run == RUN.id
    node.disk_document()
    assert [each.notice for each in node.story] == [LayoutMissing("a", RUN.id, running=False)]
    waiting = threading.Thread(target=lambda: found.append(node.await_layout(0)), daemon=True)
    found: list[Any] = []
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive(), "however long it takes"
    layout, sync = layout_of(RUN.id, dirs), InSync(1, "a", frozenset({"a"}), 0)
    node.on_layout(layout)
    node.on_in_sync(sync)
    waiting.join(30)
    assert found == [(layout, sync)] and node.status().state == "starting"


def test_a_running_node_ignores_the_layout_of_another_run(node: Node, dirs: ReplicaDirs) -> None:
    node.protocol = cast(Any, object())
    try:
        for _ in range(2):
            node.on_layout(layout_of("another", dirs))
        assert [each.notice for each in node.story] == [LayoutForeign("a", RUN.id, "another")]
        assert node._events.get(0) is None and not node.stopping
    finally:
        node.protocol = None


def test_a_node_that_has_taken_a_later_layout_does_not_go_back(node: Node, dirs: ReplicaDirs) -> None:
    """ZooKeeper was given the data of a backup: its in-sync set may be older than the log, too."""
    later = replace(layout_of(RUN.id, dirs), version=9)
    node.on_layout(later)
    again = Node("a", node.flow, declared()[1], dirs, TOKEN, "127.0.0.1", 0)
    try:
        again.on_layout(replace(later, version=8))
        with pytest.raises(UnbrokenError, match=r"layout 8.*taken layout 9.*unbroken adopt x"):
            again.await_layout(1)
        again.on_layout(later)
        again.on_in_sync(InSync(1, "a", frozenset({"a"}), 0))
        assert again.await_layout(1) is not None
    finally:
        again.close()


class Occupied(Client):
    """A sink that an earlier run has written to."""

    def occupied(self) -> str | None:
        return "it holds results"


def test_a_node_does_not_begin_a_flow_on_a_sink_of_an_earlier_run(
    tmp_path: Path, dirs: ReplicaDirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, _ = declared()
    flow.sink("taken", "seg", Occupied())
    layouts: list[Layout | None] = [None, None]
    monkeypatch.setattr(node_main, "read_layout", lambda client, name: layouts.pop())
    fresh = ReplicaDirs(tmp_path / "fresh")
    with pytest.raises(UnbrokenError, match=r"sink taken: it holds results.*--add-to-sinks"):
        node_main._refuse_occupied(cast(Any, None), flow, fresh)
    layouts = [layout_of("r", dirs), None]
    node_main._refuse_occupied(cast(Any, None), flow, fresh)  # The others have begun since, and filled it.
    layouts = [layout_of("r", dirs)]
    node_main._refuse_occupied(cast(Any, None), flow, fresh)
    node_main._refuse_occupied(cast(Any, None), flow, dirs)  # Its disk is of the run that filled it.
