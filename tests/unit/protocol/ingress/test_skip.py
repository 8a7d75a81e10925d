"""A skip is valid only where no node has made the unit, and every node comes to the same end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.protocol.ingress.skip import Holds, MemberView, ReaderView, SkipRequest, objection, stuck_everywhere

HOLD = SkipRequest("hold", "orders", 7)


def test_a_skip_needs_the_hold_that_it_names() -> None:
    holds = Holds()
    holds.committed(4, SkipRequest("skip", "orders", 7, 0))
    assert not holds.skipped and not holds.held(7)
    holds.persisted(5, HOLD)
    assert holds.held(7) == 5, "it is not read before the entry is committed"
    holds.committed(5, HOLD)
    assert holds.held(7) == 5
    holds.committed(6, SkipRequest("skip", "orders", 7, 4))
    assert not holds.skipped, "it names another hold"
    holds.committed(7, SkipRequest("skip", "orders", 7, 5))
    assert holds.skipped == {7} and not holds.held(7)
    holds.committed(8, HOLD)
    assert not holds.held(7), "what is skipped is not held again"
    holds.done(7)
    assert not holds.skipped


def test_a_skip_after_a_release_changes_nothing() -> None:
    holds = Holds()
    holds.committed(5, HOLD)
    holds.committed(6, SkipRequest("release", "orders", 7, 5))
    holds.committed(7, SkipRequest("skip", "orders", 7, 5))
    assert not holds.held(7) and not holds.skipped


def test_a_hold_that_is_cut_off_the_log_is_none() -> None:
    holds = Holds()
    holds.persisted(5, HOLD)
    holds.dropped(5)
    assert not holds.held(7)


wishes = st.builds(
    SkipRequest, st.sampled_from(["hold", "release", "skip"]), st.just("orders"), st.integers(1, 3), st.integers(0, 12)
)


@given(st.lists(wishes, max_size=12), st.data())
def test_all_nodes_skip_the_same_whenever_they_hear_of_an_entry(log: list[SkipRequest], data: st.DataObject) -> None:
    """A node has entries in its log before they are committed, by as many as it likes; one that restarts has all."""
    ends = []
    for _ in range(3):
        holds, known = Holds(), 0
        for index, wish in enumerate(log, start=1):
            ahead = max(index, data.draw(st.integers(index, len(log))))
            for early in range(known + 1, ahead + 1):
                holds.persisted(early, log[early - 1])
            known = max(known, ahead)
            holds.committed(index, wish)
            holds.check()
        ends.append(holds.skipped)
    assert ends[0] == ends[1] == ends[2]


def members(*views: tuple[str, int | None, int]) -> list[MemberView]:
    return [MemberView(*view) for view in views]


@pytest.mark.parametrize(
    ("views", "why"),
    [
        (members(("a", 7, 0)), "b does not answer"),
        (members(("a", 7, 0), ("b", None, 0)), "b has read the rows"),
        (members(("a", 9, 0), ("b", 7, 0)), "a has read the rows"),
        (members(("a", 6, 0), ("b", 7, 0)), "a has yet to read an earlier pulse"),
    ],
)
def test_when_rows_are_not_even_held(views: list[MemberView], why: str) -> None:
    found = stuck_everywhere(views, {"a", "b"}, 7)
    assert found is not None and why in found
    assert objection(views, {"a", "b"}, 7, []) == found


def test_when_held_rows_are_skipped() -> None:
    held = members(("a", 7, 12), ("b", 7, 12))
    assert stuck_everywhere(held, {"a", "b"}, 7) is None
    assert objection(held, {"a", "b"}, 7, [ReaderView("sums.0#0", 6, 6)]) is None
    assert objection(held, {"a", "b"}, 7, [ReaderView("sums.0#0", 7, 6)]) == "sums.0#0 has the unit already"
    assert objection(members(("a", 7, 12), ("b", 7, 0)), {"a", "b"}, 7, []) is not None
    assert objection(members(("a", 7, 12), ("b", 7, 14)), {"a", "b"}, 7, []) is not None
