"""Which operators an upgrade replaces: those that mean something else, and all that read from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken.flow.loading import load_text
from unbroken.flow.program import Declared, differences, replaced_segments
from unit.flow.network.written import load, network

OPERATORS = """\
    slow: {input: clicks, filter: {field: ms, is: ">", value: 100}}
    users: {input: views, map: {user: id, at: seen}}
    hosts: {input: slow, map: {user: user, host: url}}
    both: {input: [hosts, users], join: {on: [user]}}
    total: {input: slow, count: {}}
"""
BEFORE = network(OPERATORS)
ALL = ["slow", "users", "hosts", "both", "total"]


def replaced(before: str, after: str) -> list[str]:
    old, new = load(before), load(after, generation=2)
    assert differences(Declared.of(old), new) == []
    return replaced_segments(new, before, after)


def changed(old: str, new: str) -> str:
    assert BEFORE.count(old) == 1
    return BEFORE.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("value: 100", "value: 200", ["slow", "hosts", "both", "total"]),
        ("host: url", "host: upper(url)", ["hosts", "both"]),
        ("{user: user, host: url}", "{host: url, user: user}", ["hosts", "both"]),
        ("count: {}", "count: {as: n}", ["total"]),
        ("count: {}", "aggregate: {values: {count: count(*)}}", ["total"]),
        ("count: {}", "count: {}, output_mode: append", ["total"]),
        ("on: [user]", "on: [user], kind: semi", ["both"]),
        ("name: small", "settings: {}\nname: small", ALL),
    ],
)
def test_what_means_something_else_is_replaced_with_what_reads_it(old: str, new: str, wanted: list[str]) -> None:
    assert replaced(BEFORE, changed(old, new)) == wanted


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: small", "# a comment\nname:   small  # another"),
        ('{field: ms, is: ">", value: 100}', "{value: 100, is: '>', field: ms}"),
        ("count: {}", "count:"),
        ("count: {}", "count: {by: []}"),
        ("on: [user]", "on: user"),
        ("on: [user]", "on: {user: user}, kind: inner"),
        ("{input: slow, count: {}}", "\n      input: [slow]\n      count: {}\n"),
    ],
)
def test_what_means_the_same_is_not_replaced(old: str, new: str) -> None:
    assert replaced(BEFORE, changed(old, new)) == []


def test_operators_may_change_places() -> None:
    lines = OPERATORS.splitlines(keepends=True)
    sinks = BEFORE.partition("sinks:\n")[2]
    assert replaced(BEFORE, network("".join(reversed(lines)), sinks)) == []


def test_what_an_upgrade_must_not_change() -> None:
    after = changed("{input: slow, count: {}}", "{input: clicks, count: {by: user}, shards: 2}")
    problems = differences(Declared.of(load(BEFORE)), load(after))
    assert [(p.where, p.what.partition(" was")[0]) for p in problems] == [
        ("net.yaml:10, operator total", "inputs"),
        ("net.yaml:10, operator total", "shards"),
    ]


def test_the_bound_on_the_delay_stays_however_it_is_written() -> None:
    before = changed("{input: slow, count: {}}", "{input: slow, count: {}, availability: {max_delay: 3s}}")
    same = before.replace("{max_delay: 3s}", "{alpha: 0.9, max_delay: 3s, reconcile: fork}")
    assert replaced(before, same) == []
    other = before.replace("{max_delay: 3s}", "{max_delay: 3s, reconcile: redo}")
    (problem,) = differences(Declared.of(load(before)), load(other))
    assert problem.where == "net.yaml:10, operator total" and problem.what.startswith("availability was")


PYTHON = """
from unbroken import Client, Dataflow, Push

flow = Dataflow("small")
flow.source("clicks", Push("user string, url string, ms long, at timestamp"))
flow.source("views", Push("id string, seen timestamp"))


@flow.segment("clicks", "views")
def both(clicks, views):
    return clicks


flow.sink("seen-both", both, Client())
"""


def test_a_network_may_follow_python_and_python_a_network() -> None:
    network_text = network("both: {input: [clicks, views], join: {on: {user: id}}}")
    in_yaml, in_python = load(network_text), load_text(Path("flow.py"), PYTHON)
    assert differences(Declared.of(in_yaml), in_python) == []
    assert replaced_segments(in_yaml, PYTHON, network_text) == ["both"]
    assert replaced_segments(in_python, network_text, PYTHON) == ["both"]
    assert replaced_segments(in_python, PYTHON, PYTHON + "# more\n") == []
