"""What `unbroken bench consistency` makes of results and times, and the flow that it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lab.experiments.trying import drawn
from unbroken.client import Reconciled, Result, Undo
from unbroken.errors import UnbrokenError
from unbroken.flow.environment import variables
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken.protocol.values.consistency import InputHandling, Reconcile
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken_lab.experiments.consistency import consistency
from unbroken_lab.experiments.consistency.claims import together
from unbroken_lab.experiments.consistency.consistency import ConsistencyExperiment
from unbroken_lab.experiments.consistency.figures import (
    Failure,
    Grid,
    ResultArrival,
    caught_up_ms,
    delays,
    figures,
    micro_batches,
    replaced_ms,
    usual_ms,
)
from unbroken_lab.experiments.consistency.reader import BoundedReader
from unbroken_lab.experiments.consistency.settings import ConsistencySettings, HandlingCase
from unbroken_lab.experiments.experiment import ERROR, Row, Size, flat
from unbroken_lab.experiments.flows import bounded
from unbroken_lab.experiments.flows.interrupted import WINDOW_MS, InterruptedSource, Stream, expected

BUCKET = 500
GRID = Grid(origin_ms=100_000, bucket_ms=BUCKET)
LATE = 300.0
X = 3_000.0
FAILURE = Failure(5.0, quiet_ms=105_000, began_ms=110_000, healed_ms=115_000, done_ms=125_000)
NO_SUBSCRIPTION: Any = None
SHARD = StreamId(ShardId("counted", 0), ShardId("live", 0))


def stable(pulse: int, at_ms: float | None = None, correction: bool = False) -> ResultArrival:
    """A stable unit, by default as soon after its bucket as ever."""
    return ResultArrival(pulse, pulse - 1, True, 10, GRID.end_ms(pulse) + LATE if at_ms is None else at_ms, correction)


def tentative(since: int, pulse: int, at_ms: float) -> ResultArrival:
    return ResultArrival(pulse, since, False, 8, at_ms)


def calm(first: int, last: int) -> list[ResultArrival]:
    return [stable(pulse) for pulse in range(first, last + 1)]


def five_seconds() -> list[ResultArrival]:
    """Pulses from 20 on lack an input; after 3.4 s results are tentative, and 2.6 s after the end all are right."""
    waited = [tentative(19, 25, 113_900.0)]
    fresh = [tentative(pulse - 1, pulse, GRID.end_ms(pulse) + 1_000) for pulse in range(26, 33)]
    right = [stable(pulse, 115_500 + 150 * (pulse - 20), correction=pulse < 33) for pulse in range(20, 35)]
    return sorted([*calm(1, 19), *waited, *fresh, *right, *calm(35, 48)], key=lambda one: one.at_ms)


# --- one failure --------------------------------------------------------------------------------------


def test_a_grid_is_known_from_one_unit() -> None:
    assert Grid.of(19, GRID.end_ms(19) - 1, BUCKET) == GRID
    assert Grid.of(19, GRID.end_ms(18), BUCKET) == GRID


def test_the_delay_of_a_pulse_is_that_of_its_first_result() -> None:
    found = delays(five_seconds(), GRID, FAILURE.began_ms, FAILURE.done_ms)
    assert found[20] == 3_900 and found[25] == 1_400 and found[26] == 1_000
    assert found[33] == 115_500 + 150 * 13 - GRID.end_ms(33)
    assert found[35] == found[48] == LATE
    assert 19 not in found


def test_what_a_failure_of_five_seconds_did() -> None:
    found = figures(five_seconds(), GRID, FAILURE, X)
    assert found["delay_new_ms"] == 3_900.0 and found["delay_oldest_ms"] == 4_400.0
    assert found["below_max_delay"] is False and found["lasted_s"] == 5.0
    assert found["tentative_units"] == 8 and found["tentative_rows"] == 64
    assert found["tentative_units_after"] == 5 and found["corrections"] == 13
    assert found["replaced_s"] == pytest.approx((115_500 + 150 * 12 - 115_000) / 1000)
    assert found["caught_up_s"] == found["reconciliation_s"] == pytest.approx((115_500 + 150 * 14 - 115_000) / 1000)
    assert found["latency_ms"]["before"] == {"p50": LATE, "p99": LATE, "max": LATE}
    assert figures(five_seconds(), GRID, FAILURE, 4_000)["below_max_delay"] is True


def test_a_short_failure_shows_in_nothing_but_delay() -> None:
    short = Failure(2.0, 105_000, 110_000, 112_000, 120_000)
    waited = [stable(pulse, 112_300 + 100 * (pulse - 20)) for pulse in range(20, 25)]
    found = figures([*calm(1, 19), *waited, *calm(25, 40)], GRID, short, X)
    assert found["tentative_rows"] == found["tentative_units"] == found["corrections"] == 0
    assert found["delay_new_ms"] == 2_300.0 and found["below_max_delay"] is True
    assert found["replaced_s"] is None and found["reconciliation_s"] == found["caught_up_s"] is not None


def test_what_is_not_replaced_is_not_right() -> None:
    arrivals = [*calm(1, 19), tentative(19, 60, 113_000.0), *(stable(p, 115_500.0 + p) for p in range(20, 30))]
    found = figures(arrivals, GRID, FAILURE, X)
    assert found["replaced_s"] is None and found["reconciliation_s"] is None


def test_without_results_nothing_is_known() -> None:
    found = figures([], GRID, FAILURE, X)
    assert found["delay_new_ms"] is None and found["below_max_delay"] is None and found["reconciliation_s"] is None


def test_results_are_as_before_when_several_in_a_row_are() -> None:
    usual = usual_ms(calm(10, 19), GRID, 105_000, 110_000)
    assert usual == LATE + BUCKET
    shaky = [stable(20, 116_000), stable(21), stable(22, 117_000), *calm(23, 30)]
    assert caught_up_ms(shaky, GRID, 110_000, usual) == GRID.end_ms(23) + LATE
    assert caught_up_ms(shaky[:3], GRID, 110_000, usual) is None


def test_the_last_replacement_counts() -> None:
    twice = [tentative(19, 22, 1.0), *(stable(p, 2.0) for p in (20, 21, 22)), tentative(22, 23, 3.0), stable(23, 4.0)]
    assert replaced_ms(twice, 0.0) == 4.0
    assert replaced_ms(twice[:4], 0.0) == 2.0
    assert replaced_ms(twice[:5], 0.0) is None
    assert replaced_ms(calm(1, 9), 0.0) is None


def test_micro_batches_are_told_without_their_waiting() -> None:
    known = [{"triggerExecution": 700.0, "latestOffset": 500.0}, {"triggerExecution": 300.0}]
    assert micro_batches(known) == {"p50": 250.0, "p99": 299.0, "max": 300.0}
    assert micro_batches([])["p50"] is None


# --- the reader ---------------------------------------------------------------------------------------


STREAMS = tuple(Stream(90_000, 300, number) for number in range(3))


def result(pulse: int, *, since: int | None = None, begin: int | None = None, correction: bool = False) -> Result:
    """A unit of rows of its bucket, or of all after ``begin``; one that is tentative, after ``since``, lacks some."""
    is_stable = since is None
    first = next((each for each in (begin, since) if each is not None), pulse - 1)
    wanted = expected(STREAMS if is_stable else STREAMS[:2], GRID.end_ms(first), GRID.end_ms(pulse))
    rows = [(*place, *values[:2], values[2] if is_stable else 0, values[-1]) for place, values in wanted.items()]
    names = ("w", "k", "n0", "n1", "n2", "total")
    columns: dict[str, Any] = {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    table = pa.table({**columns, "newest_ms": [GRID.end_ms(pulse) - 1] * len(rows)})
    header = UnitHeader(SHARD, pulse, pulse, 0, Digest(len(rows), 0), stable=is_stable, since=since or 0)
    return Result(header, table, 0.0, correction)


def reader_of(*events: tuple[float, Any]) -> BoundedReader:
    reader = BoundedReader(NO_SUBSCRIPTION, bucket_ms=BUCKET)
    for at_ms, event in events:
        reader.note(event, at_ms)
    return reader


def test_a_reader_notes_when_results_were_given_out() -> None:
    begun = reader_of((100_800.0, result(1)), (101_300.0, result(2)), (104_000.0, result(5, since=2)))
    assert begun.grid == GRID and begun.uncertain and begun.last_latency_ms == 104_000 - 102_500
    assert [(one.since, one.pulse, one.stable) for one in begun.arrivals] == [(0, 1, True), (1, 2, True), (2, 5, False)]
    assert not begun.caught_up(100_000, 5_000)
    begun.note(Undo(SHARD, 2), 105_000.0)
    for pulse in (3, 4, 5):
        begun.note(result(pulse, correction=True), 105_000.0 + pulse)
    begun.note(Reconciled(SHARD, 5), 105_006.0)
    assert not begun.uncertain
    assert (
        begun.caught_up(105_000, 4_000) and not begun.caught_up(105_000, 2_000) and not begun.caught_up(105_004, 4_000)
    )
    found = begun.judge(STREAMS, Failure(1.0, 100_000, 103_000, 104_500, 110_000))
    assert found["undos"] == found["reconciled"] == 1 and found["units"] == 5 and found["missing_units"] == 0


def test_stable_results_are_compared_in_windows_that_are_whole() -> None:
    """The first window is not: rows from before the first unit are missing in it."""
    first = (WINDOW_MS - BUCKET) // BUCKET
    events = [(GRID.end_ms(p) + 10.0, result(p)) for p in range(first, first + 15)]
    failure = Failure(1.0, 0, 1, 2, 10**9)
    found = reader_of(*events).judge(STREAMS, failure)
    assert found["lost"] == found["wrong"] == found["duplicated"] == found["missing_units"] == 0
    reader = reader_of(*events)
    wrong, early = first + 5, first
    reader.tables[wrong] = result(wrong, since=wrong - 1).table
    reader.tables[early] = reader.tables[early].slice(5)
    found = reader.judge(STREAMS, failure)
    assert found["wrong"] == reader.tables[wrong].num_rows and found["lost"] == 0


def test_the_results_of_pulses_that_were_processed_together_are_in_the_last_of_them() -> None:
    """So it is after a failure, when many buckets come at once."""
    whole = WINDOW_MS // BUCKET
    events = [(GRID.end_ms(p) + 10.0, result(p)) for p in range(1, whole + 15)]
    reader, failure = reader_of(*events), Failure(1.0, 0, 1, 2, 10**9)
    first, last = whole + 3, whole + 13
    reader.tables[last] = result(last, begin=first - 1).table
    for pulse in range(first, last + 1):
        reader.folds[pulse] = last
        if pulse < last:
            reader.tables[pulse] = reader.tables[pulse].slice(0, 0)
    found = reader.judge(STREAMS, failure)
    assert found["lost"] == found["wrong"] == found["duplicated"] == 0
    reader.tables[first] = result(first).table
    assert reader.judge(STREAMS, failure)["duplicated"] == reader.tables[first].num_rows


def test_a_stable_unit_that_did_not_come_is_missing() -> None:
    reader = reader_of((1.0, result(1)), (2.0, result(2)), (3.0, result(4)))
    assert reader.judge(STREAMS, Failure(1.0, 0, 1, 2, 10))["missing_units"] == 1


# --- claims -------------------------------------------------------------------------------------------


def run(
    case: HandlingCase, duration_s: float, took_s: float | None, *, delay_ms: float = 2_900.0, rows: int = 80
) -> Row:
    figures = {
        **case.to_json(),
        "duration_s": duration_s,
        "delay_new_ms": delay_ms,
        "below_max_delay": delay_ms < X,
        "tentative_rows": rows,
        "tentative_units": rows // 8,
        "corrections": rows // 8,
        "reconciliation_s": took_s,
        "latency_ms": {"before": {"p50": 300.0, "p99": 400.0, "max": 500.0}},
        "cpu_s": {"quiet": 5.0, "failure": 9.0},
        "micro_batch_ms": {"quiet": micro_batches([]), "failure": {"p50": 210.0, "p99": 300.0, "max": 400.0}},
        **{"lost": 0, "wrong": 0, "duplicated": 0, "missing_units": 0},
    }
    return flat(figures)


FORK, REDO, UNDO = (HandlingCase("process/process", way) for way in ("fork", "redo", "undo"))
SUSPEND = HandlingCase("process/suspend", "fork")
RUNS = [
    run(FORK, 2.0, 0.5, rows=0),
    run(FORK, 5.0, 2.0),
    run(FORK, 5.0, 4.0, delay_ms=2_950.0),
    run(FORK, 15.0, 6.0),
    run(REDO, 5.0, 5.0),
    run(REDO, 15.0, 8.0),
    run(UNDO, 5.0, 10.0),
    run(SUSPEND, 15.0, 5.0, delay_ms=5_500.0),
]
BEFORE = "s without an input, process/process"


def test_a_figure_of_repeated_runs_of_which_not_all_are_known_is_not_known() -> None:
    assert together(RUNS[1:3], "reconciliation_s") == 3.0 and together(RUNS[1:3], "delay_new_ms", max) == 2_950.0
    assert together([run(FORK, 5.0, 2.0), run(FORK, 5.0, None)], "reconciliation_s") is None
    assert together([], "reconciliation_s") is None


def test_ways_to_correct_are_compared_by_the_length_of_the_failure(tmp_path: Path) -> None:
    found = drawn(ConsistencyExperiment(), RUNS, tmp_path)
    assert {name: (claim.here, claim.agrees) for name, claim in found.items()} == {
        "stable rows lost, wrong or duplicated, and units missing": ("0", True),
        f"delay of new results, 2 {BEFORE}, fork": ("2,900 ms", True),
        f"tentative rows, 2 {BEFORE}, fork": ("0", True),
        f"delay of new results, 5 {BEFORE}, fork": ("2,950 ms", True),
        f"delay of new results, 15 {BEFORE}, fork": ("2,900 ms", True),
        f"time to correct by fork for each of redo, 5 {BEFORE}": ("0.6", True),
        f"time to correct by fork for each of redo, 15 {BEFORE}": ("0.75", True),
        f"time to correct by redo for each of undo, 5 {BEFORE}": ("0.5", True),
    }


def test_aims_that_are_missed() -> None:
    runs = [run(FORK, 2.0, 0.5), run(FORK, 5.0, 9.0, delay_ms=3_000.0), run(REDO, 5.0, 4.0), run(UNDO, 5.0, 4.0)]
    wrong: Row = {**run(SUSPEND, 15.0, 5.0), "missing_units": 1}
    missed = [claim.claim for claim in ConsistencyExperiment().claims([*runs, wrong]) if claim.agrees is False]
    assert missed == [
        "stable rows lost, wrong or duplicated, and units missing",
        f"tentative rows, 2 {BEFORE}, fork",
        f"delay of new results, 5 {BEFORE}, fork",
        f"time to correct by fork for each of redo, 5 {BEFORE}",
        f"time to correct by redo for each of undo, 5 {BEFORE}",
    ]


def test_what_a_case_gave_before_it_failed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {**FORK.to_json(), "duration_s": 15.0, "error": "too busy"}
    monkeypatch.setattr(consistency, "measure_case", lambda *_: [run(FORK, 5.0, 2.0), broken])
    first, second = ConsistencyExperiment().measure(dict(FORK.to_json()), Size(), lambda _: None)
    assert first["reconciliation_s"] == 2.0 and second[ERROR] == "too busy"
    monkeypatch.setattr(consistency, "measure_case", lambda *_: [broken])
    with pytest.raises(UnbrokenError, match="too busy"):
        ConsistencyExperiment().measure(dict(FORK.to_json()), Size(), lambda _: None)


# --- the flow and the settings ------------------------------------------------------------------------


@pytest.mark.parametrize("case", ConsistencySettings().cases(), ids=str)
def test_the_flow_does_what_the_case_says(case: HandlingCase) -> None:
    settings = ConsistencySettings(max_delay_ms=2_000, alpha=0.8, rate=900, replicas=2, bucket_ms=250)
    load = settings.load(case, 1_000, Path("off"))
    with variables({f"UNBROKEN_BENCH_{name}": str(value) for name, value in load.items()}):
        flow = load_flow(Path(bounded.__file__))
    topology = build_topology(flow)
    how = topology.availability["counted"]
    assert (how.max_delay_ms, how.alpha, how.patience_ms) == (2_000, 0.8, 1_600)
    assert f"{how.during_failure.value}/{how.during_stabilization.value}" == case.policy
    assert how.reconcile is Reconcile(case.reconcile) and how.during_failure is not InputHandling.SUSPEND
    assert topology.bucketed and flow.settings.bucket == 250 and topology.replicas["counted"] == 2
    sources = [source.connector for source in flow.sources.values()]
    known = [source for source in sources if isinstance(source, InterruptedSource)]
    assert [source.switch for source in known] == [None, None, "off"]
    assert [source.stream for source in known] == [Stream(1_000, 300, number) for number in range(3)]


def test_settings_are_read_from_the_command_line() -> None:
    settings = ConsistencySettings.parse(
        "4, 8.5", "delay/delay,process/process", "redo,fork", max_delay="1500ms", repeat=2
    )
    assert settings.durations == (4.0, 8.5) and settings.max_delay_ms == 1_500 and settings.bucket_ms == 500
    assert [str(case) for case in settings.cases()] == [
        "delay/delay, redo",
        "delay/delay, fork",
        "process/process, redo",
    ]
    assert settings.failures() == [4.0, 8.5, 4.0, 8.5]


def test_every_policy_is_measured_with_forks_and_the_first_one_with_everything() -> None:
    cases = ConsistencySettings().cases()
    assert len(cases) == 8 and cases[:3] == [FORK, REDO, UNDO]
    assert {case.reconcile for case in cases[3:]} == {"fork"}


@pytest.mark.parametrize(
    ("arguments", "options", "why"),
    [
        (("2,x", "process/process", "fork"), {}, "no durations"),
        (("0", "process/process", "fork"), {}, "no durations"),
        (("2", "process", "fork"), {}, "no pair of policies process"),
        (("2", "process/process", "forget"), {}, "no way to reconcile forget"),
        (("2", "process/process", "fork"), {"max_delay": "soon"}, "max-delay: 'soon' is not a duration"),
        (("2", "process/process", "fork"), {"bucket": "0.5ms"}, "no whole number"),
        (("2", "process/process", "fork"), {"rate": 2}, "rate is 2"),
        (("2", "process/process", "fork"), {"replicas": 0}, "replicas is 0"),
        (("2", "process/process", "fork"), {"repeat": 0}, "repeat is 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: tuple[str, str, str], options: dict[str, Any], why: str) -> None:
    with pytest.raises(UnbrokenError, match=why):
        ConsistencySettings.parse(*arguments, **options)


def test_what_makes_no_sense_is_refused_before_anything_is_started() -> None:
    with pytest.raises(UnbrokenError, match="alpha"):
        ConsistencyExperiment(alpha=0.99).cases(Size())
