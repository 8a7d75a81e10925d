"""A running flow goes over to other code: real processes, real Spark state, and every result is checked."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from kit.support import wait_until
from unbroken.cli import cli
from unbroken.coordination.documents import connect, read_history, read_layout
from unbroken.flow.environment import variables
from unbroken.local.launcher import LocalCluster
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.notices.replicas import StateTaken

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

HERE = Path(__file__).parent / "upgraded"
KEYS = 31
FACTOR = 1_000
FEW = 4
"""Results that show that the flow goes on."""

DEADLINE_S = 300.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The flow's file and the module beside it, where an edited copy can lie next to them."""
    shutil.copytree(HERE, tmp_path / "code", ignore=shutil.ignore_patterns("__pycache__"))
    with variables({"UNBROKEN_TEST_OUT": str(tmp_path / "results")}):
        yield tmp_path


def edited(place: Path, name: str, old: str, new: str) -> Path:
    text = (place / "code" / "flow.py").read_text()
    assert old in text
    path = place / "code" / name
    path.write_text(text.replace(old, new))
    return path


def upgrade(cluster: LocalCluster, file: Path) -> Result:
    words = ["upgrade", str(file), "--dir", str(cluster.directory), "--wait", str(DEADLINE_S)]
    return CliRunner().invoke(cli, words)


@pytest.mark.parametrize("refused_before", [False, True])
def test_other_code_takes_over_between_two_pulses(place: Path, refused_before: bool) -> None:
    """Also if other code came to nothing before: its generation is not used again."""
    other_source = edited(place, "other_source.py", "KEYS = 31", "KEYS = 31\nFLOW_RATE += 1")
    other_state = edited(place, "other_state.py", '.alias("total")', '.alias("total"), F.max("w").alias("top")')
    heavier = edited(place, "heavier.py", "weigh(value, 1)", f"weigh(value, {FACTOR})")
    with LocalCluster(place / "code" / "flow.py", place / "state") as cluster:
        cluster.start()
        cluster.wait_ready(DEADLINE_S)
        with cluster.subscribe("live") as live:
            received: dict[int, float] = {}

            def results_go_on() -> None:
                for _ in range(FEW):
                    result = live.next(DEADLINE_S)
                    assert result is not None, "no result came"
                    received[result.header.number] = result.arrived_ms

            results_go_on()
            refused = upgrade(cluster, other_source)
            assert refused.exit_code == 2
            assert "its rate was '1000' and would become '1001'" in " ".join(refused.output.split())

            if refused_before:
                refused = upgrade(cluster, other_state)
                assert refused.exit_code == 1
                assert "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE" in refused.output
                results_go_on()

            new = 3 if refused_before else 2
            taken = upgrade(cluster, heavier)
            assert taken.exit_code == 0, taken.output
            assert taken.output.splitlines()[0] == f"generation {new} runs as weighed@{new}, totals@{new}"
            assert taken.output.splitlines()[-1] == f"generation {new} has taken over"
            client = connect(cluster.zookeeper.address, 10, token=cluster.token)
            try:
                layout = read_layout(client, "upgraded")
                history = [reported.notice for reported in read_history(client, "upgraded")]
            finally:
                client.stop()
                client.close()
            assert layout is not None and layout.generations == (new,)
            parts = {replica.shard.part for replica in layout.placement}
            assert parts == {"ingress", f"weighed@{new}", f"totals@{new}"}
            while (result := live.next(0)) is not None:
                received[result.header.number] = result.arrived_ms
            results_go_on()
            last = max(received)
            wait_until(lambda: last in {unit["number"] for unit in units(place)}, DEADLINE_S, "the files")
    numbers = sorted(received)
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "a subscriber missed a unit"
    first = ReplicaId.parse(f"totals@{new}.0#0")
    copied = next(each for each in history if isinstance(each, StateTaken) and each.replica == first)
    check_results(units(place), f"totals@{new}", copied=copied.version)


def units(place: Path) -> list[dict[str, Any]]:
    """The units in the files, in the order of their numbers."""
    out: list[dict[str, Any]] = []
    for path in (place / "results").glob("*.parquet"):
        part, number = re.fullmatch(r"(.+?)\.0-to-files\.0-(\d+)\.parquet", path.name).groups()  # type: ignore[union-attr]
        out.append({"part": part, "number": int(number), "rows": pq.read_table(path).to_pylist()})
    return sorted(out, key=lambda unit: unit["number"])


def check_results(found: list[dict[str, Any]], later: str, copied: int) -> None:
    """Each unit comes from one generation, and has what the rows before it add up to.

    The state of the code that comes is that of the code before up to the copy, and its own from there on.
    """
    numbers = [unit["number"] for unit in found]
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "a unit is missing or there twice"
    parts = [unit["part"] for unit in found]
    assert parts == sorted(parts), "the results of the generations are mixed"
    assert set(parts) == {"totals", later}
    counts: dict[int, int] = {}
    light = 0
    for unit in found:
        counts |= {row["k"]: row["n"] for row in unit["rows"]}
        rows = sum(counts.values())
        if unit["number"] <= copied:
            light = rows
        index = np.arange(rows, dtype=np.int64)
        weights = np.where((index < light) | (unit["part"] == "totals"), index, index * FACTOR)
        for row in unit["rows"]:
            mine = index % KEYS == row["k"]
            assert row["n"] == int(mine.sum()), f"unit {unit['number']}: {row}"
            assert row["total"] == int(weights[mine].sum()), f"unit {unit['number']} of {unit['part']}: {row}"
