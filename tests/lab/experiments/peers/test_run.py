"""`unbroken bench peers`: settings, claims and picture from fixed rows; the Spark systems with tiny parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from unbroken.cli import cli
from unbroken.errors import UnbrokenError
from unbroken_lab.cli.experiments import figures_table
from unbroken_lab.experiments.experiment import ERROR, Row, Size
from unbroken_lab.experiments.peers.run import PEERS, SYSTEMS, PeerComparison
from unbroken_lab.experiments.peers.schedule import PeerSchedule
from unbroken_lab.experiments.records import keep, numeric, read_csv, write_csv


def rows_of(system: str, gap_ms: float, largest_ms: float) -> list[Row]:
    figures: Row = {
        "killed": "something",
        "p50_ms": 100.0,
        "p99_ms": 200.0,
        "gap_before_ms": 90.0,
        "fault_max_ms": largest_ms,
        "fault_gap_ms": gap_ms,
        "normal_s": None if system == "flink" else 1.5,
        "lost": 0,
        "duplicated": 0,
        "wrong": 0,
        "repeated": 3,
        "cpu_s": 50.0,
        "cores": 1.1,
    }
    points: list[Row] = [
        {"at_s": at / 4, "events": 10, "latency_ms": 90.0, "latency_max_ms": 100.0 + max(0, at)}
        for at in range(-80, 80)
    ]
    return [{"system": system, **row} for row in (figures, *points)]


ROWS: list[Row] = [
    *rows_of("unbroken", 500.0, 700.0),
    *rows_of("spark", 15_000.0, 15_500.0),
    *rows_of("flink", 8_000.0, 9_000.0),
    *rows_of("flink-tuned", 900.0, 1_400.0),
    *rows_of("flink-eager", 400.0, 500.0),
    {"system": "spark-cluster", ERROR: "it could not be started\nbecause"},
]


@pytest.mark.parametrize(
    ("systems", "rate", "seconds", "said"),
    [
        ("unbroken,storm", 10, None, "there is no system storm"),
        (" , ", 10, None, "no system was named"),
        ("spark", 0, None, "a rate of 0"),
        ("spark", 10, 2.0, "too short"),
    ],
)
def test_settings_that_make_no_sense_are_refused(systems: str, rate: int, seconds: float | None, said: str) -> None:
    with pytest.raises(UnbrokenError, match=said):
        PeerComparison(systems, rate, seconds)


def test_settings_of_the_command_line() -> None:
    asked = PeerComparison("flink, unbroken,flink", 100)
    assert [case["system"] for case in asked.cases(Size())] == ["flink", "unbroken"]
    assert [case["system"] for case in PeerComparison().cases(Size())] == list(SYSTEMS)


def test_claims_compare_within_the_run() -> None:
    claims = PeerComparison().claims([row for row in ROWS if not row.get(ERROR)])
    aims = [claim for claim in claims if claim.paper.startswith("aim")]
    assert [(claim.here.partition(" ")[0], claim.agrees) for claim in aims] == [
        ("0.033", True),
        ("0.062", False),
        ("0.50", True),
    ]
    assert aims[2].here == "0.50 (0.70 s / 1.40 s)"
    (eager,) = (
        claim for claim in claims if claim.claim.endswith("Flink, heartbeats every 200 ms") and "by" in claim.claim
    )
    assert eager.here.startswith("1.40") and eager.agrees is None, "measured, not aimed at"
    assert any(claim.here == "not within the run" for claim in claims)


def test_what_is_kept_can_be_read_again(tmp_path: Path) -> None:
    write_csv(tmp_path / "peers.csv", ROWS)
    again = read_csv(tmp_path / "peers.csv")
    kept = keep(PeerComparison(), again, tmp_path, Size(), 1.0)
    assert kept.failed == ["it could not be started\nbecause"]
    assert (tmp_path / "peers.png").stat().st_size > 10_000
    lines = {str(row["system"]): row for row in numeric(PeerComparison().lines(again))}
    assert set(lines) == set(SYSTEMS), "a line for each system, without the course of the latency"
    assert lines["spark-cluster"] == {"system": "spark-cluster", ERROR: "it could not be started\nbecause"}
    assert lines["unbroken"]["fault_gap_ms"] == 500.0
    assert figures_table(PeerComparison(), PeerComparison().lines(again)).row_count == 6


def test_the_schedule_measures_before_and_after_the_kill() -> None:
    schedule = PeerSchedule.of(80)
    assert (schedule.warm_s, schedule.kill_s, schedule.end_s) == (24.0, 40.0, 80)


def test_every_system_has_a_name_of_its_own() -> None:
    assert len({peer.title for peer in PEERS.values()}) == len(SYSTEMS) == 6


def test_a_system_that_does_not_exist_is_refused_by_the_command() -> None:
    done = CliRunner().invoke(cli, ["bench", "peers", "--systems", "storm"])
    assert done.exit_code != 0


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_spark_systems_lose_a_process_and_no_event(tmp_path: Path) -> None:
    command = ["bench", "peers", "--systems", "spark,spark-cluster", "--rate", "500", "--seconds", "40"]
    done = CliRunner().invoke(cli, [*command, "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    for name in ("spark", "spark-cluster"):
        (figures,) = (row for row in result["rows"] if row["system"] == name)
        assert [float(figures[key]) for key in ("lost", "duplicated", "wrong")] == [0, 0, 0]
        assert 0 < float(figures["p50_ms"]) <= float(figures["p99_ms"])
        assert float(figures["cpu_s"]) > 0
    assert {path.name for path in tmp_path.iterdir()} == {"peers.csv", "peers.png", "peers.json"}
