"""What can be refused without Spark, and where replicas are put: every refusal says where, why and what to do."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken import Call, Client, Dataflow, Generator, JsonLines, Parquet
from unbroken.errors import FlowError, Problem
from unbroken.flow.plan import build_topology
from unbroken.flow.program import PROGRAM, Program, merged
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Topology


def rows(start: int, stop: int, seed: int) -> pa.Table:
    return pa.table({"k": pa.array(range(start, stop), pa.int64()), "j": pa.array(range(start, stop), pa.int64())})


def generator(**options: Any) -> Generator:
    return Generator(rows, schema="k long, j long", rate=None, **options)


def identity(*frames: Any) -> Any:
    return frames[0]


def small_flow(**options: Any) -> Dataflow:
    """One source, one segment with the options given, one sink."""
    flow = Dataflow("small", nodes=3)
    flow.source("a", generator())
    flow.segment("a", **{"name": "seg", **options})(identity)
    flow.sink("out", "seg", Client())
    return flow


def two_inputs(**options: Any) -> Dataflow:
    flow = Dataflow("two", nodes=3)
    flow.source("a", generator())
    flow.source("b", generator())
    flow.segment("a", "b", name="seg", **options)(identity)
    flow.sink("out", "seg", Client())
    return flow


def problems_of(action: Callable[[], object]) -> list[Problem]:
    with pytest.raises(FlowError) as caught:
        action()
    for problem in caught.value.problems:
        assert problem.what and problem.remedy
        assert str(problem) in str(caught.value)
    return caught.value.problems


def the_problem(flow: Dataflow, part: str, nodes: int | None = None) -> Problem:
    """The one problem of a flow declared in this file; it names the file, a line and the part."""
    (problem,) = problems_of(lambda: build_topology(flow, nodes))
    assert problem.where.startswith(f"{__file__}:")
    assert problem.where.endswith(f", {part}")
    return problem


# --- the shape of the graph -----------------------------------------------------------------------------------


def test_a_healthy_flow_has_its_shards_streams_and_replicas() -> None:
    flow = Dataflow("good", replicas=2, nodes=3)
    a = flow.source("a", generator())
    first = flow.segment(a, name="first", shard_by=["k"], shards=2)(identity)
    flow.segment(first, a, name="second", shard_by={"first": ["k"], "a": ["j"]}, shards=3, replicas=3)(identity)
    flow.sink("files", "second", Parquet("/nowhere"))
    flow.sink("live", first, Client())
    topology = build_topology(flow)
    assert topology.segments == {"first": 2, "second": 3}
    assert topology.replicas == {"first": 2, "second": 3, "ingress": 3}
    assert topology.client_sinks == {"live"}
    # a to first, first to second, a to second, second to files, first to live
    assert len(topology.streams) == 2 + 2 * 3 + 3 + 3 + 2


def test_segments_are_ordered_as_data_passes_them_however_they_are_declared() -> None:
    flow = Dataflow("order", nodes=2)
    flow.segment("middle", name="last")(identity)
    flow.segment("head", name="middle")(identity)
    flow.segment("a", name="head")(identity)
    flow.source("a", generator())
    flow.sink("out", "last", Client())
    assert list(build_topology(flow).segments) == ["head", "middle", "last"]


def test_the_same_input_twice_is_one_stream() -> None:
    flow = Dataflow("self", nodes=2)
    flow.source("a", generator())
    flow.segment("a", "a", name="seg")(identity)
    flow.sink("out", "seg", Client())
    assert [str(stream) for stream in build_topology(flow).streams] == ["a.0>seg.0", "seg.0>out.0"]


def test_a_cycle_is_shown_in_the_direction_of_the_data() -> None:
    flow = Dataflow("loop", nodes=2)
    flow.source("a", generator())
    flow.segment("a", "three", name="one")(identity)
    flow.segment("one", name="two")(identity)
    flow.segment("two", name="three")(identity)
    flow.sink("out", "three", Client())
    (problem,) = problems_of(lambda: build_topology(flow))
    assert problem.where.startswith(f"{__file__}:") and ", segment " in problem.where
    shown = problem.what.removeprefix("the segments form a cycle: ").split(" -> ")
    assert shown[0] == shown[-1] and sorted(shown[1:]) == ["one", "three", "two"]
    steps = set(itertools.pairwise(shown))
    assert steps == {("one", "two"), ("two", "three"), ("three", "one")}
    assert "no loops" in problem.remedy


def test_a_segment_that_reads_itself_is_a_cycle() -> None:
    flow = Dataflow("loop", nodes=2)
    flow.source("a", generator())
    flow.segment("a", "seg", name="seg")(identity)
    flow.sink("out", "seg", Client())
    assert the_problem(flow, "segment seg").what == "the segments form a cycle: seg -> seg"


def test_unknown_inputs_are_refused_with_what_is_declared() -> None:
    flow = small_flow()
    flow.segment("a", "nobody", name="other")(identity)
    flow.sink("out2", "other", Client())
    problem = the_problem(flow, "segment other")
    assert "'nobody' is not declared" in problem.what and "['a', 'other', 'seg']" in problem.remedy


def test_a_sink_reads_a_segment_and_nothing_else() -> None:
    for name in ("nobody", "a"):
        flow = small_flow()
        flow.sink("out2", name, Client())
        problem = the_problem(flow, "sink out2")
        assert f"no segment '{name}'" in problem.what and problem.remedy == "segments: seg"


def test_a_segment_without_inputs_is_refused() -> None:
    flow = small_flow()
    flow.segment(name="alone")(identity)
    flow.sink("out2", "alone", Client())
    assert "has no input" in the_problem(flow, "segment alone").what


def test_an_empty_flow_lacks_everything() -> None:
    found = problems_of(lambda: build_topology(Dataflow("empty")))
    assert [problem.what for problem in found] == [
        f"the dataflow has no {part}" for part in ("source", "segment", "sink")
    ]
    for problem, call in zip(found, ("flow.source(", "@flow.segment(", "flow.sink("), strict=True):
        assert problem.where.startswith(f"{__file__}:") and call in problem.remedy


def test_what_nobody_reads_is_refused() -> None:
    flow = small_flow()
    flow.source("spare", generator())
    assert "no segment reads" in the_problem(flow, "source spare").what
    flow = small_flow()
    flow.segment("a", name="spare")(identity)
    problem = the_problem(flow, "segment spare")
    assert "nobody reads" in problem.what and "sink" in problem.remedy


def test_all_problems_are_told_at_once() -> None:
    flow = small_flow(shards=0, replicas=9, output_mode="complete")
    flow.source("spare", generator(batch_rows=0))
    found = problems_of(lambda: build_topology(flow))
    assert len(found) == 5
    assert {problem.where.rpartition(", ")[2] for problem in found} == {"segment seg", "source spare"}


# --- numbers and keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [0, -1, 257, 1.5, "2", True, None])
def test_shards_out_of_range(shards: Any) -> None:
    problem = the_problem(small_flow(shards=shards, shard_by=["k"]), "segment seg")
    assert f"shards={shards!r}" in problem.what and "1 to 256" in problem.remedy


@pytest.mark.parametrize("replicas", [0, -1, 9, 2.0, "2", True])
def test_replicas_out_of_range(replicas: Any) -> None:
    problem = the_problem(small_flow(replicas=replicas), "segment seg", nodes=20)
    assert f"replicas={replicas!r}" in problem.what and "1 to 8" in problem.remedy


def test_replicas_of_the_flow_are_checked_where_they_are_used() -> None:
    flow = Dataflow("many", replicas=99)
    flow.source("a", generator())
    flow.segment("a", name="seg")(identity)
    flow.sink("out", "seg", Client())
    assert "replicas=99" in the_problem(flow, "segment seg").what


def test_the_limits_themselves_are_allowed() -> None:
    topology = build_topology(small_flow(shards=256, replicas=8, shard_by=["k"]), 8)
    assert len(topology.placed_shards) == 257
    build_topology(small_flow(shards=1, replicas=1), 1)


def test_too_few_nodes_for_the_replicas() -> None:
    problem = the_problem(small_flow(replicas=3), "segment seg", nodes=2)
    assert "only 2 nodes" in problem.what and "more nodes" in problem.remedy and "fewer replicas" in problem.remedy
    assert "only 3 nodes" in the_problem(small_flow(replicas=4), "segment seg").what
    build_topology(small_flow(replicas=4), 4)


@pytest.mark.parametrize("mode", ["complete", "Append", "", None])
def test_other_output_modes(mode: Any) -> None:
    problem = the_problem(small_flow(output_mode=mode), "segment seg")
    assert f"output_mode={mode!r}" in problem.what and "('append', 'update')" in problem.remedy


def test_shards_need_keys_of_all_inputs_or_none() -> None:
    assert build_topology(small_flow(shards=2)).segments == {"seg": 2}
    problem = the_problem(two_inputs(shards=2, shard_by={"a": ["k"]}), "segment seg")
    assert "['b']" in problem.what
    found = problems_of(lambda: build_topology(two_inputs(shards=2, shard_by={"a": ["k"], "b": []})))
    assert "['b']" in found[0].what


def test_keys_of_something_that_is_no_input() -> None:
    problem = the_problem(small_flow(shards=2, shard_by={"a": ["k"], "b": ["k"]}), "segment seg")
    assert "'b'" in problem.what and problem.remedy == "inputs: a"
    assert "'b'" in the_problem(small_flow(shard_by={"b": ["k"]}), "segment seg").what


def test_keys_of_unequal_width() -> None:
    problem = the_problem(two_inputs(shards=2, shard_by={"a": ["k"], "b": ["k", "j"]}), "segment seg")
    assert "different numbers of columns" in problem.what and "equal keys" in problem.remedy


def test_one_key_column_may_be_given_without_a_list() -> None:
    assert small_flow(shards=2, shard_by="key").segments["seg"].shard_by == {"a": ("key",)}
    mapped = two_inputs(shards=2, shard_by={"a": "key", "b": ["other"]})
    assert mapped.segments["seg"].shard_by == {"a": ("key",), "b": ("other",)}


def test_what_a_connector_finds_wrong_is_told_with_its_part() -> None:
    flow = Dataflow("bad", nodes=2)
    flow.source("a", generator(limit=-5))
    flow.segment("a", name="seg")(identity)
    flow.sink("out", "seg", Parquet(__file__))
    source, sink = problems_of(lambda: build_topology(flow))
    assert source.where.endswith(", source a") and "-5" in source.what and source.remedy.startswith("give")
    assert sink.where.endswith(", sink out") and "not a directory" in sink.what and "name a directory" in sink.remedy


# --- names and settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "1st", "-x", "_x", "a.b", "a>b", "a#0", "a b", "a/b", "é", "x\n", 7, None])
def test_illegal_names(name: Any) -> None:
    flow = small_flow()
    declarations: list[Callable[[], object]] = [
        lambda: Dataflow(name),
        lambda: flow.source(name, generator()),
        lambda: flow.sink(name, "seg", Client()),
    ]
    if name:  # without one a segment has the name of its function
        declarations.append(lambda: flow.segment("a", name=name)(identity))
    for declare in declarations:
        (problem,) = problems_of(declare)
        assert problem.where.startswith(f"{__file__}:")
        assert problem.what == f"{name!r} cannot be a name" and "letters" in problem.remedy


@pytest.mark.parametrize("name", ["a", "seg", "out", "ingress"])
def test_every_part_has_its_own_name(name: str) -> None:
    flow = small_flow()
    for declare in (
        lambda: flow.source(name, generator()),
        lambda: flow.segment("a", name=name)(identity),
        lambda: flow.sink(name, "seg", Client()),
    ):
        (problem,) = problems_of(declare)
        assert problem.where.startswith(f"{__file__}:") and problem.where.endswith(f" {name}")
        assert "is taken" in problem.what and "own name" in problem.remedy
    assert (list(flow.sources), list(flow.segments), list(flow.sinks)) == (["a"], ["seg"], ["out"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nodes", 0),
        ("nodes", 201),
        ("pulse_min", 5),
        ("pulse_max", 600_001.0),
        ("in_flight_slack", -1),
        ("hedge", -1),
        ("ring_period", 600_001.0),
        ("ring_misses", 0),
        ("gate_wait", 3_600_000.0),
        ("node_memory", "lots"),
        ("jvm", "huge"),
        ("partitions", "many"),
        ("claim_bytes", math.inf),
        ("claim_bytes", math.nan),
        ("transfer_rate", 1e300),
        ("dead_letter_bytes", -math.inf),
        ("dead_letter_age", math.inf),
        ("pulse_max", math.nan),
        ("bucket_origin", 10**30),
    ],
)
def test_settings_out_of_range(name: str, value: Any) -> None:
    (problem,) = problems_of(lambda: Dataflow("f", **{name: value}))
    assert problem.where.startswith(f"{__file__}:") and problem.where.endswith(f"dataflow f, setting {name}")
    assert repr(value) in problem.what or str(value) in problem.what
    assert problem.remedy.startswith(f"{name}: ")


@pytest.mark.parametrize("name", ["claim_bytes", "transfer_rate", "dead_letter_bytes", "dead_letter_age", "nodes"])
def test_settings_with_hundreds_of_digits(name: str) -> None:
    unit = "d" if name.endswith("age") else "GB"
    for value in (10**400, 10**5000, "9" * 400 + unit, "9" * 400):
        (problem,) = problems_of(lambda value=value: Dataflow("f", **{name: value}))  # type: ignore[misc]
        assert problem.where.endswith(f"dataflow f, setting {name}") and len(problem.what) < 300
    largest = Dataflow("f", claim_bytes="1000TB").settings.protocol()
    assert largest.claim_bytes == 10**15


def test_unknown_settings_are_answered_with_the_known_ones() -> None:
    (problem,) = problems_of(lambda: Dataflow("f", pulse="1s"))
    assert problem.where.endswith("dataflow f, setting pulse")
    assert "no such setting" in problem.what and "pulse_min" in problem.remedy
    (problem,) = problems_of(lambda: Dataflow("f", availabilty="wait"))
    assert problem.where.endswith("setting availabilty") and "did you mean 'availability'?" in problem.remedy


def test_bounds_of_lengths_are_told_with_their_unit() -> None:
    (problem,) = problems_of(lambda: Dataflow("f", bucket="0s"))
    assert problem.what == "Input should be greater than or equal to 50 ms, got 0.0 ms"
    assert problem.where.endswith("setting bucket") and "'50ms' to '1h'" in problem.remedy
    (problem,) = problems_of(lambda: Dataflow("f", nodes=0))
    assert problem.what == "Input should be greater than or equal to 1, got 0"
    (problem,) = problems_of(lambda: Dataflow("f", bucket="100.5ms"))
    assert problem.where.endswith("setting bucket") and "is 100.5 ms" in problem.what
    (problem,) = problems_of(lambda: Dataflow("f", bucket=float("inf")))
    assert problem.where.endswith("setting bucket") and "inf ms" in problem.what


@pytest.mark.parametrize("text", ["soon", "5", "5 parsecs", "-1s", "1s2", "", "1.s."])
def test_bad_durations(text: str) -> None:
    (problem,) = problems_of(lambda: Dataflow("f", hedge=text))
    assert problem.where.endswith("setting hedge")
    assert "not a duration" in problem.what and "500ms" in problem.what


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("500ms", 500), ("0.5s", 500), (" 2 s ", 2_000), ("2 seconds", 2_000), ("1min", 60_000), (30, 30)],
)
def test_durations(text: Any, wanted: float) -> None:
    assert Dataflow("f", hedge=text).settings.hedge == wanted


def test_the_ring_can_be_turned_off() -> None:
    assert Dataflow("f").settings.protocol().ring_period_ms == 500
    assert Dataflow("f", ring_period=0).settings.protocol().ring_period_ms == 0


@pytest.mark.parametrize(
    ("given", "start_ms"), [({}, 500), ({"pulse_min": "2s"}, 2_000), ({"pulse_min": 20, "pulse_max": "100ms"}, 100)]
)
def test_the_first_pulse_follows_the_bounds_of_pulses(given: dict[str, Any], start_ms: float) -> None:
    assert Dataflow("f", **given).settings.pulse_start == start_ms


def test_settings_that_contradict_each_other() -> None:
    (problem,) = problems_of(lambda: Dataflow("f", pulse_min="2s", pulse_start="1s"))
    assert "pulse_min <= pulse_start <= pulse_max" in problem.what and "2000" in problem.what
    assert problem.where.endswith("dataflow f, settings") and "{" not in problem.what
    (problem,) = problems_of(lambda: Dataflow("f", heartbeat="3s"))
    assert "twice heartbeat" in problem.what
    (problem,) = problems_of(lambda: Dataflow("f", ring_period="5ms"))
    assert "0 (off) or at least 20 ms" in problem.what


def test_every_wrong_setting_is_told() -> None:
    found = problems_of(lambda: Dataflow("f", nodes=0, hedge="soon", speed=3))
    assert {problem.where.rpartition(" ")[2] for problem in found} == {"nodes", "hedge", "speed"}


# --- placement ------------------------------------------------------------------------------------------------


@st.composite
def topologies(draw: st.DrawFn, *, equal_replicas: bool = False) -> tuple[Topology, int]:
    """Flows in which every segment reads one or two earlier parts, and nodes enough for the replicas."""
    nodes = draw(st.integers(1, 9))
    most = min(nodes, 8)
    common = draw(st.integers(1, most))
    flow = Dataflow("drawn", nodes=nodes)
    parts = [f"s{i}" for i in range(draw(st.integers(1, 2)))]
    for name in parts:
        flow.source(name, generator())
    for number in range(draw(st.integers(1, 5))):
        inputs = tuple(parts) if number == 0 else tuple(draw(st.sets(st.sampled_from(parts), min_size=1, max_size=2)))
        replicas = common if equal_replicas else draw(st.integers(1, most))
        shards = draw(st.integers(1, 6))
        flow.segment(*sorted(inputs), name=f"g{number}", shards=shards, shard_by=["k"], replicas=replicas)(identity)
        flow.sink(f"o{number}", f"g{number}", Client())
        parts.append(f"g{number}")
    return build_topology(flow), nodes


def node_names(count: int) -> dict[str, str]:
    """Nodes and their disks."""
    return {f"n{i}": f"disk {i}" for i in range(count)}


@given(topologies())
def test_every_replica_has_a_place_and_no_two_of_a_shard_share_it(drawn: tuple[Topology, int]) -> None:
    topology, nodes = drawn
    layout = chained_placement(topology, node_names(nodes))
    layout.check()
    wanted = {replica for shard in topology.placed_shards for replica in topology.replicas_of(shard)}
    assert set(layout.placement) == wanted
    for shard in topology.placed_shards:
        assert len(layout.nodes_of(shard)) == len(topology.replicas_of(shard))
    # Losing any one node leaves a copy of whatever has two.
    for node in layout.nodes:
        after = layout.without_nodes([node])
        for shard in topology.placed_shards:
            assert len(after.counted(shard)) >= len(topology.replicas_of(shard)) - 1


@given(topologies(equal_replicas=True))
def test_with_equal_replicas_the_load_is_balanced(drawn: tuple[Topology, int]) -> None:
    """The copies of one rank are spread within one; their windows overlap, so in total nodes can differ by more:
    at most by the number of replicas, and not at all when every node holds a copy of every shard."""
    topology, nodes = drawn
    names = node_names(nodes)
    layout = chained_placement(topology, names)
    replicas = topology.replicas[INGRESS.part]
    total: Counter[str] = Counter(layout.placement.values())
    for rank in range(replicas):
        load = Counter(node for replica, node in layout.placement.items() if replica.index == rank)
        counts = [load[name] for name in names]
        assert max(counts) - min(counts) <= 1
    counts = [total[name] for name in names]
    assert max(counts) - min(counts) <= min(replicas, nodes - replicas)


@given(topologies())
def test_the_shards_of_a_lost_node_survive_on_its_neighbours_in_the_chain(drawn: tuple[Topology, int]) -> None:
    topology, nodes = drawn
    layout = chained_placement(topology, node_names(nodes))
    names = list(layout.nodes)
    for shard in topology.placed_shards:
        hosts = [names.index(layout.placement[replica]) for replica in topology.replicas_of(shard)]
        assert all((b - a) % nodes == 1 % nodes for a, b in itertools.pairwise(hosts))


@given(topologies())
def test_both_ends_of_every_stream_have_a_place(drawn: tuple[Topology, int]) -> None:
    topology, nodes = drawn
    layout = chained_placement(topology, node_names(nodes))
    assert len(set(topology.streams)) == len(topology.streams)
    order = [*topology.sources, *topology.segments, *topology.sinks]
    for stream in topology.streams:
        assert layout.counted(topology.host_shard(stream.producer))
        assert topology.is_sink(stream.consumer) or layout.counted(stream.consumer)
        assert order.index(stream.producer.part) < order.index(stream.consumer.part)
        assert stream in topology.outputs(stream.producer) and stream in topology.inputs(stream.consumer)
        assert stream.producer in topology.shards(stream.producer.part)
        assert stream.consumer in topology.shards(stream.consumer.part)
    for shard in topology.placed_shards[1:]:
        # Every shard hears from every shard of each of its inputs.
        producers = {name for name, consumer in topology.edges if consumer == shard.part}
        heard = {stream.producer for stream in topology.inputs(shard)}
        assert heard == {producer for name in producers for producer in topology.shards(name)}


def test_the_ingress_does_the_work_of_every_source() -> None:
    topology = build_topology(two_inputs())
    assert topology.placed_shards[0] == INGRESS
    assert {topology.host_shard(ShardId(name, 0)) for name in ("a", "b")} == {INGRESS}
    layout = chained_placement(topology, node_names(2))
    assert layout.placement[ReplicaId(INGRESS, 0)] == "n0"


# --- guarantees -----------------------------------------------------------------------------------------------


def flow_into(connector: Any, **settings: Any) -> Dataflow:
    flow = Dataflow("guaranteed", nodes=2, **settings)
    flow.source("a", generator())
    flow.segment("a", name="seg")(identity)
    flow.sink("out", "seg", connector)
    return flow


def kind_of(connector: Any) -> str:
    return type(connector).__name__


def taken(_table: pa.Table, _unit: Any) -> None: ...


@pytest.mark.parametrize("settings", [{}, {"guarantee": "exactly-once"}])
def test_a_function_as_a_sink_is_refused_where_results_have_to_come_exactly_once(settings: dict[str, str]) -> None:
    problem = the_problem(flow_into(Call(taken), **settings), "sink out")
    assert "cannot tell a unit that it was given before" in problem.what
    assert "Parquet" in problem.remedy and "at-least-once" in problem.remedy and "at-most-once" in problem.remedy


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
@pytest.mark.parametrize("connector", [Parquet("/nowhere"), JsonLines("/nowhere"), Client(), Call(taken)], ids=kind_of)
def test_every_other_sink_goes_with_every_guarantee(connector: Any, guarantee: str) -> None:
    if connector.idempotent or guarantee != "exactly-once":
        topology = build_topology(flow_into(connector, guarantee=guarantee))
        assert topology.at_most_once == (guarantee == "at-most-once")


def test_there_is_no_other_guarantee() -> None:
    (problem,) = problems_of(lambda: flow_into(Parquet("/nowhere"), guarantee="twice"))
    assert problem.where.endswith("setting guarantee") and "at-most-once" in problem.remedy


def test_a_program_remembers_what_it_guarantees() -> None:
    flow = flow_into(Call(taken), guarantee="at-most-once")
    program = Program.first(flow, build_topology(flow), "flow.py", "")
    assert PROGRAM.decode(PROGRAM.encode(program)).topology.at_most_once
    later = program.followed_by(flow, "flow.py", "", 2, ["seg"])
    assert merged([program, later]).at_most_once and merged([later]).at_most_once
