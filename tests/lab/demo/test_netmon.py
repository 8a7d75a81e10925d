"""The demonstration's generator, reference, verification and figures, without a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from kit.statuses import diverged, status
from unbroken.client import Result
from unbroken.connectors.files.sinks import Parquet
from unbroken.data.schema import arrow_schema, parse_schema
from unbroken.errors import UnbrokenError
from unbroken.node.ingress.entries import PULSE, PulseRecord
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.observe.notices import line_of
from unbroken.observe.status.node import DivergedUnit, NodeStatus
from unbroken.observe.status.notices import status_of
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.placement import NodeReady
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken.testing.harness.harness import Harness
from unbroken.testing.harness.local import LocalDeployment
from unbroken_lab.demo import runner
from unbroken_lab.demo.chart import draw
from unbroken_lab.demo.measure import ArrivalSample, DemoSchedule, Measures, Spread, measure, write_timeline
from unbroken_lab.demo.packets import KINDS, SCHEMA, Packets
from unbroken_lab.demo.reference import (
    DeliveredUnit,
    PulseSpan,
    RowsVerdict,
    compare,
    expected_rows,
    read_parquet,
    read_pulses,
)
from unbroken_lab.demo.report import DemoOutcome, Recording, Setting, print_summary, with_rest
from unbroken_lab.demo.runner import MARKER, choose_victim, run_demo
from unbroken_lab.demo.screen import Screen

RESULT_KEYS = {
    "pulse_ms", "rate_per_s", "rows_in", "rows_out", "lost", "duplicated", "divergences", "latency_ms",
    "output_gap_ms", "nodes", "replicas", "killed", "cores", "seconds",
}  # fmt: skip


# --- generator ----------------------------------------------------------------------------------------


@given(rate=st.integers(1, 5_000), start=st.integers(0, 3_000), length=st.integers(0, 500))
@settings(max_examples=60, deadline=None)
def test_any_span_is_a_slice_of_a_bigger_one(rate: int, start: int, length: int) -> None:
    packets = Packets(rate)
    whole = packets(0, 3_500, 7)
    assert packets(start, start + length, 7).equals(whole.slice(start, length))


@pytest.mark.parametrize("rate", [1, 3, 7, 40, 400, 2_000])
def test_every_session_has_its_packets_once_in_order_and_within_the_watermark(rate: int) -> None:
    packets = Packets(rate)
    count = 10 * packets.block * len(KINDS)
    rows = np.arange(count)
    frame = pd.DataFrame({"row": rows, "session": packets.session(rows, 3), "step": rows % len(KINDS)})
    whole = frame[frame["session"].between(0, 6 * packets.block - 1)]
    ordered = whole.sort_values(["session", "row"])
    assert (ordered.groupby("session")["step"].apply(list).map(tuple) == tuple(range(len(KINDS)))).all()
    table = packets(0, count, 3)
    lasted_s = pc.max(pc.microseconds_between(table["started"], table["ts"])).as_py() / 1e6
    assert lasted_s < 60


def test_durations_vary_and_fields_fit_the_schema() -> None:
    table = Packets(2_000)(0, 40_000, 0)
    assert table.schema.equals(arrow_schema(parse_schema(SCHEMA)))
    frame = table.to_pandas()
    ends = frame[frame["kind"] == "end"]
    lasted_s = (ends["ts"] - ends["started"]).dt.total_seconds()
    assert 4 <= lasted_s.min() < 4.5 < 7.5 < lasted_s.max() <= 8
    assert frame.groupby(["app", "src"]).ngroups > 5_000


# --- reference ----------------------------------------------------------------------------------------


def _at(second: float) -> pd.Timestamp:
    return pd.Timestamp("2026-01-01", tz="UTC") + pd.Timedelta(seconds=second)


def _packets(*rows: tuple[str, str, str, float, float, str]) -> pa.Table:
    columns = ["app", "src", "dst", "started", "ts", "kind"]
    frame = pd.DataFrame(list(rows), columns=columns)
    frame["started"] = frame["started"].map(_at)
    frame["ts"] = frame["ts"].map(_at)
    return pa.Table.from_pandas(frame, preserve_index=False)


EXAMPLE = _packets(
    ("http", "a", "x", 0, 0, "start"),
    ("http", "a", "y", 1, 1, "start"),
    ("http", "a", "x", 0, 2, "end"),
    ("ftp", "a", "x", 2, 3, "end"),
    ("http", "a", "y", 1, 3.5, "data"),
    ("http", "a", "y", 1, 7, "end"),
    ("http", "b", "x", 5, 5, "start"),
)
SPANS = [PulseSpan(1, 10, 0, 4), PulseSpan(2, 20, 4, 4), PulseSpan(3, 30, 4, 7)]
EXPECTED = {
    (1, "http", "a", 2_000, 2_000.0, 1),
    (1, "ftp", "a", 1_000, 1_000.0, 1),
    (3, "http", "a", 6_000, 4_000.0, 2),
}


def _units(rows: set[tuple[int, str, str, int, float, int]]) -> list[DeliveredUnit]:
    columns = ["pulse", "app", "src", "longest_ms", "average_ms", "sessions"]
    frame = pd.DataFrame(sorted(rows), columns=columns)
    units = []
    for pulse in (1, 2, 3):
        part = frame[frame["pulse"] == pulse].drop(columns="pulse")
        units.append(DeliveredUnit(pulse, pulse, pa.Table.from_pandas(part, preserve_index=False)))
    return units


def test_reference_of_a_small_example() -> None:
    found = expected_rows(EXAMPLE, SPANS)
    assert set(found.itertuples(index=False, name=None)) == EXPECTED


def test_reference_does_not_depend_on_where_unrelated_pulses_cut() -> None:
    packets = Packets(400)(0, 8_000, 0)
    one = expected_rows(packets, [PulseSpan(1, 0, 0, 8_000)])
    many = expected_rows(packets, [PulseSpan(i + 1, i, i * 500, (i + 1) * 500) for i in range(16)])
    last = many.sort_values("pulse").groupby(["app", "src"]).tail(1).drop(columns="pulse")
    key = ["app", "src"]
    pd.testing.assert_frame_equal(
        last.sort_values(key).reset_index(drop=True),
        one.drop(columns="pulse").sort_values(key).reset_index(drop=True),
    )


def test_reference_refuses_sessions_that_the_watermark_would_drop() -> None:
    with pytest.raises(UnbrokenError, match="watermark"):
        expected_rows(_packets(("http", "a", "x", 0, 61, "end")), [PulseSpan(1, 0, 0, 1)])


def test_rows_that_were_never_taken_in_are_expected_too() -> None:
    assert with_rest(SPANS, 7) == SPANS
    assert with_rest(SPANS[:1], 7)[1:] == [PulseSpan(2, 10, 4, 7)]
    assert with_rest([], 7) == [PulseSpan(1, 0, 0, 7)]


def test_pulses_are_read_from_an_ingress_log(tmp_path: Path) -> None:
    log = IngressLogFile(tmp_path / "ingress")
    positions = [None, {"start_ms": 5, "row": 0}, {"start_ms": 5, "row": 40}]
    for pulse in (1, 2):
        body = PulseRecord(pulse * 100, {"packets": (positions[pulse - 1], positions[pulse])}, 1, 0)
        log.append(Entry(pulse, 1, PULSE.encode(body), pulse))
    log.close()
    assert read_pulses(tmp_path / "ingress", "packets") == [PulseSpan(1, 100, 0, 0), PulseSpan(2, 200, 0, 40)]
    with pytest.raises(UnbrokenError, match="no ingress log"):
        read_pulses(tmp_path / "elsewhere", "packets")


# --- verification -------------------------------------------------------------------------------------


def test_exact_output_passes() -> None:
    found = compare(expected_rows(EXAMPLE, SPANS), _units(EXPECTED))
    assert found == RowsVerdict(expected=3, delivered=3, lost=0, duplicated=0, wrong=0)
    assert found.exact


def test_a_lost_row_is_found() -> None:
    found = compare(expected_rows(EXAMPLE, SPANS), _units(EXPECTED - {(1, "ftp", "a", 1_000, 1_000.0, 1)}))
    assert (found.lost, found.duplicated, found.wrong) == (1, 0, 0)


def test_everything_is_lost_without_output() -> None:
    found = compare(expected_rows(EXAMPLE, SPANS), [])
    assert (found.lost, found.duplicated, found.wrong) == (3, 0, 0)


def test_a_duplicated_row_and_a_row_that_nobody_expects_are_found() -> None:
    units = _units(EXPECTED)
    twice = DeliveredUnit(1, 1, pa.concat_tables([units[0].table, units[0].table.slice(0, 1)]))
    expected = expected_rows(EXAMPLE, SPANS)
    assert compare(expected, [twice, *units[1:]]).duplicated == 1
    surplus = compare(expected, _units(EXPECTED | {(2, "dns", "a", 1, 1.0, 1)}))
    assert (surplus.lost, surplus.duplicated, surplus.wrong) == (0, 1, 0)


@pytest.mark.parametrize(("again", "rows"), [(0, 2), (1, 1)])
def test_a_unit_delivered_twice_is_found_even_if_it_is_empty(again: int, rows: int) -> None:
    units = _units(EXPECTED)
    assert compare(expected_rows(EXAMPLE, SPANS), [*units, units[again]]).duplicated == rows


@pytest.mark.parametrize(
    "bad",
    [(3, "http", "a", 6_001, 4_000.0, 2), (3, "http", "a", 6_000, 4_000.5, 2), (3, "http", "a", 6_000, 4_000.0, 3)],
)
def test_a_wrong_row_is_found(bad: tuple[int, str, str, int, float, int]) -> None:
    right = (3, "http", "a", 6_000, 4_000.0, 2)
    found = compare(expected_rows(EXAMPLE, SPANS), _units((EXPECTED - {right}) | {bad}))
    assert (found.lost, found.duplicated, found.wrong) == (0, 0, 1)


def test_a_row_in_the_wrong_unit_is_lost_and_surplus() -> None:
    moved = (EXPECTED - {(3, "http", "a", 6_000, 4_000.0, 2)}) | {(2, "http", "a", 6_000, 4_000.0, 2)}
    found = compare(expected_rows(EXAMPLE, SPANS), _units(moved))
    assert (found.lost, found.duplicated, found.wrong) == (1, 1, 0)


def test_units_are_read_back_from_the_parquet_sink(tmp_path: Path) -> None:
    writer = Parquet(tmp_path / "results").open(tmp_path)
    stream = StreamId.parse("stats.0>table.0")
    for unit in _units(EXPECTED):
        header = UnitHeader(stream, unit.number, unit.pulse, 0, Digest(unit.table.num_rows, 0))
        writer.deliver(header, unit.table)
    assert compare(expected_rows(EXAMPLE, SPANS), read_parquet(tmp_path / "results")).exact


# --- figures ------------------------------------------------------------------------------------------


def _samples(gap_ms: float = 0) -> list[ArrivalSample]:
    """A pulse every 500 ms with 200 ms latency from 0 to 20 s; everything after 15 s comes ``gap_ms`` later."""
    out = []
    for pulse in range(1, 41):
        cut_ms = pulse * 500
        out.append(ArrivalSample(pulse, 100, cut_ms, cut_ms + 200 + (gap_ms if cut_ms > 15_000 else 0)))
    return out


def test_a_steady_output_is_masked() -> None:
    found = measure(_samples(), warm_ms=8_000, kill_ms=15_000)
    assert found == Measures(500, Spread(200, 200, 200), Spread(200, 200, 200), 500, 500)
    assert found.latency_masked and found.gap_masked


def test_a_pause_at_the_kill_is_measured() -> None:
    found = measure(_samples(gap_ms=900), warm_ms=8_000, kill_ms=15_000)
    assert (found.gap_before_ms, found.gap_fault_ms, found.after.max) == (500, 1_400, 1_100)
    assert not found.latency_masked and not found.gap_masked


def test_figures_without_results() -> None:
    found = measure([], warm_ms=0, kill_ms=1)
    assert found.pulse_ms is None and found.gap_fault_ms is None and not found.gap_masked


def test_files_of_a_run(tmp_path: Path) -> None:
    samples, schedule = _samples(), DemoSchedule(8, 15, 20)
    found = measure(samples, warm_ms=8_000, kill_ms=15_000)
    write_timeline(tmp_path / "timeline.csv", samples, 0)
    lines = (tmp_path / "timeline.csv").read_text().splitlines()
    assert lines[0] == "arrived_s,pulse,rows,latency_ms"
    assert lines[1] == "0.700,1,100,200.0" and len(lines) == 41
    draw(tmp_path / "chart.png", "title", samples, 0, schedule, ("node-1", 15.0), found)
    draw(tmp_path / "empty.png", "title", [], 0, schedule, None, measure([], 0, 1))
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def _outcome(table: RowsVerdict, divergences: int = 0) -> DemoOutcome:
    setting = Setting(2_000, 70, 3, 2, 0, DemoSchedule.of(70))
    figures = measure(_samples(), warm_ms=8_000, kill_ms=15_000)
    return DemoOutcome(setting, 140_000, 3, table, RowsVerdict(3, 3, 0, 0, 0), divergences, figures, "node-1")


def test_result_has_the_agreed_keys_and_hides_nothing() -> None:
    good, bad = _outcome(RowsVerdict(3, 3, 0, 0, 0)), _outcome(RowsVerdict(3, 3, 0, 0, 1))
    assert set(good.to_json()) == RESULT_KEYS
    assert good.exact and not bad.exact and not _outcome(RowsVerdict(3, 3, 0, 0, 0), divergences=1).exact
    assert bad.to_json()["lost"] == 1


def test_summary_can_be_printed_anywhere(tmp_path: Path) -> None:
    with (tmp_path / "out.txt").open("w") as file:
        print_summary(Console(file=file, width=100), _outcome(RowsVerdict(3, 2, 1, 0, 0)), tmp_path)
    text = (tmp_path / "out.txt").read_text()
    lost = next(line for line in text.splitlines() if "results lost" in line)
    duplicated = next(line for line in text.splitlines() if "results duplicated" in line)
    assert [cell.strip() for cell in lost.split("│")[1:-1]] == ["results lost", "1", "0", "no"]
    assert [cell.strip() for cell in duplicated.split("│")[1:-1]] == ["results duplicated", "0", "0", "yes"]
    assert "node-1 was killed" in text


# --- running ------------------------------------------------------------------------------------------


def test_the_victim_is_the_node_whose_loss_hurts_most() -> None:
    replicas = [[{"replica": "sessions.0#0"}], [{"replica": "stats.0#0"}], [{"replica": "stats.0#1"}]]
    states = [status(f"node-{i}", replicas=hosted, ingress={"leading": i == 2}) for i, hosted in enumerate(replicas, 1)]
    assert choose_victim(states) == "node-2"
    with pytest.raises(UnbrokenError, match="no node answers"):
        choose_victim([status("node-1", "silent")])


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "thesis.txt").write_text("years of work")
    with pytest.raises(UnbrokenError, match="holds other files"):
        run_demo(tmp_path, rate=2_000, seconds=60, console=Console())
    assert (tmp_path / "state" / "thesis.txt").exists() and not (tmp_path / MARKER).exists()


class _Process:
    pid = 1

    def __init__(self) -> None:
        self.kills = 0

    def alive(self) -> bool:
        return True

    def kill9(self) -> None:
        self.kills += 1


class _Live:
    """A subscription that hands out a unit per 20 ms and ends."""

    def __init__(self, results: list[Result]) -> None:
        self._left = results
        self.ended = False

    def __enter__(self) -> _Live:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def next(self, timeout_s: float) -> Result | None:
        time.sleep(0.02)
        if not self._left:
            self.ended = True
            return None
        result = self._left.pop(0)
        return replace(result, arrived_ms=time.time() * 1000)


class _Cluster:
    """What the runner sees of three nodes, of which the first hosts the most."""

    count = 3

    def __init__(self, units: int, stopped: bool = False) -> None:
        self.nodes = {f"node-{i}": _Process() for i in (1, 2, 3)}
        self._state = "stopped" if stopped else "active"
        table = _units(EXPECTED)[0].table
        stream = StreamId.parse("stats.0>live.0")
        now_ms = int(time.time() * 1000)
        headers = [UnitHeader(stream, n, n, now_ms + 20 * n, Digest(2, 0)) for n in range(1, units + 1)]
        self._results = [Result(header, table, 0) for header in headers]
        self._units = units

    def start(self) -> None:
        pass

    def tend(self) -> list[str]:
        return []

    def stop(self) -> None:
        pass

    def wait_ready(self, deadline_s: float, progress: Callable[[str], None]) -> None:
        progress("3 of 3 nodes are ready")

    def subscribe(self, sink: str, after: int = 0) -> _Live:
        assert sink == "live"
        return _Live(self._results)

    def status(self) -> list[NodeStatus]:
        hosted = {"node-1": "stats.0#0", "node-2": "stats.0#1", "node-3": "sessions.0#0"}
        return [
            status(
                name,
                notices=[status_of(Reported(1, name, NodeReady(name)))],
                replicas=[{"replica": replica, "state": self._state}],
                sinks={"stats.0>table.0": {"delivered": self._units}},
                divergences=[diverged()],
                ingress={"leading": name == "node-1", "rows": 40},
            )
            for name, replica in hosted.items()
        ]


def _drive(cluster: _Cluster, tmp_path: Path) -> tuple[Recording, str]:
    told: SimpleQueue[str] = SimpleQueue()
    with (
        (tmp_path / "screen.txt").open("w") as file,
        Screen(Console(file=file, width=200)) as screen,
        Harness(LocalDeployment(lambda: cluster), told.put, ask_s=0.05) as harness,  # type: ignore[type-var]
    ):
        recording = runner._Drive(harness, told, screen, DemoSchedule(0.2, 0.4, 1.0), True).run()  # type: ignore[arg-type]
    return recording, (tmp_path / "screen.txt").read_text()


def test_a_run_kills_the_victim_once_and_records_everything(tmp_path: Path) -> None:
    cluster = _Cluster(units=40)
    recording, text = _drive(cluster, tmp_path)
    assert [process.kills for process in cluster.nodes.values()] == [1, 0, 0]
    assert recording.killed == "node-1" and recording.divergences == (DivergedUnit(**diverged()),)
    assert [unit.number for unit in recording.units] == list(range(1, 41))
    assert [sample.pulse for sample in recording.samples] == list(range(1, 41))
    assert text.count(line_of(Reported(1, "node-2", NodeReady("node-2")))) == 1
    assert "kill -9 of node-1" in text and "node-1 hosted ingress (leads), stats.0#0" in text
    assert "the last result is here" in text


def test_a_flow_that_cannot_go_on_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = _Cluster(units=40, stopped=True)
    monkeypatch.setattr(_Live, "next", lambda self, timeout_s: time.sleep(0.02))
    recording, text = _drive(cluster, tmp_path)
    assert recording.units == [] and "no replica of sessions.0, stats.0 is left" in text
