"""A run is continued with the file that its state was made by, or with one that declares the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from unbroken import Client, Dataflow, Files, Generator, JsonLines, Kafka, Push
from unbroken.coordination.documents import LAYOUT, Member
from unbroken.errors import FlowError
from unbroken.flow.loading import load_text
from unbroken.flow.plan import build_topology
from unbroken.flow.program import PROGRAM, Program, code_digest
from unbroken.node.main import _refuse_other_run
from unbroken.node.membership.documents_copy import CoordinationCopy
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.programs import (
    program_of_run,
    refuse_other_code,
    refuse_other_program,
    write_first_program,
)
from unbroken.protocol.placement.controller import Decision, first_layout
from unbroken.protocol.values.run import RunIdentity
from unbroken.protocol.values.strategy import Ha
from unbroken.security.sealing import ForgedDocument
from unbroken.spark.analysis.resumption import conflicts

ORDERS = "customer string, shop string, price double"


def same(frame: Any) -> Any:
    return frame


def declare(
    *,
    shard_by: list[str] | None = None,
    shards: int = 4,
    output_mode: str = "update",
    ha: str = "active",
    replicas: int = 2,
    ordering: str = "pulse",
    source: Any = None,
    sink: Any = None,
    sink_name: str = "live",
    segment: str = "totals",
    nodes: int = 3,
    **settings: Any,
) -> Program:
    flow = Dataflow("shop", nodes=nodes, ordering=ordering, **settings)
    more = {"event_time": "at"} if ordering == "bucket" else {}
    flow.source("orders", source or Push(ORDERS if not more else f"{ORDERS}, at timestamp"), **more)
    options: dict[str, Any] = {"shards": shards, "shard_by": ["shop"] if shard_by is None else shard_by}
    flow.segment("orders", name=segment, output_mode=output_mode, ha=ha, replicas=replicas, **options)(same)
    flow.sink(sink_name, segment, sink or Client())
    return Program.first(flow, build_topology(flow), "shop.py", f"# {shard_by} {output_mode}")


def told(run: Program, given: Program, runs_given: bool = True) -> list[str]:
    return [problem.what for problem in conflicts(run, given, "shop.py", runs_given=runs_given)]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"shard_by": ["customer"]}, "rows of orders are split for totals: was ['shop'] and is ['customer']"),
        ({"shard_by": ["shop", "customer"]}, "was ['shop'] and is ['shop', 'customer']"),
        ({"shards": 3}, "the number of shards of totals: was 4 and is 3"),
        ({"output_mode": "append"}, "segment totals: output_mode was 'update' and is 'append'"),
        ({"replicas": 3}, "the number of replicas of totals: was 2 and is 3"),
        ({"ha": "passive"}, "ha of totals: was active and is passive"),
        ({"segment": "sums"}, "the segments: was ['totals'] and is ['sums']"),
        ({"sink_name": "files"}, "the sinks: was ['live'] and is ['files']"),
        ({"sink": JsonLines("out")}, "sink live: its kind was 'Client' and is 'JsonLines'"),
        ({"source": Files("in", format="json", schema=ORDERS)}, "source orders: its kind was 'Push' and is 'Files'"),
        ({"source": Push(f"{ORDERS}, more int")}, "source orders: its schema was"),
        ({"guarantee": "at-most-once"}, "whether guarantee is 'at-most-once': was False and is True"),
        ({"ordering": "leader"}, "the segments with ordering 'leader': was [] and is ['totals']"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_state_hangs_on_is_told_with_what_to_do(changed: dict[str, Any], what: str) -> None:
    problems = conflicts(declare(), declare(**changed), "shop.py", runs_given=True)
    assert any(what in problem.what for problem in problems), problems
    for problem in problems:
        assert "start with the file of the run" in problem.remedy and "--fresh" in problem.remedy
        assert ("unbroken upgrade" in problem.remedy) == ("output_mode" in problem.what)
    back = conflicts(declare(**changed), declare(), "shop.py", runs_given=True)
    assert len(back) == len(problems)


@pytest.mark.parametrize(
    "changed",
    [
        {"nodes": 5},
        {"pulse_max": "3s"},
        {"durability": "memory"},
        {"node_memory": "2g"},
        {"hedge": "900ms"},
        {"order_log": "kafka://k1:9092"},
        {"spark": {"spark.sql.session.timeZone": "UTC"}},
        {"source": Push(ORDERS, max_body_bytes=1_000)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_may_change_with_a_restart(changed: dict[str, Any]) -> None:
    assert told(declare(), declare(**changed)) == []


def test_places_may_move_and_topics_may_not() -> None:
    def kafka(servers: str, topic: str) -> Program:
        return declare(source=Kafka(servers, topic, format="json", schema=ORDERS))

    assert told(kafka("k1:9092", "orders"), kafka("k2:9093", "orders")) == []
    (what,) = told(kafka("k1:9092", "orders"), kafka("k1:9092", "sales"))
    assert what.endswith("source orders: its topics was \"('orders',)\" and is \"('sales',)\"")


def test_a_log_of_orders_and_buckets_stay_where_they_matter() -> None:
    (what,) = told(declare(ordering="leader"), declare(ordering="leader", order_log="kafka://k1:9092"))
    assert "the setting order_log was 'zookeeper' and is 'kafka://k1:9092'" in what
    (what,) = told(declare(ordering="bucket", bucket="1s"), declare(ordering="bucket", bucket="2s"))
    assert "the setting bucket was" in what


def test_the_keys_of_one_shard_split_nothing() -> None:
    assert told(declare(shards=1), declare(shards=1, shard_by=["customer"])) == []


def found(program: Program, *columns: str) -> Program:
    return program.split_by({"totals": {"orders": columns}})


def test_columns_that_spark_finds_count_like_those_that_are_written() -> None:
    run = found(declare(shard_by=[]), "shop")
    assert told(run, found(declare(shard_by=[]), "shop")) == []
    assert told(run, declare(shard_by=["shop"])) == []
    (what,) = told(run, found(declare(shard_by=[]), "customer"))
    assert "was ['shop'] and is ['customer']" in what
    assert told(run, declare(shard_by=["customer"]))


def test_the_code_of_an_upgraded_run_stays_so_only_what_is_written_counts() -> None:
    """Its columns and output modes are those of its own program, whichever file a node is given."""
    run = found(declare(shard_by=[]), "shop")
    assert told(run, found(declare(shard_by=[], output_mode="append"), "customer"), runs_given=False) == []
    assert told(declare(), declare(shard_by=["customer"]), runs_given=False)
    assert told(run, declare(shards=2), runs_given=False)


def test_parts_of_later_generations_are_compared_by_their_segments() -> None:
    flow = Dataflow("shop", nodes=3)
    flow.source("orders", Push(ORDERS))
    flow.segment("orders", name="totals", shards=4, shard_by=["shop"], output_mode="update")(same)
    flow.sink("live", "totals", Client())
    upgraded = declare().followed_by(flow, "shop.py", "", 2, ["totals"])
    assert list(upgraded.topology.segments) == ["totals@2"]
    assert told(upgraded, declare(), runs_given=False) == []
    (what,) = told(upgraded, declare(shard_by=["customer"]), runs_given=False)
    assert "rows of orders are split for totals" in what


def test_state_must_not_reach_further_than_input_is_kept() -> None:
    def reaching(ms: float) -> Program:
        program = declare()
        strategy = replace(program.topology.strategy("totals"), ha=Ha.UPSTREAM, horizon_ms=ms)
        return replace(program, topology=replace(program.topology, strategies={"totals": strategy}))

    assert told(reaching(60_000), reaching(30_000)) == []
    (what,) = told(reaching(60_000), reaching(120_000))
    assert "the state of totals would reach back 2 min, and only 1 min of its input is kept" in what


def test_a_program_that_was_written_down_compares_the_same() -> None:
    run = PROGRAM.decode(PROGRAM.encode(declare()))
    assert told(run, declare()) == [] and told(run, declare(shard_by=["customer"]))


# --- what a node does with it -------------------------------------------------------------------------------


class Documents:
    """A ZooKeeper with documents and their versions; ``interfere`` happens once, after the next look."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[bytes, int]] = {}
        self.forged: set[str] = set()
        self.interfere: Callable[[], None] | None = None
        self.interfere_at_members: Callable[[], None] | None = None

    def create(self, path: str, data: bytes, makepath: bool = False) -> None:
        if path in self.held:
            raise NodeExistsError
        self.held[path] = (data, 0)

    def get(self, path: str) -> tuple[bytes, Any]:
        if path not in self.held:
            raise NoNodeError
        if path in self.forged:
            raise ForgedDocument(path)
        data, version = self.held[path]
        if self.interfere is not None:
            interfere, self.interfere = self.interfere, None
            interfere()
        return data, type("Stat", (), {"version": version})

    def get_children(self, path: str) -> list[str]:
        found = [held.rpartition("/")[2] for held in self.held if held.rpartition("/")[0] == path]
        if self.interfere_at_members is not None:
            interfere, self.interfere_at_members = self.interfere_at_members, None
            interfere()
        return found

    def get_async(self, path: str) -> Any:
        return SimpleNamespace(get=lambda *_, **__: self.held[path])

    def set(self, path: str, data: bytes, version: int = -1) -> None:
        if version not in (-1, self.held[path][1]):
            raise BadVersionError
        self.held[path] = (data, self.held[path][1] + 1)


