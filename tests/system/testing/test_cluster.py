"""Real nodes under faults, as a user's tests would have them. All share the processes of one pool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kit.places import FLOWS
from unbroken.protocol.values.notices.ingress import IngressLed
from unbroken.testing import (
    Freeze,
    Kill,
    Partition,
    RunFailed,
    SourceFails,
    WarmCluster,
    assert_same_as_fault_free,
    kill_here,
    mark,
    pause_here,
    run_with_faults,
)

HERE = Path(__file__).parent
CLICKS = FLOWS / "clicks_flow.py"
JOINED = HERE / "joined_flow.py"
LED = HERE / "led_flow.py"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

DEADLINE_S = 600.0
"""It is what happens that is tested, not how long it takes on a machine that does other things meanwhile."""


def clicks(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"user": "abcdefg"[n % 7], "n": n} for n in range(first, first + count)]


def totals(count: int) -> list[dict[str, Any]]:
    """What is known of every user after so many clicks."""
    of = {user: [row["n"] for row in clicks(count) if row["user"] == user] for user in "abcdefg"}
    return [{"user": user, "clicks": len(ns), "total": sum(ns)} for user, ns in of.items()]


@pytest.mark.smoke
def test_a_killed_node_is_not_noticed(unbroken_cluster: WarmCluster) -> None:
    run = run_with_faults(
        CLICKS,
        {"clicks": [*clicks(70), kill_here("leader"), *clicks(70, 70)]},
        cluster=unbroken_cluster,
        rows_per_unit=14,
        deadline_s=DEADLINE_S,
    )
    assert run.latest("totals", "user") == run.latest("live", "user") == totals(140)
    assert not run.lost and not run.duplicates
    assert [str(struck.fault) for struck in run.struck] == ["Kill(node='leader')"]
    assert [struck.nodes for struck in run.struck] == [("node-1",)] and run.struck[0].done
    assert run.cuts["clicks"] == [(n, n + 14) for n in range(0, 140, 14)]
    assert any(isinstance(reported.notice, IngressLed) for reported in run.history)
    assert_same_as_fault_free(run)


def test_kills_at_units_and_a_node_that_comes_back(unbroken_cluster: WarmCluster) -> None:
    # The second one would take the only replica that is left, if it did not wait for another to be built.
    faults = [
        Kill(1, at_unit=5),
        Kill(2, at_unit=10, when_whole=True, back_after_s=1),
        Kill(3, at_unit=16, when_whole=True),
    ]
    run = run_with_faults(CLICKS, clicks(200), faults, cluster=unbroken_cluster, deadline_s=DEADLINE_S)
    assert [struck.what.partition(" (")[0] for struck in run.struck] == [f"kill -9 of node-{n}" for n in (1, 2, 3)]
    assert run.latest("totals", "user") == totals(200)
    assert_same_as_fault_free(run)


def test_a_replica_that_is_frozen_is_not_waited_for(unbroken_cluster: WarmCluster) -> None:
    faults = [Freeze("replica of per_user.0", for_s=4, at_row=60)]
    run = run_with_faults(CLICKS, clicks(200), faults, cluster=unbroken_cluster, deadline_s=DEADLINE_S)
    (struck,) = run.struck
    assert struck.fault == faults[0] and struck.done and len(struck.nodes) == 1
    assert_same_as_fault_free(run)


def test_cut_links_change_nothing(unbroken_cluster: WarmCluster) -> None:
    rows = [*clicks(60), mark(Partition(1, 2, for_s=4)), *clicks(60, 60), mark("end"), *clicks(80, 120)]
    faults = [Partition("replica of per_user", "zookeeper", for_s=6, at_mark="end"), Partition(3, for_s=3, after_s=2)]
    run = run_with_faults(CLICKS, rows, faults, cluster=unbroken_cluster, deadline_s=DEADLINE_S)
    assert len(run.struck) == 3
    assert "node-1 is cut from node-2 for 4 s" in [struck.what for struck in run.struck]
    assert run.latest("totals", "user") == totals(200)
    assert_same_as_fault_free(run)


def test_zookeeper_and_a_source_that_are_away_for_a_while(unbroken_cluster: WarmCluster) -> None:
    faults = [
        Kill("zookeeper", at_unit=3, back_after_s=3),
        Freeze("zookeeper", for_s=2, at_row=170),
        SourceFails("clicks", for_s=2, at_unit=6),
    ]
    run = run_with_faults(CLICKS, clicks(200), faults, cluster=unbroken_cluster, deadline_s=DEADLINE_S)
    assert len(run.struck) == 3
    assert run.latest("totals", "user") == totals(200)
    assert_same_as_fault_free(run)


def test_two_sources_event_times_cut_times_and_python_functions(unbroken_cluster: WarmCluster) -> None:
    noon_ms = 1_772_366_400_000
    orders = [{"id": n, "at": noon_ms + 1_000 * n, "amount": n / 7} for n in range(120)]
    payments = [{"id": n, "at": noon_ms + 1_000 * n + 500} for n in range(0, 120, 2)]
    run = run_with_faults(
        JOINED,
        {
            "orders": [*orders[:50], pause_here(units=2), *orders[50:]],
            "payments": [*payments[:30], kill_here(2), *payments[30:]],
        },
        cluster=unbroken_cluster,
        rows_per_unit=10,
        deadline_s=DEADLINE_S,
    )
    assert {row["id"] for row in run.rows("joined-rows")} == set(range(0, 120, 2))
    assert run.rows("windows"), "windows were closed"
    assert_same_as_fault_free(run)


def test_where_a_leader_orders_what_is_known_in_the_end_is_compared(unbroken_cluster: WarmCluster) -> None:
    run = run_with_faults(LED, clicks(100), [Kill(2, at_row=50)], cluster=unbroken_cluster, deadline_s=DEADLINE_S)
    assert run.latest("totals", "user") == totals(100)
    assert_same_as_fault_free(run, keys=["user"])


def test_a_flow_that_fails_is_told_with_the_reason_and_the_logs(unbroken_cluster: WarmCluster, tmp_path: Path) -> None:
    broken = tmp_path / "broken_flow.py"
    text = CLICKS.read_text().replace('F.sum("n")', 'F.sum(F.assert_true(F.col("n") < 30).cast("long"))')
    assert text != CLICKS.read_text()
    broken.write_text(text)
    with pytest.raises(RunFailed) as caught:
        run_with_faults(broken, clicks(100), cluster=unbroken_cluster, deadline_s=DEADLINE_S)
    words = str(caught.value)
    assert "the flow cannot go on: all replicas of per_user" in words and "is not true" in words
    logs = Path(words.rpartition("logs: ")[2])
    assert (logs / "node-1.log").is_file() and "is not true" in "".join(path.read_text() for path in logs.glob("*.log"))


def test_modules_and_variables_are_those_of_the_test(
    unbroken_cluster: WarmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for factor in (2, 3):
        folder = tmp_path / str(factor)
        folder.mkdir()
        (folder / "factors.py").write_text(f"def times(n):\n    return n * {factor}\n")
        (folder / "flow.py").write_text(FACTORS)
        monkeypatch.setenv("SUMMAND", str(10 * factor))
        run = run_with_faults(folder / "flow.py", [{"n": 1}, {"n": 2}], cluster=unbroken_cluster, deadline_s=DEADLINE_S)
        assert [row["made"] for row in run.rows("out")] == [factor + 10 * factor, 2 * factor + 10 * factor]
        assert_same_as_fault_free(run)
    assert "factors" not in sys.modules


FACTORS = """
import os

from pyspark.sql.functions import udf
from pyspark.sql.types import LongType

from unbroken import Client, Dataflow, Files

flow = Dataflow("factors", nodes=2)
numbers = flow.source("numbers", Files("nowhere", format="json", schema="n long"))


@udf(LongType())
def made(n):
    from factors import times

    return times(n) + int(os.environ["SUMMAND"])


@flow.segment(numbers)
def multiplied(numbers):
    return numbers.select("n", made("n").alias("made"))


flow.sink("out", multiplied, Client())
"""
