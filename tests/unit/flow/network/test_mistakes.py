"""Every mistake in a network is told at once, with its line, what it is, and what to do."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from unbroken.errors import FlowError
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unit.flow.network.written import FILE, SOURCES, line_of, load, network, problems_of

USED = "both: {input: [clicks, views], join: {on: {user: id}}}"
"""An operator that reads both sources, so that neither is refused for being unread."""


@pytest.mark.parametrize(
    ("operator", "what", "remedy"),
    [
        # the entry
        ("x: {input: clicks, filtr: {where: a}}", "the key 'filtr' is not known", "did you mean 'filter'?"),
        ("x: {input: clicks, dup: {}, shard: 2}", "the key 'shard' is not known", "did you mean 'shards'?"),
        (
            "x: {input: clicks, dup: {}, wumpus: 2}",
            "the key 'wumpus' is not known",
            "use one of: aggregate, availability, checkpoint_every, count",
        ),
        ("x: {input: clicks, dup: {}, count: {}}", "'dup' and 'count' are in one entry", "a name of its own"),
        ("x: {input: clicks}", "nothing says what this operator is", "use one of: aggregate"),
        ("x: {dup: {}}", "'input' is missing", "name the source or operator"),
        ("x: clicks", "must be a mapping, got 'clicks'", "write for example"),
        ("x: {input: 5, dup: {}}", "input must be a name or a list of names, got 5", "name its inputs"),
        ("x: {input: [], dup: {}}", "input must be a name or a list of names, got []", "name its inputs"),
        ("x: {input: clickz, dup: {}}", "its input 'clickz' is not declared", "did you mean 'clicks'?"),
        ("x: {input: nobody, dup: {}}", "its input 'nobody' is not declared", "use one of: both, clicks, views"),
        ("x: {input: x, dup: {}}", "cycle: x -> x", "no loops"),
        ("ingress: {input: clicks, dup: {}}", "the name 'ingress' is taken", "its own name"),
        ("clicks: {input: views, dup: {}}", "the name 'clicks' is taken", "its own name"),
        ("1x: {input: views, dup: {}}", "'1x' cannot be a name", "starting with a letter"),
        # options
        ("x: {input: clicks, dup: {}, shards: many}", "shards must be a whole number, got 'many'", "whole number"),
        ("x: {input: clicks, dup: {}, shards: true}", "shards must be a whole number, got True", "whole number"),
        (
            "x: {input: [clicks, views], union: {}, shards: 2, shard_by: {clicks: user}}",
            "shard_by does not say how rows of ['views'] are split",
            "name the key columns of every input",
        ),
        ("x: {input: clicks, dup: {}, shard_by: 5}", "shard_by must be a list or a mapping, got 5", "a list"),
        ("x: {input: clicks, dup: {}, shard_by: {views: id}}", "'views', which is not an input", "inputs: clicks"),
        ("x: {input: clicks, dup: {}, output_mode: complete}", "output_mode='complete' is not supported", "append"),
        ("x: {input: clicks, dup: {}, replicas: 9}", "replicas=9 is out of range", "use 1 to 8"),
        ("x: {input: clicks, count: {}, shards: 2}", "all rows belong together in this count", "give 'by'"),
        (
            "x: {input: clicks, count: {by: user}, shards: 2, shard_by: url}",
            "splits rows that belong together",
            "some of: user",
        ),
        (
            "x: {input: [clicks, views], join: {on: {user: id}}, shards: 2, shard_by: {clicks: url, views: id}}",
            "splits rows that belong together",
            "some of: user=id",
        ),
        # a bound on the delay
        ("x: {input: clicks, dup: {}, availability: 3s}", "availability: '3s' is no bound", "write {max_delay: 3s}"),
        ("x: {input: clicks, dup: {}, availability: {}}", "'availability.max_delay' is missing", "during_failure"),
        (
            "x: {input: clicks, dup: {}, availability: {max_delay: 3s, alfa: 1}}",
            "the key 'availability.alfa' is not known",
            "did you mean 'alpha'?",
        ),
        (
            "x: {input: clicks, dup: {}, availability: {max_delay: 3s, alpha: most}}",
            "availability.alpha must be a number, got 'most'",
            "a number",
        ),
        ("x: {input: clicks, dup: {}, availability: {max_delay: soon}}", "max_delay='soon' is not a length", "'3s'"),
        (
            "x: {input: clicks, dup: {}, availability: {max_delay: 3s, reconcile: repair}}",
            "there is no reconcile='repair'",
            "fork, redo, undo",
        ),
        ("x: {input: clicks, dup: {}, availability: {max_delay: 3s}, ha: none}", "this one has ha='none'", "WAIT"),
        (
            "x: {input: clicks, dup: {}, availability: {max_delay: 3}}",
            "max_delay=3.0 is too short",
            "a number without a unit is one of milliseconds",
        ),
        # who orders
        ("x: {input: clicks, dup: {}, ordering: tide}", "there is no ordering='tide'", "pulse, leader, bucket"),
        ("x: {input: clicks, dup: {}, ordering: 5}", "ordering must be text, got 5", "text"),
        ("x: {input: clicks, dup: {}, ordering: bucket}", "in a dataflow with ordering='pulse'", "whole dataflow"),
        ("x: {input: clicks, dup: {}, bucket: 1s}", "the key 'bucket' is not known", "use one of: aggregate"),
        # options in the wrong place
        ("x: {input: clicks, count: {by: user, shards: 2}}", "'shards' is not known here", "write it beside count"),
        # how many inputs
        ("x: {input: [clicks, views], dup: {}}", "dup takes 1 input, not 2", "'union' or 'join'"),
        ("x: {input: clicks, union: {}}", "union takes at least 2 inputs, not 1", "input: [one, other]"),
        ("x: {input: clicks, join: {on: user}}", "join takes 2 inputs, not 1", "input: [one, other]"),
        # filter
        ("x: {input: clicks, filter: {}}", "the condition is not complete", "give field, is and value"),
        ("x: {input: clicks, filter: {field: ms, is: '=='}}", "is cannot be '=='", "'is not null'"),
        ("x: {input: clicks, filter: {field: ms, is: '='}}", "needs something to compare with", "give 'value'"),
        ("x: {input: clicks, filter: {field: ms, is: is null, value: 5}}", "compares with nothing", "remove 'value'"),
        ("x: {input: clicks, filter: {field: ms, is: '=', value: null}}", "nothing compares with null", "is null"),
        ("x: {input: clicks, filter: {field: ms, is: in, value: 5}}", "needs a list", "value: [a, b]"),
        ("x: {input: clicks, filter: {field: ms, is: in, value: [[5]]}}", "something else than text", "remove"),
        ("x: {input: clicks, filter: {field: ms, is: '=', value: [5]}}", "compares with one value", "use 'in'"),
        ("x: {input: clicks, filter: {field: url, is: like, value: 5}}", "looks for text", "quotes"),
        ("x: {input: clicks, filter: {field: ms, where: 'ms > 1'}}", "stands for the whole condition", "remove"),
        ("x: {input: clicks, filter: {field: 5, is: is null}}", "field must be text, got 5", "column"),
        ("x: {input: clicks, filter: 'ms > 1'}", "must be a mapping, got 'ms > 1'", "write a mapping"),
        # map, dup, count, uniq
        ("x: {input: clicks, map: {}}", "no column is named", "SQL expression"),
        ("x: {input: clicks, map: {a: [1]}}", "a must be text, got [1]", "SQL expression"),
        ("x: {input: clicks, map: {a: ' '}}", "the SQL expression is empty", "write a column"),
        ("x: {input: clicks, dup: {times: 2}}", "the key 'times' is not known", "use one of: none"),
        ("x: {input: clicks, count: {bye: user}}", "the key 'bye' is not known", "did you mean 'by'?"),
        ("x: {input: clicks, count: {by: [count]}}", "'count' would be two columns", "another name"),
        ("x: {input: clicks, count: {by: [user, USER]}}", "by: the column 'user' is named twice", "name it once"),
        ("x: {input: clicks, uniq: {field: user, time: at}}", "belong together", "give both"),
        (
            "x: {input: clicks, uniq: {field: user, time: at, watermark: 1s}}",
            "'time' is not one of the fields",
            "add it to 'field'",
        ),
        # aggregate
        ("x: {input: clicks, aggregate: {by: user}}", "'values' is missing", "values: a SQL aggregate"),
        ("x: {input: clicks, aggregate: {values: {}}}", "values is empty", "values: a SQL aggregate"),
        ("x: {input: clicks, aggregate: {by: user, values: {User: max(ms)}}}", "two columns", "another name"),
        ("x: {input: clicks, aggregate: {watermark: 1s, values: {n: count(*)}}}", "no 'window'", "add one"),
        (
            "x: {input: clicks, aggregate: {window: {time: at, size: soon}, values: {n: 1}}}",
            "window.size: 'soon' is not a length of time",
            "'1 minute'",
        ),
        (
            "x: {input: clicks, aggregate: {window: {time: at, size: 5}, values: {n: 1}}}",
            "window.size: 5 is not a length of time",
            "'1 minute'",
        ),
        (
            "x: {input: clicks, aggregate: {window: {time: at, size: 0s}, values: {n: 1}}}",
            "window.size: it must be longer than 0",
            "10 seconds",
        ),
        (
            "x: {input: clicks, aggregate: {window: {time: at, size: 1s, slide: 2s}, values: {n: 1}}}",
            "window: 'slide' is longer than 'size'",
            "shorten",
        ),
        (
            "x: {input: clicks, aggregate: {window: {time: at, size: 1s, slid: 1s}, values: {n: 1}}}",
            "the key 'window.slid' is not known",
            "did you mean 'slide'?",
        ),
        # join
        ("x: {input: [clicks, views], join: {on: 5}}", "on: 5 does not name columns", "on: [column]"),
        ("x: {input: [clicks, views], join: {on: []}}", "on is empty", "on: columns"),
        ("x: {input: [clicks, views], join: {on: a, kind: outer}}", "kind cannot be 'outer'", "'full' or 'semi'"),
        ("x: {input: [clicks, clicks], join: {on: user}}", "both sides are the same input", "'dup'"),
        ("x: {input: [clicks, views], join: {on: a, within: 1s}}", "'within' compares times", "time: {clicks: column"),
        ("x: {input: [clicks, views], join: {on: a, watermark: 1s}}", "needs the time of rows of 'clicks'", "'time'"),
        ("x: {input: [clicks, views], join: {on: a, time: {x: at}}}", "'time' names 'x'", "use clicks and views"),
        ("x: {input: [clicks, views], join: {on: a, watermark: {clicks: 5}}}", "5 is not a length of time", "'1 min"),
        # custom
        ("x: {input: clicks, custom: {function: f}}", "nothing says where 'f' is", "add 'from'"),
        ("x: {input: clicks, custom: {from: a.py, function: 'm:f'}}", "names a module, but 'from' a file", "keep one"),
        ("x: {input: clicks, custom: {from: a.py}}", "'function' is missing", "its name in the file"),
        ("x: {input: clicks, custom: {from: a.py, function: 1f}}", "'1f' cannot be the name", "Python name"),
        ("x: {input: clicks, custom: {from: a.py, function: f, with: 5}}", "with must be a mapping, got 5", "argum"),
    ],
)
def test_one_mistake(operator: str, what: str, remedy: str) -> None:
    text = network(f"{USED}\n{operator}")
    with pytest.raises(FlowError) as caught:
        build_topology(load(text))
    (problem,) = caught.value.problems
    assert problem.where == f"{FILE}:7, operator {operator.partition(':')[0]}"
    assert what in problem.what and remedy in problem.remedy


@pytest.mark.parametrize(
    ("source", "what", "remedy"),
    [
        ("{generator: {rate: 5}}", "cannot have a generator", "in Python"),
        ("{file: {path: in/}}", "the key 'file' is not known", "did you mean 'files'?"),
        ("{}", "nothing says what this source is", "files, kafka, push"),
        ("{files: {path: in/, format: json, schema: a int}, push: {schema: a int}}", "in one entry", "name of its own"),
        ("{push: {schema: a foo}}", "a type that is not known", "use one of byte"),
        ("{push: {schema: 5}}", "schema must be text, got 5", "text"),
        ("{push: }", "'schema' is missing", "its keys are schema"),
        ("{push: {schema: a int, max_line_bytes: 0}}", "max_line_bytes is 0", "at least 1"),
        ("{files: {path: in/, format: xml, schema: a int}}", "The format is 'xml'", "json, csv, parquet"),
        ("{files: {path: in/, format: csv, schema: a int, header: maybe}}", "header must be true or false", "true"),
        ("{files: {path: in/, format: csv, schema: a int, heder: true}}", "the key 'heder' is not", "mean 'header'?"),
        ("{push: {schema: a int}, event_tim: a}", "the key 'event_tim' is not known", "did you mean 'event_time'?"),
        (
            "{push: {schema: a timestamp, event_time: a}}",
            "the key 'event_time' is not known here",
            "write it beside push, not within: {push: {...}, event_time: ...}",
        ),
        ("{push: {schema: a timestamp}, event_time: [a]}", "event_time must be text, got ['a']", "write text"),
        ("{push: {schema: a timestamp}, disorder: [2]}", "disorder must be text or a number, got [2]", "a number"),
        ("{push: {schema: a timestamp}, event_time: a}", "event_time has no meaning unless", "ordering='bucket'"),
    ],
)
def test_sources_with_a_mistake(source: str, what: str, remedy: str) -> None:
    text = f"name: x\nsources:\n  a: {source}\noperators:\n  b: {{input: a, dup: {{}}}}\nsinks:\n"
    text += "  c: {input: b, client: {}}\n"
    with pytest.raises(FlowError) as caught:
        build_topology(load(text))
    (problem,) = caught.value.problems
    assert problem.where == f"{FILE}:3, source a"
    assert what in problem.what and remedy in problem.remedy


@pytest.mark.parametrize(
    ("sink", "what", "remedy"),
    [
        ("{client: {}}", "'input' is missing", "name the source or operator"),
        ("{input: both}", "nothing says what this sink is", "client, console"),
        ("{input: clicks, client: {}}", "its input 'clicks' is a source", "'dup'"),
        ("{input: bot, client: {}}", "its input 'bot' is not declared", "did you mean 'both'?"),
        ("{input: [both, both], client: {}}", "the results of one operator", "'union'"),
        ("{input: both, parkuet: {path: out}}", "the key 'parkuet' is not known", "did you mean 'parquet'?"),
        ("{input: both, parquet: {}}", "'path' is missing", "its keys are path"),
        ("{input: both, console: {limit: 0}}", "limit is 0", "at least 1 row"),
        ("{input: both, client: {limit: 0}}", "the key 'limit' is not known", "use one of: none"),
    ],
)
def test_sinks_with_a_mistake(sink: str, what: str, remedy: str) -> None:
    with pytest.raises(FlowError) as caught:
        build_topology(load(network(USED, f"good: {{input: both, client: {{}}}}\nx: {sink}")))
    (problem,) = caught.value.problems
    assert problem.where == f"{FILE}:9, sink x"
    assert what in problem.what and remedy in problem.remedy


@pytest.mark.parametrize(
    ("head", "where", "what", "remedy"),
    [
        ("name: 1st", "net.yaml:1", "'1st' cannot be a name", "starting with a letter"),
        ("name: [x]", "net.yaml:1", "name must be text", "name of the dataflow"),
        ("nam: x", "net.yaml:1", "the key 'nam' is not known", "did you mean 'name'?"),
        ("name: x\nreplicas: two", "net.yaml:2", "replicas must be a whole number, got 'two'", "copies"),
        ("name: x\nsettings: fast", "net.yaml:2", "settings must be a mapping, got 'fast'", "nodes: 3"),
        ("name: x\nsettings: [3]", "net.yaml:2", "settings must be a mapping, got [3]", "nodes: 3"),
        ("name: x\nsettings:\n  nods: 3", "net.yaml:3, settings", "the key 'nods' is not known", "mean 'nodes'?"),
        ("name: x\nsettings:\n  nodes: 0", "net.yaml:3, settings", "greater than or equal to 1, got 0", "Local nodes"),
        ("name: x\nsettings: {hedge: soon}", "net.yaml:2, settings", "'soon' is not a duration", "500ms"),
        (
            "name: x\nsettings: {pulse_min: 2s, pulse_start: 1s}",
            "net.yaml:2, settings",
            "pulse_min <= pulse_start",
            "correct",
        ),
        (
            "name: x\nordering: [bucket]",
            "net.yaml:2",
            "ordering must be text, got ['bucket']",
            "pulse, leader or bucket",
        ),
        ("name: x\nhá: none", "net.yaml:2", "the key 'há' is not known", "use one of: availability, ha"),
        ("name: x\nnodes: 3", "net.yaml:2", "the key 'nodes' is not known here", "settings: {nodes: ...}"),
        ("name: x\nbucket: 1s", "net.yaml:2", "the key 'bucket' is not known here", "settings: {bucket: ...}"),
        (
            "name: x\nsettings:\n  ordering: leader",
            "net.yaml:3, settings",
            "the key 'ordering' is not known here",
            "beside settings: ordering: ...",
        ),
        (
            "name: x\nsettings: {bucket: 0s}",
            "net.yaml:2, settings",
            "bucket: Input should be greater than or equal to 50 ms, got 0.0 ms",
            "'50ms' to '1h'",
        ),
        ("name: x\nsettings: {bucket_origin: noon}", "net.yaml:2, settings", "not a point in time", "2026-03-01T"),
    ],
)
def test_heads_with_a_mistake(head: str, where: str, what: str, remedy: str) -> None:
    text = network(USED, head=SOURCES.replace("name: small", head))
    (problem,) = (found for found in problems_of(text) if found.what != "'name' is missing")
    assert problem.where == where and what in problem.what and remedy in problem.remedy


BUCKETS = """\
name: timed
ordering: bucket
sources:
  doors: {push: {schema: "door string, at timestamp"}, event_time: at}
  badges: BADGES
