"""A run that begins from nothing on tables of an earlier one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.delivering import guess, header, tentative, unit
from kit.postgres.place import Place
from unbroken.connectors.postgres.sink import PostgresWriter
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.run import RunIdentity

OLD, UNASKED, NEW = RunIdentity("old"), RunIdentity("new"), RunIdentity("new", frozenset({"old"}))
BEHIND_MS = -30_000
"""What the clock of the new run's leader shows; it plays no part."""


def writer(place: Place, run: RunIdentity, **parameters: Any) -> PostgresWriter:
    sink = place.sink(**parameters)
    sink.run = run
    return sink.open(Path())


def test_units_of_a_new_run_never_pass_for_delivered(place: Place) -> None:
    old, new = writer(place, OLD), writer(place, UNASKED)
    assert all(old.deliver(header(number), unit(number)) for number in range(1, 6))
    for number in (1, 5, 6):
        with pytest.raises(UnbrokenError, match=r"has unit 5 of run old, and this is run new.*DELETE FROM"):
            new.deliver(header(number, cut_ms=header(5).cut_ms + BEHIND_MS), unit(number))
    assert not old.deliver(header(5), unit(5)) and old.deliver(header(6), unit(6))
    assert len(place.units()) == 30 and place.sink().runs() == {"old"}
    for each in (old, new):
        each.close()


@pytest.mark.parametrize("parameters", [{}, {"status": "status"}], ids=["stable", "tentative"])
def test_a_run_that_may_adds_all_its_units_and_fences_the_earlier_one(place: Place, parameters: dict[str, Any]) -> None:
    old = writer(place, OLD, **parameters)
    assert all(old.deliver(header(number), unit(number)) for number in range(1, 6))
    if parameters:
        assert old.deliver_tentative(tentative(5, 9), guess(9))
    first, second = writer(place, NEW, **parameters), writer(place, NEW, **parameters)
    for number in range(1, 8):
        behind = header(number, cut_ms=header(number).cut_ms + BEHIND_MS)
        assert first.deliver(behind, unit(number)) and not second.deliver(behind, unit(number))
    assert place.query("SELECT count(*), count(DISTINCT unit) FROM results WHERE unit > 0") == [((5 + 7) * 5, 7)]
    assert place.query("SELECT count(*) FROM results WHERE unit < 0") == [(0,)], "no stable unit would replace them"
    if parameters:
        assert second.deliver_tentative(tentative(7, 8), guess(8))
        with pytest.raises(UnbrokenError, match="of run new, and this is run old"):
            old.deliver_tentative(tentative(9, 10), guess(10))
    for number in (5, 6, 99):
        with pytest.raises(UnbrokenError, match="of run new, and this is run old"):
            old.deliver(header(number), unit(number))
    assert place.query("SELECT count(*) FROM results WHERE unit > 0") == [((5 + 7) * 5,)]
    for each in (old, first, second):
        each.close()
