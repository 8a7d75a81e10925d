"""What a network becomes: the same dataflow that Python would declare, with defaults that follow from the operators."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from unbroken import Availability, Client, Console, Dataflow, Files, JsonLines, Parquet, Push
from unbroken.errors import FlowError
from unbroken.flow.dataflow import Segment
from unbroken.flow.network.mistakes import keys_of
from unbroken.flow.network.parts import OPTIONS, SINK_OPTIONS, SOURCE_OPTIONS, NetworkKeys
from unbroken.flow.plan import build_topology
from unbroken.node.policies.bucket.rule import rules_of
from unbroken.protocol.values.strategy import Ha, Strategy
from unit.flow.network.written import FILE, SOURCES, load, network

JOIN = "join: {on: {user: id}}"


def segment(operator: str) -> Segment:
    """The segment of one operator, named x."""
    return load(network(f"x: {operator}")).segments["x"]


def test_parts_and_where_they_are() -> None:
    flow = load(network(f"both: {{input: [clicks, views], {JOIN}}}", "out: {input: both, client: {}}"))
    assert flow.name == "small" and flow.where == "net.yaml:1"
    assert {name: part.where for name, part in flow.sources.items()} == {
        "clicks": "net.yaml:3, source clicks",
        "views": "net.yaml:4, source views",
    }
    assert flow.segments["both"].where == "net.yaml:6, operator both"
    assert flow.segments["both"].inputs == ("clicks", "views")
    assert flow.sinks["out"].where == "net.yaml:8, sink out" and flow.sinks["out"].input == "both"
    assert build_topology(flow).segments == {"both": 1}


def test_settings_and_replicas() -> None:
    head = SOURCES + "settings: {nodes: 5, pulse_min: 300ms, spark: {a.b: c}}\nreplicas: 3\n"
    operators = "one: {input: clicks, dup: {}}\ntwo: {input: views, dup: {}, replicas: 1}"
    flow = load(network(operators, head=head))
    assert flow.settings == Dataflow("x", nodes=5, pulse_min="300ms", spark={"a.b": "c"}).settings
    assert [part.redundancy.backups for part in flow.segments.values()] == [2, 0]
    flow = load(network(operators))
    assert flow.settings == Dataflow("x").settings and flow.segments["one"].redundancy.backups == 1


def test_every_operator_says_how_it_is_kept_available() -> None:
    operators = """\
        one: {input: clicks, dup: {}, replicas: 3, routing: random}
        two: {input: views, dup: {}, ha: passive, checkpoint_every: 4}
        three: {input: views, dup: {}, ha: upstream, k_safety: 2, state_horizon: 10s}
    """
    topology = build_topology(load(network(operators)))
    assert topology.segments == {"one": 3, "two": 1, "three": 1}
    assert topology.strategy("one") == Strategy(Ha.UPSTREAM, 1, shares=True)
    assert topology.strategy("two") == Strategy(Ha.PASSIVE, 1, every=4)
    assert topology.strategy("three") == Strategy(Ha.UPSTREAM, 2, horizon_ms=10_000)
    assert topology.replicas["one"] == topology.replicas["two"] == topology.replicas["three"] == 1


def test_every_operator_says_how_long_results_may_be_delayed() -> None:
    operators = """\
        one: {input: clicks, dup: {}, availability: {max_delay: 3s, during_failure: delay, reconcile: redo}}
        two: {input: views, dup: {}, availability: wait}
        three: {input: views, dup: {}}
    """
    bounds = {name: part.availability for name, part in load(network(operators)).segments.items()}
    assert bounds == {
        "one": Availability("3s", during_failure="delay", reconcile="redo"),
        "two": None,
        "three": None,
    }
    head = SOURCES + "availability: {max_delay: 2000, alpha: 0.5}\n"
    assert set(build_topology(load(network(operators, head=head))).availability) == {"one", "three"}
    assert load(network(operators, head=head)).segments["three"].availability == Availability(2_000, 0.5)


def test_a_bound_for_all_operators_is_reported_with_its_line() -> None:
    operators = "one: {input: [clicks, views], union: {}}"
    with pytest.raises(FlowError) as refused:
        load(network(operators, head=SOURCES + "availability: {max_delay: 3s, alpha: [1]}\n"))
    (problem,) = refused.value.problems
    assert problem.where == "net.yaml:5" and "availability.alpha must be a number, got [1]" in problem.what
    with pytest.raises(FlowError) as refused:
        build_topology(load(network(operators, head=SOURCES + "availability: {max_delay: 3ms}\n")))
    (problem,) = refused.value.problems
    assert problem.where == "net.yaml:1" and "max_delay='3ms' is too short" in problem.what


TIMED = """\
name: timed
ordering: bucket
settings: {nodes: 2, bucket: 1s, bucket_origin: 2026-03-01T12:00:00Z}
sources:
  doors: {push: {schema: "door string, at timestamp", heartbeat: 2s}, event_time: at, disorder: 2 seconds}
  badges: {push: {schema: "badge string, read_at timestamp"}, event_time: read_at}
