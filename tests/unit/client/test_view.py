"""The rules by which a reader is given stable and tentative results, case by case."""

from __future__ import annotations

import pyarrow as pa

from unbroken.client import Reconciled, Result, Undo
from unbroken.client.tentative_view import HELD_UNITS, SubscriptionEvent, TentativeView
from unbroken.data.coverage import RANGES, Coverage
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

STREAM = StreamId.parse("totals.0>live.0")
EMPTY = pa.table({})


def stable(pulse: int, *, final: bool = False) -> Result:
    return Result(UnitHeader(STREAM, pulse, pulse, 0, Digest(0, 0), final=final), EMPTY, 0.0)


def tentative(since: int, pulse: int) -> Result:
    return Result(UnitHeader(STREAM, 1, pulse, 0, Digest(0, 0), stable=False, since=since), EMPTY, 0.0)


def told(events: list[SubscriptionEvent]) -> list[object]:
    """Events in short: 's5' and 't5' for results, 'c5' for corrections, 'undo4' and 'done5' for the marks."""
    out: list[object] = []
    for event in events:
        match event:
            case Result():
                kind = "c" if event.correction else event.status[0]
                out.append(f"{kind}{event.header.pulse}")
            case Undo():
                out.append(f"undo{event.after_pulse}")
            case Reconciled():
                out.append(f"done{event.pulse}")
    return out


def test_corrections_are_announced_and_their_end_is_told() -> None:
    view = TentativeView(STREAM)
    out = view.stable(stable(4), 0)
    out += view.tentative(tentative(4, 5), "a", 1) + view.tentative(tentative(5, 6), "a", 2)
    out += view.stable(stable(5), 3) + view.tentative(tentative(6, 7), "a", 3)
    out += view.stable(stable(6), 4) + view.stable(stable(7), 5) + view.stable(stable(8), 6)
    assert told(out) == ["s4", "t5", "t6", "undo4", "c5", "t7", "c6", "c7", "done7", "s8"]
    results = [event for event in out if isinstance(event, Result)]
    assert [r.status for r in results[:3]] == ["stable", "tentative", "tentative"] and results[0].stable
    assert not results[1].stable and not results[1].correction


def test_a_second_failure_is_told_of_like_the_first() -> None:
    view = TentativeView(STREAM)
    out = view.tentative(tentative(0, 1), "a", 0) + view.stable(stable(1), 1)
    out += view.tentative(tentative(1, 2), "b", 2) + view.stable(stable(2), 3)
    assert told(out) == ["t1", "undo0", "c1", "done1", "t2", "undo1", "c2", "done2"]


def test_nothing_tentative_follows_its_stable_result() -> None:
    view = TentativeView(STREAM)
    out = view.stable(stable(1), 0) + view.stable(stable(2), 0)
    out += view.tentative(tentative(0, 1), "a", 0) + view.tentative(tentative(1, 2), "b", 0)
    assert told(out) == ["s1", "s2"]


def test_one_replica_is_read_as_long_as_it_sends() -> None:
    view = TentativeView(STREAM, silence_s=1.0)
    out = view.tentative(tentative(0, 1), "a", 0.0)
    for pulse in range(2, 6):
        out += view.tentative(tentative(pulse - 1, pulse), "b", pulse - 0.5)
        out += view.tentative(tentative(pulse - 1, pulse), "a", pulse)
    assert told(out) == ["t1", "t2", "t3", "t4", "t5"] and view.sender == "a"
    assert view.held == {}


def test_another_takes_over_from_one_that_is_silent_and_nothing_is_lost() -> None:
    view = TentativeView(STREAM, silence_s=1.0)
    assert told(view.tentative(tentative(0, 1), "a", 0.0)) == ["t1"]
    assert view.tentative(tentative(1, 2), "b", 5.0) == [], "only when something waits does silence begin"
    assert view.tentative(tentative(2, 3), "b", 5.5) == []
    assert view.tick(5.9) == []
    assert told(view.tick(6.0)) == ["t2", "t3"] and view.sender == "b"
    assert view.tentative(tentative(1, 3), "a", 6.1) == []