"""


@pytest.mark.parametrize(
    ("badges", "what", "remedy"),
    [
        ("{push: {schema: t timestamp}}", "this source does not name it", "(timestamp columns: t)"),
        ("{push: {schema: t timestamp}, event_time: at}", "there is no column 'at'", "timestamp columns: t"),
        ("{push: {schema: t long}, event_time: t}", "which is of type long", "give its schema a column of type timest"),
        ("{push: {schema: t timestamp}, event_time: t, disorder: -2s}", "disorder='-2s' is not a length", "'2s'"),
        (
            "{push: {schema: t timestamp}, event_time: t, disorder: 2 hours}",
            "not a length of time from 0 to 1 h",
            "'2s'",
        ),
        # What follows from a mistake is not told beside it.
        ("{push: {schema: t timestam}, event_time: t}", "a type that is not known", "use one of byte"),
        ("{push: {schema: t timestamp}, event_time: 5}", "event_time must be text, got 5", "write text"),
        (
            "{push: {schema: t timestamp}, evnt_time: t, event_time: t}",
            "'evnt_time' is not known",
            "mean 'event_time'?",
        ),
    ],
)
def test_sources_that_do_not_go_into_buckets(badges: str, what: str, remedy: str) -> None:
    text = network("both: {input: [doors, badges], union: {}}", head=BUCKETS.replace("BADGES", badges))
    with pytest.raises(FlowError) as caught:
        build_topology(load(text))
    (problem,) = caught.value.problems
    assert problem.where == f"{FILE}:5, source badges"
    assert what in problem.what and remedy in problem.remedy


@pytest.mark.parametrize(
    ("head", "what"),
    [
        ("name: timed\nordering: buckets", "there is no ordering='buckets'"),
        ("name: 1st\nordering: bucket", "'1st' cannot be a name"),
        ("name: timed\nordering: bucket\nsetings: {}", "the key 'setings' is not known"),
        ("name: timed\nsettings: {ordering: bucket}", "the key 'ordering' is not known here"),
        ("name: timed\nordering: bucket\nsettings: {bucket: 0s}", "greater than or equal to 50 ms"),
        ("name: timed\nordering: bucket\nsettings: {snapshots: s/}", "snapshots cannot be combined"),
        ("name: timed\nsettings: {bucket: 1s}\nordering: pulse", "bucket has no meaning unless"),
    ],
)
def test_the_head_of_a_network_with_buckets(head: str, what: str) -> None:
    badges = "{push: {schema: t timestamp}, event_time: t}"
    text = BUCKETS.replace("name: timed\nordering: bucket", head).replace("BADGES", badges)
    if "pulse" in head:
        text = text.replace(", event_time: at", "").replace(", event_time: t", "")
    with pytest.raises(FlowError) as caught:
        build_topology(load(network("both: {input: [doors, badges], union: {}}", head=text)))
    (problem,) = caught.value.problems
    assert what in problem.what and problem.remedy and "source" not in problem.where


def test_sections_that_are_missing_or_empty() -> None:
    assert [p.what for p in problems_of("name: x\n")] == [
        f"'{section}' is missing" for section in ("sources", "operators", "sinks")
    ]
    found = problems_of("name: x\nsources:\noperators: {}\nsinks: {}\n")
    assert [(p.where, p.what) for p in found] == [
        ("net.yaml:2", "there are no sources"),
        ("net.yaml:3", "there are no operators"),
        ("net.yaml:4", "there are no sinks"),
    ]
    (problem,) = problems_of("- name: x\n")
    assert "must be a mapping" in problem.what


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = textwrap.dedent("""\
        name: shop
        setings: {nodes: 3}
        sources:
          clicks: {push: {schema: "user strin"}}
          spare: {push: {schema: "a int"}}
        operators:
          slow: {input: clickz, filter: {field: ms, is: '>'}}
          slow: {input: clicks, dup: {}}
          one: {input: two, dup: {}}
          two: {input: [one, clicks], union: {}}
          code: {input: clicks, custom: {from: nowhere.py, function: f}, replicas: 99}
        sinks:
          out: {input: slow, parquet: {}}
          end: {input: code, client: {}}
        """)
    found = [(p.where, p.what.partition(":")[0]) for p in problems_of(text)]
    assert found == [
        ("net.yaml:2", "the key 'setings' is not known"),
        ("net.yaml:4, source clicks", "The schema 'user strin' is wrong"),
        ("net.yaml:7, operator slow", "'>' needs something to compare with"),
        ("net.yaml:7, operator slow", "its input 'clickz' is not declared"),
        ("net.yaml:8", "the key 'slow' is there twice, first in line 7"),
        ("net.yaml:11, operator code", f"there is no file {Path('nowhere.py').resolve()}"),
        ("net.yaml:13, sink out", "'path' is missing"),
        # The shape of the flow comes last.
        ("net.yaml:11, operator code", "replicas=99 is out of range"),
        ("net.yaml:9, operator one", "the segments form a cycle"),
    ]


def test_what_nobody_reads_is_told_unless_an_unknown_input_may_mean_it() -> None:
    broken = "bad: {input: clicks, filter: {}}"
    (first, second) = problems_of(network(broken))
    assert first.where.endswith("operator bad") and second.where.endswith("source views")
    assert second.what == "no segment reads this source"
    (problem,) = problems_of(network("bad: {input: vews, dup: {}}"))
    assert "not declared" in problem.what


def test_syntax_errors_have_their_line() -> None:
    text = network(USED) + "  broken: [\n"
    (problem,) = problems_of(text)
    assert problem.where.startswith("net.yaml:") and "not YAML" in problem.what and "quote" in problem.remedy


def test_a_cycle_of_a_network_without_other_mistakes_is_found_by_the_plan() -> None:
    text = network(f"{USED}\na: {{input: b, dup: {{}}}}\nb: {{input: a, dup: {{}}}}")
    with pytest.raises(FlowError) as caught:
        build_topology(load(text))
    (problem,) = caught.value.problems
    assert "cycle" in problem.what and problem.where in ("net.yaml:7, operator a", "net.yaml:8, operator b")


def test_files(tmp_path: Path) -> None:
    for name in ("net.yaml", "net.yml", "NET.YAML"):
        path = tmp_path / name
        path.write_text(network(USED))
        assert load_flow(path).where == f"{path}:1"
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(FlowError, match="not text"):
        load_flow(path)
    with pytest.raises(FlowError, match="no such file"):
        load_flow(tmp_path / "nothing.yaml")


def test_a_line_is_that_of_the_key_also_in_block_form() -> None:
    text = network(f"{USED}\nx:\n  input: clicks\n  aggregate:\n    values:\n      n: count(*)\n    by: [user, user]")
    (problem,) = problems_of(text)
    assert problem.where == f"net.yaml:{line_of(text, 'by: [user')}, operator x"
