"""What a run tells programs."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa

from unbroken import Console
from unbroken.client import Result
from unbroken.local.announcements import JsonTeller
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

STABLE = UnitHeader(StreamId.parse("counts.0>out.0"), 4, 9, 0, Digest(1, 1))
TENTATIVE = replace(STABLE, stream=StreamId.parse("counts~.0>out.0"), number=1, stable=False, since=6)


def told(header: UnitHeader, correction: bool = False) -> dict[str, object]:
    lines: list[str] = []
    JsonTeller(lines.append).rows(Console(), Result(header, pa.table({"n": [7]}), 0.0, correction))
    (event,) = map(json.loads, lines)
    assert event.pop("event") == "rows" and event.pop("time_ms") > 0 and event.pop("rows") == [{"n": 7}]
    return dict(event)


def test_rows_say_which_pulses_they_are_of_and_whether_they_correct_others() -> None:
    stable = {"stream": "counts.0>out.0", "unit": 4, "stable": True, "pulse": 9}
    assert told(STABLE) == {**stable, "correction": False}
    assert told(STABLE, correction=True) == {**stable, "correction": True}
    tentative = {"stream": "counts~.0>out.0", "unit": 1, "stable": False, "pulse": 9, "since": 6}
    assert told(TENTATIVE) == tentative
