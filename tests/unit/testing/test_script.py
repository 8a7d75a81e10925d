"""How an input is played: where units end, where a source waits, and that it goes on the same from every place."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.errors import UnbrokenError
from unbroken.testing import Freeze, Kill, kill_here, mark, pause_here
from unbroken.testing.faults import Fault
from unbroken.testing.input.inputs import Input
from unbroken.testing.input.script import InputPlan, Script, SourceHeld, SourcePlace, make_plan
from unbroken.testing.marks import Mark


def rows(count: int, *marks: tuple[int, Mark]) -> Input:
    return Input(pa.table({"n": list(range(count))}), marks)


def plan(given: Input, *faults: Fault, size: int | None = None) -> InputPlan:
    return make_plan({"numbers": given}, faults, size)


def play(script: Script, over: Sequence[str] = (), now_ms: float = 0, step_ms: float = 10) -> list[tuple[int, int]]:
    """The rows of every unit, up to the end or to a hold that is not over."""
    place = SourcePlace()
    out: list[tuple[int, int]] = []
    while True:
        following = script.after(place, now_ms, lambda hold: hold in over)
        if isinstance(following, SourceHeld):
            return out
        # Places travel in the ingress log.
        place, before = SourcePlace.from_json(json.loads(json.dumps(following.to_json()))), place
        out.append((before.row, place.row))
        now_ms += step_ms
        if script.ended(place):
            return out


def test_rows_are_cut_into_units_of_a_size() -> None:
    script = plan(rows(7), size=3).scripts["numbers"]
    assert play(script) == [(0, 3), (3, 6), (6, 7)] and script.units == 3
    assert Script.from_json(json.loads(json.dumps(script.to_json()))) == script


def test_an_input_makes_about_twenty_units_unless_told_otherwise() -> None:
    assert plan(rows(1000)).scripts["numbers"].units == 20
    assert plan(rows(7)).scripts["numbers"].units == 7
    assert play(plan(rows(0)).scripts["numbers"]) == [(0, 0)]


def test_a_unit_ends_at_every_mark() -> None:
    script = plan(rows(10, (4, mark()), (5, mark("x"))), size=3).scripts["numbers"]
    assert play(script, ["numbers-mark-1"]) == [(0, 3), (3, 4), (4, 5), (5, 8), (8, 10)]


def test_at_a_mark_the_source_waits_for_what_is_to_happen() -> None:
    made = plan(rows(6, (2, kill_here(1)), (4, mark("half"))), Freeze(2, 1, at_mark="half"), size=2)
    script = made.scripts["numbers"]
    assert play(script) == [(0, 2)]
    assert play(script, ["numbers-mark-0"]) == [(0, 2), (2, 4)]
    assert play(script, ["numbers-mark-0", "numbers-mark-1"]) == [(0, 2), (2, 4), (4, 6)]
    assert made.strikes == {"numbers-mark-0": (Kill(1),), "numbers-mark-1": (Freeze(2, 1, at_mark="half"),)}
    assert made.marks == {"half": "numbers-mark-1"}


def test_faults_at_rows_and_units_are_held_for_there() -> None:
    kill, freeze = Kill(1, at_row=3), Freeze(2, 1, at_unit=3)
    made = plan(rows(8), kill, freeze, Kill(3, after_s=2), size=2)
    script = made.scripts["numbers"]
    assert play(script) == [(0, 2), (2, 3)]
    assert play(script, ["numbers-row-3"]) == [(0, 2), (2, 3), (3, 5)]
    assert play(script, ["numbers-row-3", "unit-3"]) == [(0, 2), (2, 3), (3, 5), (5, 7), (7, 8)]
    assert made.strikes == {"numbers-row-3": (kill,), "unit-3": (freeze,)}
    assert made.timed == (Kill(3, after_s=2),) and len(made.faults) == 3


def test_a_pause_has_units_without_rows() -> None:
    by_units = plan(rows(4, (2, pause_here(units=2))), size=2).scripts["numbers"]
    assert play(by_units) == [(0, 2), (2, 2), (2, 2), (2, 4)] and by_units.units == 4
    by_time = plan(rows(4, (2, pause_here(25))), size=2).scripts["numbers"]
    assert play(by_time) == [(0, 2), (2, 2), (2, 2), (2, 2), (2, 4)] and by_time.units is None
    assert play(by_time, step_ms=30) == [(0, 2), (2, 2), (2, 4)]


def test_marks_at_both_ends_and_several_at_one_place() -> None:
    script = plan(rows(2, (0, mark("first")), (2, pause_here(units=1)), (2, kill_here())), size=2).scripts["numbers"]
    assert play(script) == []
    assert play(script, ["numbers-mark-0"]) == [(0, 2), (2, 2)]
    # The flow has not ended before what is to happen behind the last row has happened.
    assert play(script, ["numbers-mark-0", "numbers-mark-2"]) == [(0, 2), (2, 2), (2, 2)]


def test_sources_are_cut_together_and_one_of_them_keeps_the_units() -> None:
    inputs = {"long": rows(6), "short": rows(2)}
    made = make_plan(inputs, [Kill(1, at_unit=2), Kill(2, at_row=1, source="short")], 2)
    assert made.scripts["long"].unit_holds == {2: "unit-2"} and made.scripts["short"].unit_holds == {}
    assert play(made.scripts["short"], ["short-row-1"]) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Kill(1, at_unit=3), r"makes 3 units, so the last fault can come after unit 2"),
        (Kill(1, at_row=7), "source numbers has only 6 rows"),
        (Kill(1, at_mark="halb"), "no mark 'halb' in the input; did you mean 'half'"),
        (Kill(1, at_row=1, source="nobody"), "there is no source 'nobody'"),
    ],
    ids=str,
)
def test_a_fault_that_would_never_happen_is_refused(fault: Fault, words: str) -> None:
    with pytest.raises(UnbrokenError, match=words):
        plan(rows(6, (2, mark("half"))), fault, size=2)


def test_other_mistakes_are_told() -> None:
    with pytest.raises(UnbrokenError, match="two marks called 'x'"):
        plan(rows(4, (1, mark("x")), (2, mark("x"))))
    with pytest.raises(UnbrokenError, match="say of which source"):
        make_plan({"a": rows(1), "b": rows(1)}, [Kill(1, at_row=1)])
    for wrong in (0, 1.5, True):
        with pytest.raises(UnbrokenError, match="rows_per_unit is"):
            plan(rows(1), size=wrong)  # type: ignore[arg-type]


MARKS = st.sampled_from([mark(), mark(Kill(1)), pause_here(units=2), pause_here(15)])


@given(
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 30), MARKS), max_size=6),
    st.integers(1, 10),
    st.integers(1, 40),
)
def test_every_row_is_played_once_in_order_and_it_ends(
    count: int, marks: list[tuple[int, Mark]], size: int, step_ms: int
) -> None:
    placed = sorted(((row, each) for row, each in marks if row <= count), key=lambda entry: entry[0])
    made = plan(rows(count, *placed), size=size)
    units = play(made.scripts["numbers"], list(made.strikes), step_ms=step_ms)
    assert [start for start, _ in units] == [0, *(stop for _, stop in units[:-1])]
    assert units[-1][1] == count and all(stop - start <= size for start, stop in units)
    assert {row for row, _ in placed} <= {0, *(stop for _, stop in units)}
