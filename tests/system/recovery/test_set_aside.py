"""Rows that cannot be read or taken, in a running flow: they are set aside, and all else continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kit.places import FLOWS
from kit.support import wait_until
from unbroken.client import Subscription
from unbroken.local.launcher import LocalCluster
from unbroken.observe.status.reader import StatusReader
from unbroken.operations import skip as skipping

FLOW = FLOWS / "set_aside.py"
DEADLINE_S = 120.0


class Seen:
    """The numbers of units with rows that have come out of a sink, and the rows."""

    def __init__(self, results: Subscription) -> None:
        self._results = results
        self.units: list[int] = []
        self.rows: list[Any] = []

    def look(self) -> None:
        while (result := self._results.next(0.05)) is not None:
            self.units.append(result.header.number)
            self.rows += result.table.to_pylist()

    def after(self, number: int) -> bool:
        self.look()
        return bool(self.units) and self.units[-1] > number


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_what_is_stuck_or_refused_is_set_aside_and_all_else_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    (place / "units").mkdir(parents=True)
    monkeypatch.setenv("FLOW_PLACE", str(place))
    with LocalCluster(FLOW, tmp_path / "state") as cluster:
        cluster.start()
        cluster.wait_ready(300)
        with (
            cluster.subscribe("evens") as evens,
            cluster.subscribe("numbers") as numbers,
            StatusReader(cluster.zookeeper.address, "set_aside", cluster.token) as reader,
        ):
            steady, shaky = Seen(evens), Seen(numbers)
            # The row that makes the code fail is a dead letter, and the source continues.
            wait_until(lambda: shaky.after(0) and {"n": 6} in shaky.rows, DEADLINE_S, lambda: str(shaky.rows))
            assert {"n": 4} not in shaky.rows and {"n": 3} in shaky.rows
            # A unit that a sink refuses is one, too, and those after it are delivered.
            wait_until(lambda: (place / "units" / "6").exists(), DEADLINE_S, lambda: str(cluster.status()))
            # Rows that cannot be read stop those that need them, and nobody else.
            (place / "broken").touch()
            wait_until(
                lambda: (
                    {s.node for s in skipping.stuck_rows(reader.read()) if s.source == "shaky"} == set(cluster.nodes)
                ),
                DEADLINE_S,
                lambda: str(reader.read()),
            )
            steady.look()
            last = steady.units[-1]
            wait_until(lambda: steady.after(last + 30), DEADLINE_S, lambda: str(steady.units[-5:]))
            stuck = [one for one in skipping.stuck_rows(reader.read()) if one.source == "shaky"]
            assert len({one.pulse for one in stuck}) == 1 and stuck[0].trouble == "no route to host"
            # An operator skips them; the source can still not be read, so pulses after it are stuck, or have no rows.
            skipping.skip(reader, "shaky", stuck[0].pulse, DEADLINE_S)
            (place / "broken").unlink()
            shaky.look()
            before = len(shaky.rows)
            wait_until(
                lambda: shaky.after(0) and len(shaky.rows) > before + 3, DEADLINE_S, lambda: str(shaky.rows[-5:])
            )
            assert shaky.units == sorted(set(shaky.units)) and steady.units == sorted(set(steady.units))
            states = cluster.status()
            assert not any(state.divergences for state in states)
            pulse = stuck[0].pulse
    told = [
        json.loads(line)
        for path in (tmp_path / "state" / "dead-letters").rglob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert any(letter.get("pulse") == pulse and "operator" in letter["reason"] for letter in told)
    assert any(letter.get("source") == "shaky" and "no code can take" in letter["reason"] for letter in told)
    assert any(letter.get("unit") == 3 and "constraint" in letter["reason"] for letter in told)
