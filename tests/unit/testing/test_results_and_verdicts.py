"""What a run says of itself, and how it is held against one without faults."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kit.statuses import diverged
from unbroken import Client, Dataflow, Files
from unbroken.errors import UnbrokenError
from unbroken.observe.status.node import DivergedUnit
from unbroken.testing import Different, Kill, assert_same_as_fault_free
from unbroken.testing.input.files import RunFiles
from unbroken.testing.input.kept_units import KeptUnit
from unbroken.testing.reference import ReferenceJob
from unbroken.testing.result import ResultShape, Run, Struck, UnitName
from unbroken.testing.verdict import Keys, _cut_times
from unbroken.testing.warm.deployment import DeploymentSetup


def unit(number: int, *values: int, shard: int = 0, at_s: float | None = None, tentative: bool = False) -> KeptUnit:
    arrived = float(number if at_s is None else at_s) * 1000
    table = pa.table({"k": pa.array([v % 2 for v in values], pa.int64()), "v": pa.array(values, pa.int64())})
    return KeptUnit(shard, number, number, 100 + number, arrived, False, tentative, table)


def flow_of(mode: str = "update", guarantee: str = "exactly-once", ordering: str = "pulse") -> Dataflow:
    flow = Dataflow("numbers", guarantee=guarantee, ordering=ordering)
    flow.source("numbers", Files("nowhere", format="json", schema="v long"))
    flow.segment("numbers", name="last", output_mode=mode)(lambda rows: rows)
    flow.sink("out", "last", Client())
    return flow


def run_of(directory: Path, *units: KeptUnit, cuts: int = 3, flow: Dataflow | None = None, shards: int = 1) -> Run:
    declared = flow or flow_of()
    files = RunFiles(directory)
    files.make()
    files.flow.touch()
    return Run(
        ResultShape("numbers", {"out": shards}, declared.ordering == "pulse"),
        files,
        {"out": list(units)},
        {"numbers": [(n, n + 1) for n in range(cuts)]},
        setup=DeploymentSetup(declared, files, 2, 0, False),
    )


def test_rows_come_by_unit_and_in_an_order_of_their_own(tmp_path: Path) -> None:
    run = run_of(tmp_path, unit(2, 5), unit(1, 4, 3), unit(1, 2, shard=1), unit(3, 9, tentative=True))
    assert [row["v"] for row in run.rows("out")] == [2, 4, 3, 5]
    assert [(row["unit"], row["v"]) for row in run.rows("out", numbered=True)] == [(1, 2), (1, 4), (1, 3), (2, 5)]
    assert run.table("out").column("v").to_pylist() == [2, 4, 3, 5]
    assert run.table("out", numbered=True).column("unit").to_pylist() == [1, 1, 1, 2]
    assert run.latest("out", "k") == [{"k": 0, "v": 4}, {"k": 1, "v": 5}]
    assert [each.number for each in run.units("out")] == [1, 1, 2]
    assert [each.number for each in run.tentative("out")] == [3]
    with pytest.raises(UnbrokenError, match="no sink 'uot'; did you mean 'out'"):
        run.rows("uot")


def test_what_was_lost_or_came_twice_is_named(tmp_path: Path) -> None:
    run = run_of(tmp_path, unit(1, 1), unit(3, 3), unit(3, 3), shards=1)
    assert run.lost == [UnitName("out", 0, 2)] and run.duplicates == [UnitName("out", 0, 3)]
    assert str(run.lost[0]) == "unit 2 of shard 0 in out"
    assert run_of(tmp_path, unit(1, 1), cuts=2).lost == [UnitName("out", 0, 2)], "the last cut never came"


def test_the_gap_counts_from_the_last_result_before_the_first_fault(tmp_path: Path) -> None:
    run = run_of(tmp_path, unit(1, at_s=10), unit(2, at_s=19), unit(3, at_s=20), unit(4, at_s=22.5))
    assert run.gap_s == 9
    run.struck = (Struck(Kill(1, at_unit=3), "kill -9 of node-1", 20.1),)
    assert run.gap_s == 2.5
    assert run_of(tmp_path).gap_s == 0


def test_a_run_says_what_was_done_and_where_to_look(tmp_path: Path) -> None:
    run = run_of(tmp_path, unit(1, 1))
    run.struck = (Struck(Kill(1, at_unit=3), "kill -9 of node-1 (process 7)", 20.1),)
    assert run.describe().splitlines() == [
        "flow numbers: 1 units in out",
        "  done: Kill(node=1, at_unit=3): kill -9 of node-1 (process 7)",
        f"  logs: {tmp_path / 'logs'}",
    ]


def expecting(run: Run, *units: KeptUnit) -> Run:
    run.reference = {"out": {each.number: each.table.to_pylist() for each in units}}
    return run


def test_a_run_with_the_expected_rows_passes(tmp_path: Path) -> None:
    assert_same_as_fault_free(expecting(run_of(tmp_path, unit(1, 2, 1), unit(2, 3)), unit(1, 1, 2), unit(2, 3)))


def test_what_differs_is_told_with_what_was_done_and_where_the_logs_are(tmp_path: Path) -> None:
    run = expecting(run_of(tmp_path, unit(1, 1), unit(2, 3, 3)), unit(1, 1, 2), unit(2, 3))
    with pytest.raises(Different) as caught:
        assert_same_as_fault_free(run)
    assert str(caught.value).splitlines() == [
        "sink out differs from the fault-free run: 1 row missing, 1 row doubled",
        "  unit 1: missing: {'k': 0, 'v': 2}",
        "  unit 2: doubled: {'k': 1, 'v': 3}",
        "flow numbers: 2 units in out",
        "  nothing was done to it",
        f"  logs: {tmp_path / 'logs'}",
    ]


def test_a_divergence_is_no_success(tmp_path: Path) -> None:
    run = expecting(run_of(tmp_path, unit(1, 1)), unit(1, 1))
    run.divergences = (DivergedUnit(**diverged()),)
    with pytest.raises(Different, match=r"replicas have diverged: sums\.0#1"):
        assert_same_as_fault_free(run)


def test_rows_in_other_units_matter_only_if_units_do(tmp_path: Path) -> None:
    run = expecting(run_of(tmp_path, unit(1, 1), unit(2, 2, 3)), unit(1, 1, 2), unit(2, 3))
    with pytest.raises(Different, match="expected in unit 1, came in unit 2"):
        assert_same_as_fault_free(run)
    assert_same_as_fault_free(run, by="rows")


@pytest.mark.parametrize("keys", [["k"], {"out": ["k"]}])
def test_with_keys_only_what_is_known_in_the_end_matters(tmp_path: Path, keys: Keys) -> None:
    run = expecting(run_of(tmp_path, unit(1, 1), unit(2, 2, 5)), unit(1, 3), unit(2, 5), unit(3, 2))
    assert_same_as_fault_free(run, keys=keys)
    with pytest.raises(Different, match=r"missing: \{'k': 1, 'v': 7\}"):
        assert_same_as_fault_free(expecting(run, unit(1, 7), unit(2, 2)), keys=keys)
    assert_same_as_fault_free(expecting(run, unit(1, 7)), keys={})


def test_where_units_differ_from_run_to_run_updates_need_keys(tmp_path: Path) -> None:
    run = expecting(run_of(tmp_path, unit(1, 1), flow=flow_of(ordering="leader")), unit(2, 1))
    with pytest.raises(UnbrokenError, match="sink out gets updates, and in flow numbers units are cut otherwise"):
        assert_same_as_fault_free(run)
    assert_same_as_fault_free(run, keys=["k"])
    run = expecting(run_of(tmp_path, unit(1, 1), flow=flow_of("append", ordering="leader")), unit(2, 1))
    assert_same_as_fault_free(run)


def test_what_the_guarantee_allows_is_allowed(tmp_path: Path) -> None:
    twice = (unit(1, 1), unit(1, 1), unit(2, 2), unit(3, 3))
    wanted = (unit(1, 1), unit(2, 2), unit(3, 3))
    with pytest.raises(Different, match="unit 1: doubled"):
        assert_same_as_fault_free(expecting(run_of(tmp_path, *twice), *wanted))
    assert_same_as_fault_free(expecting(run_of(tmp_path, *twice, flow=flow_of(guarantee="at-least-once")), *wanted))
    lost = (unit(1, 1), unit(3, 3))
    with pytest.raises(Different, match="unit 2: missing"):
        assert_same_as_fault_free(expecting(run_of(tmp_path, *lost), *wanted))
    assert_same_as_fault_free(expecting(run_of(tmp_path, *lost, flow=flow_of(guarantee="at-most-once")), *wanted))


def test_mistakes_are_told(tmp_path: Path) -> None:
    run = expecting(run_of(tmp_path, unit(1, 1)), unit(1, 1))
    with pytest.raises(UnbrokenError, match="by 'unit' or by 'rows'"):
        assert_same_as_fault_free(run, by="units")
    with pytest.raises(UnbrokenError, match="either by= or keys="):
        assert_same_as_fault_free(run, by="rows", keys=["k"])
    run.remove()
    with pytest.raises(UnbrokenError, match="the directory of this run is gone"):
        assert_same_as_fault_free(run)


def test_a_lost_unit_was_cut_when_the_one_before_it_was(tmp_path: Path) -> None:
    run = run_of(tmp_path, unit(1, 1), unit(3, 3), cuts=4)
    job = ReferenceJob(run.cuts, _cut_times(run))
    assert job.cut_ms == [101, 101, 103, 103] and job.units == 4
    job.write(tmp_path / "reference")
    assert ReferenceJob.read(tmp_path / "reference") == job