CODE = "/unbroken/shop/code/1"


@pytest.fixture
def zk() -> Any:
    return Documents()


def test_a_node_with_other_keys_is_refused_and_the_program_of_the_run_stays(zk: Any) -> None:
    write_first_program(zk, "shop", declare(), "r1")
    before = zk.held[CODE]
    with pytest.raises(FlowError, match=r"shop\.py: it cannot continue the run: the columns .* is \['customer'\]"):
        write_first_program(zk, "shop", declare(shard_by=["customer"]), "r1")
    assert zk.held[CODE] == before
    with pytest.raises(FlowError, match="split for totals"):
        refuse_other_program(program_of_run(zk, "shop", 1, "r1"), declare(shard_by=["customer"]))


def test_a_restart_with_other_code_replaces_the_program(zk: Any) -> None:
    write_first_program(zk, "shop", declare(), "r1")
    edited = replace(declare(pulse_max="3s"), text="other code")
    write_first_program(zk, "shop", edited, "r1")
    assert program_of_run(zk, "shop", 1, "r1") == edited


def test_what_another_run_has_left_does_not_count(zk: Any) -> None:
    write_first_program(zk, "shop", declare(), "r1")
    assert program_of_run(zk, "shop", 1, "r2") is None
    write_first_program(zk, "shop", declare(shards=2), "r2")
    assert program_of_run(zk, "shop", 1, "r2") == declare(shards=2)


