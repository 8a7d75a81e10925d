"""Generations of the user's code: what an edited file replaces, what it must not change, what runs as what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unbroken import Client, Dataflow, Generator
from unbroken.flow.loading import load_text
from unbroken.flow.plan import build_topology
from unbroken.flow.program import (
    PROGRAM,
    Consumer,
    Declared,
    Program,
    consumers,
    declares_the_same,
    differences,
    merged,
    replaced_segments,
)
from unbroken.protocol.values.ids import ShardId, StreamId

TEXT = '''"""A flow."""

from unbroken import Client, Dataflow, Generator

LIMIT = 10


def rows(start, stop, seed):
    return None


flow = Dataflow("shop", nodes=2)
flow.source("orders", Generator(rows, schema="k int, v long", rate=None, batch_rows=30, limit=LIMIT))


@flow.segment("orders", shard_by=["k"], shards=2)
def clean(orders):
    return orders


@flow.segment("clean")
def sums(clean):
    return clean


@flow.segment("clean")
def peaks(clean):
    return clean.where("v > 5")


flow.sink("totals", "sums", Client())
flow.sink("alarms", "peaks", Client())
'''


def flow_of(text: str = TEXT, generation: int = 1) -> Dataflow:
    return load_text(Path("shop.py"), text, generation)


def edited(before: str, after: str) -> str:
    assert TEXT.count(before) == 1
    return TEXT.replace(before, after)


# --- what an edited file replaces ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "replaced"),
    [
        ("LIMIT = 10", "LIMIT = 10  # enough", []),
        ("    return orders", "    # as they come\n\n    return orders", []),
        ('"""A flow."""', '"""A better flow."""', []),
        ('where("v > 5")', 'where("v > 6")', ["peaks"]),
        ("    return orders", "    return orders.distinct()", ["clean", "sums", "peaks"]),
        ("LIMIT = 10", "LIMIT = 20", ["clean", "sums", "peaks"]),
        ("LIMIT = 10", "LIMIT = 10\n\n\ndef helper():\n    return 1", ["clean", "sums", "peaks"]),
    ],
    ids=["comment", "blank lines", "docstring", "last", "first and all behind it", "shared value", "shared function"],
)
def test_segments_with_other_code_are_replaced_and_all_that_read_from_them(
    before: str, after: str, replaced: list[str]
) -> None:
    assert replaced_segments(flow_of(), TEXT, edited(before, after)) == replaced


def test_a_decorator_is_part_of_the_code() -> None:
    after = edited('@flow.segment("clean")\ndef sums', '@flow.segment("clean", replicas=2)\ndef sums')
    assert replaced_segments(flow_of(), TEXT, after) == ["sums"]


# --- what it must not change --------------------------------------------------------------------------------


def rows(start: int, stop: int, seed: int) -> Any:
    raise NotImplementedError


def other_rows(start: int, stop: int, seed: int) -> Any:
    raise NotImplementedError


def declare(
    *,
    name: str = "shop",
    pulse: int = 500,
    make: Callable[..., Any] = rows,
    source: str = "orders",
    segment: str = "sums",
    sink: str = "out",
    taken: str | None = None,
    shards: int = 2,
    replicas: int = 2,
    keys: list[str] | None = None,
) -> Dataflow:
    flow = Dataflow(name, nodes=2, pulse_max=pulse)
    flow.source(source, Generator(make, schema="k int, v long", rate=None, batch_rows=30, limit=10))
    flow.segment(source, name="clean", shard_by=keys or ["k"], shards=shards, replicas=replicas)(lambda frame: frame)
    flow.segment("clean", name=segment)(lambda frame: frame)
    flow.sink(sink, taken or segment, Client())
    return flow


def test_code_may_change() -> None:
    assert differences(Declared.of(declare()), declare()) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": "store"}, "the name of the dataflow was 'shop'"),
        ({"pulse": 700}, "the setting pulse_max was 500"),
        ({"source": "sales"}, "the list of sources was ['orders'] and would become ['sales']"),
        ({"segment": "totals"}, "the list of segments was ['clean', 'sums']"),
        ({"sink": "elsewhere"}, "the list of sinks was ['out']"),
        ({"make": other_rows}, "other_rows"),
        ({"taken": "clean"}, "the segment it takes was 'sums' and would become 'clean'"),
        ({"shards": 3}, "shards was 2 and would become 3"),
        ({"replicas": 1}, "replicas was 2 and would become 1"),
        ({"keys": ["v"]}, "shard_by was {'orders': ('k',)}"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_state_units_and_sinks_hang_on_must_not_change(changed: dict[str, Any], told: str) -> None:
    problems = [str(problem) for problem in differences(Declared.of(declare()), declare(**changed))]
    assert any(told in problem for problem in problems), problems
    assert all("fresh start" in problem for problem in problems)


def test_the_keys_of_a_segment_with_one_shard_do_not_matter() -> None:
    assert differences(Declared.of(declare(shards=1)), declare(shards=1, keys=["v"])) == []


def test_a_declaration_survives_being_written_down() -> None:
    program = Program.first(flow_of(), build_topology(flow_of()), "shop.py", TEXT)
    again = PROGRAM.decode(PROGRAM.encode(program))
    assert again == program and again.declared is not None and differences(again.declared, flow_of()) == []


def test_a_text_that_changes_what_segments_do_declares_the_same() -> None:
    assert declares_the_same(TEXT, edited('where("v > 5")', 'where("v > 6")'), flow_of())
    for before, after in (
        ("LIMIT = 10", "LIMIT = 11"),
        ("nodes=2", "nodes=3"),
        ('@flow.segment("orders", shard_by=["k"], shards=2)', '@flow.segment("orders", shard_by=["k"], shards=3)'),
        ("    return None", "    return 1"),
        ("import Client,", "import (Client,"),
    ):
        assert not declares_the_same(TEXT, edited(before, after), flow_of()), after


# --- what runs as what --------------------------------------------------------------------------------------


def first_program() -> Program:
    return Program.first(flow_of(), build_topology(flow_of()), "shop.py", TEXT)


def second_program(*replaced: str, generation: int = 2) -> Program:
    return first_program().followed_by(flow_of(generation=generation), "shop.py", TEXT, generation, replaced)


def test_replaced_segments_are_parts_of_their_own() -> None:
    program = second_program("peaks")
    assert list(program.topology.segments) == ["clean", "sums", "peaks@2"]
    assert (program.part("peaks"), program.part("sums"), program.part("orders")) == ("peaks@2", "sums", "orders")
    assert ("clean", "peaks@2") in program.topology.edges and ("peaks@2", "alarms") in program.topology.edges
    assert program.topology.replicas["peaks@2"] == program.topology.replicas["sums"]


def test_a_part_keeps_its_name_until_its_code_changes_again() -> None:
    second = second_program("peaks")
    third = second.followed_by(flow_of(generation=3), "shop.py", TEXT, 3, ["sums"])
    assert list(third.topology.segments) == ["clean", "sums@3", "peaks@2"]
    assert merged([second, third]).replaces == {"sums@3": "sums"}
    fourth = third.followed_by(flow_of(generation=4), "shop.py", TEXT, 4, ["peaks"])
    assert merged([third, fourth]).replaces == {"peaks@4": "peaks@2"}


def test_two_programs_run_beside_each_other() -> None:
    topology = merged([first_program(), second_program("clean", "sums", "peaks")])
    assert topology.replaces == {"clean@2": "clean", "sums@2": "sums", "peaks@2": "peaks"}
    assert list(topology.segments) == ["clean", "sums", "peaks", "clean@2", "sums@2", "peaks@2"]
    assert topology.predecessor(ShardId("clean@2", 1)) == ShardId("clean", 1)
    assert topology.predecessor(ShardId("clean", 1)) is None and topology.successor("sums") == "sums@2"
    assert topology.has(StreamId(ShardId("clean@2", 0), ShardId("sums@2", 0)))
    assert not topology.has(StreamId(ShardId("clean", 0), ShardId("sums@2", 0))), "generations do not mix"
    assert [topology.counts(part, 1) for part in ("sums", "sums@2")] == [True, False]
    assert [topology.counts(part, 2) for part in ("sums", "sums@2")] == [False, True]


def test_a_program_alone_is_what_it_declares() -> None:
    assert merged([first_program()]) == first_program().topology and not merged([second_program("peaks")]).replaces


def test_a_program_survives_being_written_down() -> None:
    program = second_program("clean", "sums", "peaks")
    assert PROGRAM.decode(PROGRAM.encode(program)) == program


def test_rows_are_split_for_both_generations_of_a_reader() -> None:
    both = [first_program(), second_program("clean", "sums", "peaks")]
    assert consumers(both, "orders") == (Consumer("clean", ("k",), 2), Consumer("clean@2", ("k",), 2))
    assert consumers(both, "clean@2") == (Consumer("sums@2", (), 1), Consumer("peaks@2", (), 1))
    assert consumers(both, "sums@2") == (Consumer("totals", (), 1),)
    assert consumers(both[1:], "orders") == (Consumer("clean@2", ("k",), 2),)


# --- columns that the file does not name ----------------------------------------------------------------------


def test_columns_that_were_derived_hold_for_the_programs_that_follow() -> None:
    text = edited('shard_by=["k"], ', "")
    flow = flow_of(text)
    first = Program.first(flow, build_topology(flow), "shop.py", text)
    assert consumers([first], "orders") == (Consumer("clean", (), 2),)
    split = first.split_by({"clean": {"orders": ("k",)}})
    assert consumers([split], "orders") == (Consumer("clean", ("k",), 2),)
    assert split.shard_by(flow.segments["clean"]) == {"orders": ("k",)}
    assert split.shard_by(flow.segments["sums"]) == {}
    assert PROGRAM.decode(PROGRAM.encode(split)) == split

    after = text.replace("    return orders", "    return orders.where('v > 1')")
    following = split.followed_by(flow_of(after, 2), "shop.py", after, 2, ["clean", "sums", "peaks"])
    assert consumers([following], "orders") == (Consumer("clean@2", ("k",), 2),)
    assert following.shard_by(flow.segments["clean"]) == {"orders": ("k",)}