"""
BOTH = "both: {input: [doors, badges], join: {on: {door: badge}}}"


def test_units_may_be_buckets_of_event_time() -> None:
    flow = load(network(BOTH, head=TIMED))
    declared = Dataflow("timed", ordering="bucket", nodes=2, bucket="1s", bucket_origin="2026-03-01T12:00:00Z")
    assert flow.ordering == flow.segments["both"].ordering == "bucket" and flow.settings == declared.settings
    assert {name: (part.event_time, part.disorder) for name, part in flow.sources.items()} == {
        "doors": ("at", "2 seconds"),
        "badges": ("read_at", 0),
    }
    assert build_topology(flow).bucketed
    declared.source("doors", flow.sources["doors"].connector, event_time="at", disorder="2s")
    declared.source("badges", flow.sources["badges"].connector, event_time="read_at")
    assert rules_of(flow) == rules_of(declared)


def test_operators_say_who_orders_their_input_and_the_file_does_for_the_others() -> None:
    operators = "one: {input: clicks, dup: {}, ordering: pulse}\ntwo: {input: views, dup: {}}"
    assert build_topology(load(network(operators))).led == frozenset()
    head = SOURCES + "ordering: leader\nsettings: {order_log: kafka://k1:9092}\n"
    flow = load(network(operators, head=head))
    assert build_topology(flow).led == {"two"} and flow.settings.order_log == "kafka://k1:9092"
    operators = operators.replace("pulse", "leader")
    assert build_topology(load(network(operators))).led == {"one"}


def test_the_file_says_how_all_operators_are_kept_available() -> None:
    operators = "one: {input: clicks, dup: {}, ha: active}\ntwo: {input: views, dup: {}}"
    topology = build_topology(load(network(operators, head=SOURCES + "ha: passive\n")))
    assert (topology.strategy("one").ha, topology.strategy("two").ha) == (Ha.ACTIVE, Ha.PASSIVE)


def test_what_makes_no_sense_is_reported_with_its_line() -> None:
    operators = """\
        one: {input: clicks, dup: {}, ha: none, k_safety: 1}
        two: {input: views, dup: {}, routing: primary, replicas: 1}
    """
    with pytest.raises(FlowError) as refused:
        build_topology(load(network(operators)))
    lines = [str(problem) for problem in refused.value.problems]
    assert any("net.yaml:6, operator one" in line and "ha='none' keeps no backups" in line for line in lines)
    assert any("net.yaml:7, operator two" in line and "with one replica shares nothing" in line for line in lines)
    with pytest.raises(FlowError, match="routing: random parts rows that belong together in this count"):
        load(network("one: {input: clicks, count: {by: user}, replicas: 2, routing: random}"))


def test_sources_and_sinks_are_made_of_the_connectors_classes() -> None:
    head = """\
name: parts
sources:
  files: {files: {path: in/, format: csv, schema: "a int", header: false, settle_ms: 5}}
  push: {push: {schema: "a int", max_body_bytes: 10}}
