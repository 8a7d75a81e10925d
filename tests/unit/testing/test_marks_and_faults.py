"""Marks and faults as users write them: what they say of themselves, and what is refused with a reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

from unbroken.errors import UnbrokenError
from unbroken.testing import (
    ClockStep,
    DiskFull,
    Freeze,
    Kill,
    Partition,
    SlowDisk,
    SourceFails,
    kill_here,
    mark,
    pause_here,
)
from unbroken.testing.faults import Fault, refuse_bad
from unbroken.testing.marks import Mark


def test_faults_say_what_was_written() -> None:
    assert str(Kill(1, at_unit=20)) == "Kill(node=1, at_unit=20)"
    assert str(Kill(node="leader", back_after_s=2, at_row=5)) == "Kill(node='leader', back_after_s=2, at_row=5)"
    assert str(Freeze(2, 3, after_s=1.5)) == "Freeze(node=2, for_s=3, after_s=1.5)"
    assert str(Partition(1, 2, for_s=3, at_mark="half")) == "Partition(a=1, b=2, for_s=3, at_mark='half')"
    assert str(SourceFails("clicks", 2, at_unit=4)) == "SourceFails(name='clicks', for_s=2, at_unit=4)"
    assert Kill(1, at_unit=20).timed() == "Kill(node=1)"


def test_every_fault_has_one_moment() -> None:
    fine = [Kill(1, at_unit=1), Freeze(2, 3, at_row=0), Partition(1, for_s=2, after_s=0), Kill("leader", at_mark="x")]
    assert refuse_bad(fine) == tuple(fine)
    assert [fault.moment for fault in fine] == ["at_unit", "at_row", "after_s", "at_mark"]
    with pytest.raises(UnbrokenError, match=r"Kill\(node=1\): say when, with at_unit"):
        refuse_bad([Kill(1)])
    with pytest.raises(UnbrokenError, match="at_unit and after_s are two moments"):
        refuse_bad([Kill(1, at_unit=2, after_s=3)])


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Kill(1, at_unit=0), "units are counted from 1"),
        (Kill(1, at_unit=True), "units are counted from 1"),
        (Kill(1, at_row=-1), "at_row must be a number"),
        (Kill(1, after_s=float("nan")), "after_s must be a number"),
        (Kill(1, back_after_s=0, at_unit=1), "back_after_s must be above 0"),
        (Freeze(1, 0, at_unit=1), "for_s must be above 0"),
        (Freeze(1, float("inf"), at_unit=1), "for_s must be above 0"),
        (Partition(1, 1, for_s=2, at_unit=1), "cannot be cut from itself"),
        (DiskFull(1, 0, at_unit=1), "for_s must be above 0"),
        (SlowDisk(1, 1, 0, at_unit=1), "delay_ms must be above 0"),
        (ClockStep(1, 0, at_unit=1), "by_s must be a number of seconds other than 0"),
        (ClockStep(1, 5, 0, at_unit=1), "for_s must be above 0"),
    ],
    ids=str,
)
def test_faults_that_cannot_be_are_refused(fault: Fault, words: str) -> None:
    with pytest.raises(UnbrokenError, match=words):
        refuse_bad([fault])


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(UnbrokenError) as caught:
        refuse_bad([Kill(1), "kill", Fault(at_unit=1), Freeze(1, -1, at_unit=1)])
    assert len(str(caught.value).splitlines()) == 4
    assert "'kill' is no fault; use one of Kill, Freeze, " in str(caught.value)


def test_marks_are_made_from_names_faults_and_pauses() -> None:
    assert mark() == Mark() and mark("half") == Mark(name="half")
    assert mark(Freeze(1, 2)) == Mark(fault=Freeze(1, 2))
    assert kill_here() == Mark(fault=Kill("leader"))
    assert kill_here(2, back_after_s=1, when_whole=True) == Mark(fault=Kill(2, 1, when_whole=True))
    assert pause_here(500) == Mark(ms=500) and pause_here(units=3) == Mark(units=3)


def test_marks_that_cannot_be_are_refused() -> None:
    with pytest.raises(UnbrokenError, match="it happens where the mark is; leave out at_unit"):
        mark(Kill(1, at_unit=2))
    with pytest.raises(UnbrokenError, match="for_s must be above 0"):
        mark(Freeze(1, 0))
    with pytest.raises(UnbrokenError, match="give it a name or a fault"):
        mark(7)  # type: ignore[arg-type]
    for wrong in ({}, {"ms": 5, "units": 1}, {"ms": -1}, {"units": -1}, {"ms": "500"}, {"units": 1.5}, {"ms": True}):
        with pytest.raises(UnbrokenError, match="pause_here"):
            pause_here(**wrong)  # type: ignore[arg-type]


def test_importing_the_kit_loads_nothing_that_takes_time() -> None:
    heavy = ("pyspark", "pyarrow", "pandas", "kazoo", "numpy")
    look = f"import sys, unbroken.testing, unbroken.testing.plugin; print([n for n in {heavy!r} if n in sys.modules])"
    told = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.strip() == "[]"


def test_all_public_names_can_be_had() -> None:
    import unbroken.testing

    assert all(getattr(unbroken.testing, name) is not None for name in unbroken.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = unbroken.testing.nothing