def test_of_nodes_that_begin_with_different_files_the_first_decides(zk: Any) -> None:
    """The other one is compared even if the document changes while it looks."""
    write_first_program(zk, "shop", declare(), "r0")
    zk.interfere = lambda: write_first_program(zk, "shop", declare(), "r1")
    with pytest.raises(FlowError, match="split for totals"):
        write_first_program(zk, "shop", declare(shard_by=["customer"]), "r1")


def test_a_forged_program_is_replaced_by_that_of_the_operator(zk: Any) -> None:
    write_first_program(zk, "shop", declare(shards=2), "r1")
    zk.forged.add(CODE)
    assert program_of_run(zk, "shop", 1, "r1") is None
    write_first_program(zk, "shop", declare(), "r1")
    zk.forged.clear()
    assert program_of_run(zk, "shop", 1, "r1") == declare()


def test_the_first_node_finds_nothing_to_compare_with(zk: Any) -> None:
    assert program_of_run(zk, "shop", 1, "r1") is None
    refuse_other_program(None, declare())


def test_the_disk_of_a_node_knows_the_program_if_zookeeper_has_lost_it(zk: Any, tmp_path: Path) -> None:
    dirs = ReplicaDirs(tmp_path)
    dirs.identity()
    decision = first_layout(declare().topology, 3, {"a": "d1", "b": "d2", "c": "d3"}, {}, "r1")
    assert isinstance(decision, Decision)
    copy = CoordinationCopy(dirs)
    copy.keep_layout(decision.layout)
    copy.keep_program(declare())
    named: Any = SimpleNamespace(
        name="shop", settings=SimpleNamespace(session_timeout=0), where="shop.py:1", segments={}
    )
    _refuse_other_run(zk, named, declare(shard_by=["customer"]), dirs, "a")  # the disk is that of no run
    dirs.belong(RunIdentity("r1", frozenset()))
    _refuse_other_run(zk, named, declare(pulse_max="3s"), dirs, "a")
    with pytest.raises(FlowError, match="split for totals"):
        _refuse_other_run(zk, named, declare(shard_by=["customer"]), dirs, "a")
    zk.create("/unbroken/shop/layout", LAYOUT.encode(decision.layout))
    with pytest.raises(FlowError, match="split for totals"):
        _refuse_other_run(zk, named, declare(shard_by=["customer"]), dirs, "a")
    write_first_program(zk, "shop", declare(shard_by=["customer"]), "r1")
    _refuse_other_run(zk, named, declare(shard_by=["customer"]), dirs, "a")  # the program of the run comes first


SHOP = """
from unbroken import Client, Dataflow, Push

LEAST = 5
flow = Dataflow("shop", nodes=2)
flow.source("orders", Push("shop string, price double"))


@flow.segment("orders", shard_by=["shop"], shards=2)
def totals(orders):
    return orders.where(f"price > {LEAST}")


@flow.segment("totals")
def large(totals):
    return totals.where("price > 100")


flow.sink("live", "large", Client())
"""


def shop(old: str = "", new: str = "") -> tuple[Dataflow, Program]:
    assert not old or SHOP.count(old) == 1
    text = SHOP.replace(old, new) if old else SHOP
    flow = load_text(Path("shop.py"), text, 1)
    return flow, Program.first(flow, build_topology(flow), "shop.py", text)


