"""The source and the sink that take the place of a flow's own, without nodes: what they do by files alone."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from kit.places import FLOWS
from kit.support import wait_until
from unbroken import Call, Client, Dataflow, Files, Parquet
from unbroken.connectors.base import SourceReader
from unbroken.data.schema import parse_schema
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken.testing import Kill, SourceFails, mark
from unbroken.testing.execution import _write_inputs
from unbroken.testing.input.files import GO, RunFiles
from unbroken.testing.input.inputs import Input, read_inputs
from unbroken.testing.input.kept_units import KeepingSink, KeptUnits
from unbroken.testing.input.playback import Played
from unbroken.testing.input.script import make_plan
from unbroken.testing.input.substitution import find_flow, load_substituted, substitute, write_flow
from unit.flow.network.written import SOURCES, network

DEADLINE_S = 20.0
ROWS = pa.table({"n": pa.array([1, 2, 3, 4], pa.int64())})
HERE = FLOWS

flow = Dataflow("numbers", nodes=2)
flow.source("numbers", Files("nowhere", format="json", schema="n long"))
flow.segment("numbers", name="same")(lambda numbers: numbers)
flow.sink("files", "same", Parquet("nowhere"))

other = Dataflow("others")


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    made = RunFiles(tmp_path)
    made.make()
    return made


def reader_of(files: RunFiles, given: Input, *faults: Kill | SourceFails) -> SourceReader:
    _write_inputs(files, {"numbers": given})
    script = make_plan({"numbers": given}, faults, 2).scripts["numbers"]
    return Played("numbers", parse_schema("n long"), script, files.root).open()


def test_a_source_plays_its_rows_from_any_place(files: RunFiles) -> None:
    files.end_hold(GO)
    first = reader_of(files, Input(ROWS)).poll(None, 0)
    # Another node takes the lead, with what the log says and nothing else.
    reader = reader_of(files, Input(ROWS))
    second = reader.poll(first.position, 10)
    assert not first.exhausted and second.exhausted
    assert reader.read(None, first.position).table.column("n").to_pylist() == [1, 2]
    assert reader.read(first.position, second.position).table.column("n").to_pylist() == [3, 4]
    assert reader.read(first.position, second.position).table.column("n").to_pylist() == [3, 4]
    assert files.cuts("numbers") == [(0, 2), (2, 4)] and files.cuts("nobody") == []


def test_a_source_waits_at_a_hold_until_it_is_over(files: RunFiles) -> None:
    reader = reader_of(files, Input(ROWS, ((2, mark("half")),)))
    polled: list[object] = []

    def poll_all() -> None:
        first = reader.poll(None, 0)
        polled.append(first.position)
        polled.append(reader.poll(first.position, 0).position)

    thread = threading.Thread(target=poll_all, daemon=True)
    thread.start()
    wait_until(lambda: set(files.reached()) == {GO}, DEADLINE_S, "the source to wait for the start")
    files.end_hold(GO)
    wait_until(lambda: "numbers-mark-0" in set(files.reached()), DEADLINE_S, "the source to wait at the mark")
    assert len(polled) == 1
    files.end_hold("numbers-mark-0")
    thread.join(DEADLINE_S)
    assert polled == [{"row": 2, "unit": 1, "stops": 0}, {"row": 4, "unit": 2, "stops": 0}]


def test_a_source_that_is_closed_waits_no_longer(files: RunFiles) -> None:
    reader = reader_of(files, Input(ROWS))
    reader.close()
    with pytest.raises(UnbrokenError, match="was not told to go on"):
        reader.poll(None, 0)


def test_a_source_that_fails_can_neither_be_asked_nor_read(files: RunFiles) -> None:
    files.end_hold(GO)
    reader = reader_of(files, Input(ROWS))
    first = reader.poll(None, 0)
    files.let_fail("numbers", True)
    stays = reader.poll(first.position, 0)
    assert not stays.reachable and stays.why and stays.position == {"row": 2, "unit": 2, "stops": 0}
    with pytest.raises(UnbrokenError, match="fails, as the test asked for"):
        reader.read(None, first.position)
    assert reader.read(first.position, stays.position).table.num_rows == 0
    files.let_fail("numbers", False)
    assert reader.poll(stays.position, 0).position == {"row": 4, "unit": 3, "stops": 0}


def header(number: int, shard: int = 0, *, final: bool = False, stable: bool = True) -> UnitHeader:
    stream = StreamId(ShardId("same" if stable else "same~", shard), ShardId("files", 0))
    return UnitHeader(
        stream, number, number, 1_000 + number, Digest(1, 1), stable=stable, final=final, since=number - 1
    )


def test_a_sink_keeps_every_unit_once_or_as_often_as_the_sink_it_stands_for(tmp_path: Path) -> None:
    for connector, copies in ((Parquet("nowhere"), 1), (Call(lambda table, unit: None), 2)):
        sink = KeepingSink(tmp_path / type(connector).__name__, connector)
        writers = [sink.open(tmp_path) for _ in range(2)]
        written = [writer.deliver(header(1), ROWS) for writer in writers]
        assert written == [True, copies == 2]
        arrivals = KeptUnits({"files": sink.path})
        assert [unit.table for unit in arrivals.look()] == [ROWS] * copies
        assert arrivals.look() == []


def test_arrivals_tell_units_apart_and_know_the_end(tmp_path: Path) -> None:
    sink = KeepingSink(tmp_path / "files", Client())
    assert sink.tentative
    arrivals = KeptUnits({"files": sink.path})
    assert arrivals.look() == []
    writer = sink.open(tmp_path)
    writer.deliver(header(1), ROWS)
    writer.deliver_tentative(header(2, stable=False), ROWS)
    writer.deliver(header(2, final=True), ROWS.slice(0, 0))
    assert {(u.number, u.tentative, u.final, u.cut_ms) for u in arrivals.look()} == {
        (1, False, False, 1_001),
        (2, True, False, 1_002),
        (2, False, True, 1_002),
    }
    assert arrivals.ended("files", 1) and not arrivals.ended("files", 2)


def test_a_flow_is_loaded_again_with_other_sources_and_sinks(files: RunFiles) -> None:
    scripts = make_plan({"numbers": Input(ROWS)}, ()).scripts
    path, named, found = find_flow(flow)
    assert (path, named, found) == (Path(__file__), "numbers", flow)
    write_flow(files, path, named, {"pulse_min": "50ms"}, scripts)
    for made in (load_substituted(files.root), substitute(flow, scripts, {"pulse_min": "50ms"}, files.root)):
        assert isinstance(made.sources["numbers"].connector, Played) and isinstance(
            made.sinks["files"].connector, KeepingSink
        )
        assert made.settings.pulse_min == 50 and made.settings.nodes == 2 and list(made.segments) == ["same"]
    assert isinstance(flow.sources["numbers"].connector, Files), "the user's flow is as it was"
    assert "load_substituted" in files.flow.read_text()


def test_a_flow_that_no_file_declares_is_refused_with_what_to_do() -> None:
    inside = Dataflow("inside")
    with pytest.raises(UnbrokenError, match=r"'inside', declared at .*test_files_played_and_kept.py:\d+, is no name"):
        find_flow(inside)
    path, named, found = find_flow(HERE / "clicks_flow.py")
    assert named is None and found.name == "clicks" and path == HERE / "clicks_flow.py"


def test_an_operator_network_is_played_like_any_other_flow(files: RunFiles) -> None:
    text = network("kept: {input: clicks, filter: {where: ms > 3}}", head=SOURCES.replace("  views", "  # views"))
    (files.root / "net.yaml").write_text(text)
    path, named, found = find_flow(files.root / "net.yaml")
    inputs = read_inputs(found, [{"user": "ann", "ms": 5, "at": "2026-03-01T12:00:00Z"}])
    write_flow(files, path, named, {}, make_plan(inputs, ()).scripts)
    made = load_substituted(files.root)
    assert isinstance(made.sources["clicks"].connector, Played) and list(made.sinks) == ["seen-kept"]