"""
    sinks = """\
        parquet: {input: all, parquet: {path: out/}}
        lines: {input: all, jsonlines: {path: lines}}
        screen: {input: all, console: {limit: 3}}
        quiet: {input: all, console: }
        live: {input: all, client: {}}
    """
    flow = load(network("all: {input: [files, push], union: {}}", sinks, head))
    files, push = (source.connector for source in flow.sources.values())
    assert isinstance(files, Files) and isinstance(push, Push)
    assert vars(files) == vars(Files("in/", format="csv", schema="a int", header=False, settle_ms=5))
    assert vars(push) == vars(Push("a int", max_body_bytes=10))
    made = [sink.connector for sink in flow.sinks.values()]
    assert [type(sink) for sink in made] == [Parquet, JsonLines, Console, Console, Client]
    assert [getattr(sink, "path", None) for sink in made[:2]] == [Path("out/"), Path("lines")]
    assert [getattr(sink, "limit", None) for sink in made[2:4]] == [3, 20]


def test_a_sink_says_what_happens_to_units_that_it_refuses() -> None:
    head = 'name: parts\nsources:\n  push: {push: {schema: "a int"}}\n'
    sinks = """\
        stops: {input: all, jsonlines: {path: lines}, on_refusal: stop}
        skips: {input: all, client: {}, on_refusal: dead-letter}
        other: {input: all, client: {}}
    """
    flow = load(network("all: {input: push, dup: {}}", sinks, head))
    assert {name: sink.on_refusal for name, sink in flow.sinks.items()} == {
        "stops": "stop",
        "skips": "dead-letter",
        "other": "dead-letter",
    }


@pytest.mark.parametrize(
    ("sink", "what"),
    [
        ("{input: all, client: {}, on_refusal: halt}", "on_refusal is 'halt'"),
        ("{input: all, client: {}, on_refusal: 3}", "on_refusal"),
        ("{input: all, jsonlines: {path: out, on_refusal: stop}}", "write it beside jsonlines"),
        ("{input: all, client: {}, on_refused: stop}", "'on_refusal'"),
    ],
)
def test_a_mistake_in_what_a_sink_refuses_is_reported_with_its_line(sink: str, what: str) -> None:
    head = 'name: parts\nsources:\n  push: {push: {schema: "a int"}}\n'
    with pytest.raises(FlowError) as error:
        load(network("all: {input: push, dup: {}}", f"out: {sink}", head))
    assert what in str(error.value) and "sink out" in str(error.value)


def test_operators_may_stand_before_what_they_read() -> None:
    operators = "last: {input: middle, dup: {}}\nmiddle: {input: first, dup: {}}\nfirst: {input: clicks, dup: {}}"
    flow = load(network(f"{operators}\nother: {{input: views, dup: {{}}}}"))
    assert list(build_topology(flow).segments) in (
        ["first", "other", "middle", "last"],
        ["other", "first", "middle", "last"],
    )


@pytest.mark.parametrize(
    ("operator", "mode"),
    [
        ("{input: clicks, filter: {field: ms, is: '>', value: 1}}", "append"),
        ("{input: clicks, map: {a: 1}}", "append"),
        ("{input: [clicks, views], union: {}}", "append"),
        (f"{{input: [clicks, views], {JOIN}}}", "append"),
        ("{input: clicks, uniq: {field: user}}", "append"),
        ("{input: clicks, dup: {}}", "append"),
        ("{input: clicks, count: {}}", "update"),
        ("{input: clicks, count: {}, output_mode: append}", "append"),
        ("{input: clicks, aggregate: {values: {n: count(*)}}}", "update"),
        ("{input: clicks, aggregate: {window: {time: at, size: 1s}, values: {n: count(*)}}}", "update"),
        ("{input: clicks, aggregate: {window: {time: at, size: 1s}, watermark: 0s, values: {n: count(*)}}}", "append"),
        (
            "{input: clicks, aggregate: {window: {time: at, size: 1s}, watermark: 1s, values: {n: 1}}, "
            "output_mode: update}",
            "update",
        ),
    ],
)
def test_output_modes(operator: str, mode: str) -> None:
    assert segment(operator).output_mode == mode


@pytest.mark.parametrize(
    ("operator", "keys"),
    [
        ("{input: clicks, count: {by: [user, url]}, shards: 2}", {"clicks": ("user", "url")}),
        ("{input: clicks, count: {by: [user, url]}, shards: 2, shard_by: url}", {"clicks": ("url",)}),
        ("{input: clicks, count: {by: user}, shards: 2, shard_by: {clicks: USER}}", {"clicks": ("USER",)}),
        ("{input: clicks, aggregate: {by: user, values: {n: 1}}, shards: 2}", {"clicks": ("user",)}),
        ("{input: clicks, uniq: {field: user}, shards: 2}", {"clicks": ("user",)}),
        ("{input: clicks, uniq: {}, shards: 2, shard_by: [ms]}", {"clicks": ("ms",)}),
        (f"{{input: [clicks, views], {JOIN}, shards: 2}}", {"clicks": ("user",), "views": ("id",)}),
        ("{input: clicks, dup: {}, shards: 2, shard_by: user}", {"clicks": ("user",)}),
        ("{input: clicks, count: {by: [user, url]}}", {}),
        ("{input: clicks, dup: {}}", {}),
    ],
)
def test_rows_that_belong_together_are_kept_together(operator: str, keys: Any) -> None:
    assert segment(operator).shard_by == keys


def test_all_options_of_a_segment_are_passed_on() -> None:
    given = segment(
        "{input: clicks, dup: {}, shards: 3, shard_by: [user], replicas: 1, output_mode: update, cut_time: t}"
    )
    declared = Dataflow("x")
    wanted = declared.segment(
        "clicks", name="x", shards=3, shard_by=["user"], replicas=1, output_mode="update", cut_time="t"
    )(given.function)
    assert {**vars(given), "where": ""} == {**vars(wanted), "where": ""}


def test_a_network_takes_every_option_that_python_takes() -> None:
    parameters = inspect.signature(Dataflow.segment).parameters
    assert keys_of(OPTIONS) == [name for name in parameters if name not in ("self", "inputs", "name")]
    parameters = inspect.signature(Dataflow.source).parameters
    assert keys_of(SOURCE_OPTIONS) == [name for name in parameters if name not in ("self", "name", "connector")]
    parameters = inspect.signature(Dataflow.sink).parameters
    assert keys_of(SINK_OPTIONS) == [
        name for name in parameters if name not in ("self", "name", "segment", "connector")
    ]
    parameters = inspect.signature(Dataflow).parameters
    assert set(keys_of(NetworkKeys)) == {*parameters, "sources", "operators", "sinks"}


def test_nothing_behind_the_name_of_an_operator_means_no_parameters() -> None:
    assert segment("{input: clicks, dup: }").inputs == ("clicks",)
    assert segment("{input: clicks, count: }").output_mode == "update"


def test_aliases_may_be_used() -> None:
    head = "name: x\nsources:\n  a: {push: &rows {schema: 'k int'}}\n  b: {push: *rows}\n"
    flow = load(network("x: {input: [a, b], union: {}}", head=head))
    assert flow.sources["a"].connector.schema == flow.sources["b"].connector.schema


# --- functions that are written in Python ---------------------------------------------------------------------


def custom(tmp_path: Path, parameters: str, generation: int = 1) -> Any:
    text = network(f"x: {{input: [clicks, views], custom: {{{parameters}}}}}")
    return load(text, tmp_path / FILE, generation).segments["x"].function


def test_a_function_in_a_file_beside_the_network(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "helper_of_network.py").write_text("FACTOR = 3\n")
    code = "from helper_of_network import FACTOR\ndef times(a, b, plus=0):\n    return a * FACTOR + b + plus\n"
    (tmp_path / "ops" / "mine.py").write_text(code)
    assert custom(tmp_path, "from: ops/mine.py, function: times")(2, 1) == 7
    assert custom(tmp_path, "from: ops/mine.py, function: times, with: {plus: 10}")(2, 1) == 17
    assert custom(tmp_path, f"from: {tmp_path / 'ops/mine.py'}, function: times")(2, 1) == 7


def test_a_function_in_a_module(tmp_path: Path) -> None:
    (tmp_path / "module_of_network.py").write_text("def add(a, b):\n    return a + b\n")
    assert custom(tmp_path, "function: module_of_network:add")(2, 1) == 3
    assert custom(tmp_path, "function: operator:mul")(2, 3) == 6


def test_each_generation_loads_the_file_as_it_is_then(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(a, b):\n    return 1\n")
    first = custom(tmp_path, "from: mine.py, function: f")
    (tmp_path / "mine.py").write_text("def f(a, b):\n    return 2\n")
    second = custom(tmp_path, "from: mine.py, function: f", 2)
    assert (first(0, 0), second(0, 0)) == (1, 2)
    assert first.__module__ != second.__module__


def test_a_file_is_run_once_for_a_network(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(a):\n    return a\ndef g(a):\n    return a\n")
    operators = "x: {input: clicks, custom: {from: mine.py, function: f}}\n"
    operators += "y: {input: views, custom: {from: ./mine.py, function: g}}"
    flow = load(network(operators), tmp_path / FILE)
    one, other = (flow.segments[name].function for name in "xy")
    assert one.__globals__ is other.__globals__  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("code", "function", "what"),
    [
        ("def f(a, b):\n    return a\n", "g", "there is no function 'g' in mine.py; it has f"),
        ("f = 5\n", "f", "there is no function 'f' in mine.py"),
        ("def f(:\n", "f", "mine.py failed while it was loaded: SyntaxError"),
        ("1 / 0\n", "f", "mine.py failed while it was loaded: ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", "f", "mine.py failed while it was loaded: SystemExit: 3"),
        (None, "f", "there is no file"),
    ],
)
def test_code_that_does_not_load(tmp_path: Path, code: str | None, function: str, what: str) -> None:
    if code is not None:
        (tmp_path / "mine.py").write_text(code)
    with pytest.raises(FlowError) as caught:
        custom(tmp_path, f"from: mine.py, function: {function}")
    (problem,) = caught.value.problems
    assert problem.where == f"{tmp_path / FILE}:6, operator x"
    assert what in f"{problem.what}; {problem.remedy}"


def test_modules_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FlowError, match="ModuleNotFoundError"):
        custom(tmp_path, "function: no_such_module_anywhere:f")
    (tmp_path / "mine.txt").write_text("def f(a, b):\n    return a\n")
    with pytest.raises(FlowError, match="not a Python file"):
        custom(tmp_path, "from: mine.txt, function: f")