EDITS = {
    "a segment": ("price > 100", "price > 99", "the code of large"),
    "a value": ("LEAST = 5", "LEAST = 6", "statements outside of its segments"),
    "an imported name": ("import Client, Dataflow, Push", "import *", "statements outside of its segments"),
}


def alive(zk: Documents, node: str, flow: Dataflow, given: Program) -> None:
    """A node registers with the code of its file."""
    member = Member(node, f"{node}:1", "", "here", 1, node, run="r1", code=code_digest(flow, given.text))
    zk.held[f"/unbroken/shop/members/{node}"] = (member.to_bytes(), 0)


def begin(zk: Documents, node: str, flow: Dataflow, given: Program) -> None:
    """What a node does with its code when it takes its place in run r1."""
    alive(zk, node, flow, given)
    client: Any = zk
    write_first_program(client, "shop", given, "r1", lambda known: refuse_other_code(client, flow, known, given, node))


@pytest.mark.parametrize(("old", "new", "what"), EDITS.values(), ids=EDITS)
def test_other_code_than_that_of_a_node_that_runs_is_refused(zk: Any, old: str, new: str, what: str) -> None:
    begin(zk, "a", *shop())
    with pytest.raises(FlowError) as refused:
        begin(zk, "b", *shop(old, new))
    (problem,) = refused.value.problems
    assert what in problem.what and problem.what.endswith("not the same as on a")
    assert "unbroken upgrade" in problem.remedy and "stop all nodes" in problem.remedy
    assert program_of_run(zk, "shop", 1, "r1") == shop()[1], "the code of the run stays"
    with pytest.raises(FlowError, match=what):
        flow, given = shop(old, new)
        refuse_other_code(zk, flow, program_of_run(zk, "shop", 1, "r1"), given, "b")


def test_comments_are_no_other_code(zk: Any) -> None:
    begin(zk, "a", *shop())
    begin(zk, "b", *shop("LEAST = 5", "LEAST = 5  # euros"))
    with pytest.raises(FlowError, match="not the same as on a, b"):
        begin(zk, "c", *shop("LEAST = 5", "LEAST = 6"))


def test_a_flow_that_is_restarted_as_a_whole_may_have_other_code(zk: Any) -> None:
    """Nodes that have not written their code yet are told from those that run the former one by their entries."""
    begin(zk, "a", *shop())
    begin(zk, "b", *shop())
    edited = shop("LEAST = 5", "LEAST = 6")
    alive(zk, "a", *edited)
    begin(zk, "b", *edited)
    begin(zk, "a", *edited)
    assert program_of_run(zk, "shop", 1, "r1") == edited[1]
    with pytest.raises(FlowError, match="statements outside"):
        begin(zk, "c", *shop())


def test_the_entry_of_a_node_that_was_killed_is_waited_for(zk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(zk, "a", *shop())
    flow, given = shop("LEAST = 5", "LEAST = 6")
    looks: list[float] = []

    def vanish(seconds: float) -> None:
        looks.append(seconds)
        zk.held.pop("/unbroken/shop/members/a", None)

    monkeypatch.setattr("unbroken.node.replicas.programs.time.sleep", vanish)
    refuse_other_code(zk, flow, program_of_run(zk, "shop", 1, "r1"), given, "b", wait_s=60)
    assert len(looks) == 1


@pytest.mark.parametrize("edited", ["a", "b"])
@pytest.mark.parametrize("at", ["document", "members"])
def test_of_two_nodes_that_begin_at_once_with_other_code_one_is_refused(zk: Any, edited: str, at: str) -> None:
    """One begins when the other has looked at the document of the code or at the members, and has not written yet."""
    code = {name: shop("LEAST = 5", "LEAST = 6") if name == edited else shop() for name in "ab"}
    begin(zk, "c", *shop())
    zk.held.pop("/unbroken/shop/members/c")  # it has ended, and its code is that of the run
    refused: list[str] = []

    def attempt(name: str) -> None:
        try:
            begin(zk, name, *code[name])
        except FlowError:
            refused.append(name)

    if at == "document":
        zk.interfere = lambda: attempt("b")
    else:
        zk.interfere_at_members = lambda: attempt("b")
    attempt("a")
    assert zk.interfere is None and zk.interfere_at_members is None
    (winner,) = {"a", "b"} - set(refused)
    assert len(refused) == 1 and program_of_run(zk, "shop", 1, "r1") == code[winner][1]


def test_the_code_of_an_upgraded_run_does_not_come_from_the_file(zk: Any) -> None:
    flow, given = shop("LEAST = 5", "LEAST = 6")
    alive(zk, "a", *shop())
    refuse_other_code(zk, flow, replace(shop()[1], generation=2), given, "b")


def test_generators_may_make_more_rows() -> None:
    def made(rate: float) -> Program:
        return declare(source=Generator(rate=rate), shard_by=["id"], shards=1)

    assert told(made(10), made(20)) == []