def test_another_takes_over_at_once_from_one_that_is_lost() -> None:
    view = TentativeView(STREAM, silence_s=1.0)
    view.tentative(tentative(0, 1), "a", 0.0)
    view.tentative(tentative(1, 2), "b", 0.1)
    view.lost("c")
    assert view.tick(0.2) == []
    view.lost("a")
    assert told(view.tick(0.2)) == ["t2"] and view.sender == "b"
    view.tentative(tentative(2, 3), "c", 0.3)
    view.lost("c")
    assert view.tick(5.0) == [], "a replica that is lost is not turned to"
    assert told(view.tentative(tentative(2, 3), "b", 9.0)) == ["t3"]


def test_tentative_results_wait_for_stable_ones_that_are_on_their_way() -> None:
    """As for a reader that comes late: what was given out tentatively comes at once, what is stable piece by piece."""
    view = TentativeView(STREAM, silence_s=1.0)
    out = view.tentative(tentative(3, 4), "a", 0.0) + view.tentative(tentative(4, 5), "a", 0.0)
    for pulse in (1, 2, 3):
        out += view.stable(stable(pulse), 0.9 * pulse)
    assert told(out) == ["s1", "s2", "s3", "t4", "t5"]


def test_tentative_results_with_a_hole_before_them_are_given_out_after_a_while() -> None:
    view = TentativeView(STREAM, silence_s=1.0)
    out = view.tentative(tentative(0, 1), "a", 0.0)
    view.lost("a")
    out += view.tentative(tentative(3, 4), "b", 0.5)
    assert told(out) == ["t1"]
    assert view.tick(1.4) == [] and told(view.tick(1.5)) == ["t4"]
    assert told(view.tentative(tentative(5, 6), "b", 1.6)) == ["t6"], "nothing can come between units of one node"
    out = [event for pulse in range(1, 7) for event in view.stable(stable(pulse), 2)]
    assert told(out) == ["undo0", "c1", "s2", "s3", "c4", "s5", "c6", "done6"]


def test_the_end_ends_everything() -> None:
    view = TentativeView(STREAM)
    out = view.tentative(tentative(0, 1), "a", 0) + view.tentative(tentative(1, 2), "a", 0)
    out += view.stable(stable(1, final=True), 0) + view.tentative(tentative(2, 3), "a", 99)
    assert told(out) == ["t1", "t2", "undo0", "c1", "done1"] and view.held == {}
    view = TentativeView(STREAM, 4)
    out = view.tentative(tentative(5, 6), "a", 0) + view.tick(5) + view.stable(stable(5, final=True), 9)
    assert told(out) == ["t6", "undo4", "c5", "done5"], "what was beyond the end is replaced by nothing"


def test_what_waits_is_bounded() -> None:
    view = TentativeView(STREAM, silence_s=1.0)
    for pulse in range(2, HELD_UNITS + 12):
        view.tentative(tentative(pulse - 1, pulse), "a", 0.0)
    assert len(view.held["a"]) == HELD_UNITS
    assert told(view.tick(5.0))[0] == "t12"


def test_ranges_are_joined_cut_and_bounded() -> None:
    some = Coverage().add(3, 5).add(5, 6).add(8, 9)
    assert some.ranges == ((3, 6), (8, 9)) and some.last == 9
    assert some.add(4, 9) == some, "it reaches no further"
    assert some.add(7, 10).ranges == ((3, 6), (7, 10)) and some.add(2, 10).ranges == ((2, 10),)
    assert not some.meets(0, 3) and some.meets(0, 4) and not some.meets(6, 8) and some.meets(5, 7)
    assert some.beyond(4).ranges == ((4, 6), (8, 9)) and some.beyond(6).ranges == ((8, 9),)
    assert some.beyond(9).ranges == () and some.beyond(3) is some and Coverage().last == 0
    many = Coverage()
    for number in range(RANGES + 2):
        many = many.add(10 * number, 10 * number + 1)
    assert len(many.ranges) == RANGES and many.ranges[0] == (0, 21)
