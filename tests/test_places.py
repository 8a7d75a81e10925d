"""Who has to leave when a server's connections are many."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.places import HARD, MOMENT_S, Places

MOST, EACH = 6, 3
addresses = st.sampled_from(["a", "b", "c"])
steps = st.one_of(
    st.tuples(st.just("enter"), addresses),
    st.tuples(st.just("ask"), st.integers(0, 40)),
    st.tuples(st.just("wait"), st.integers(0, 40)),
    st.tuples(st.just("leave"), st.integers(0, 40)),
    st.tuples(st.just("pass"), st.floats(0, 2 * MOMENT_S)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=80))
def test_any_sequence_keeps_the_bounds_and_those_who_ask(sequence: list[tuple[str, object]]) -> None:
    places: Places[int] = Places(MOST, EACH)
    there: dict[int, str] = {}
    asking: set[int] = set()
    since: dict[int, float] = {}
    now_s, number = 0.0, 0
    for kind, value in sequence:
        chosen = sorted(there)[int(value) % len(there)] if there and isinstance(value, int) else None
        if kind == "pass":
            assert isinstance(value, float)
            now_s += value
        elif kind == "enter":
            number += 1
            address = str(value)
            before = Counter(there.values())
            crowded = before[address] >= HARD * EACH or len(there) >= HARD * MOST
            for gone in places.make_room(address, now_s):
                assert gone not in asking
                assert crowded or since[gone] <= now_s - MOMENT_S
                del there[gone]
            counts = Counter(there.values())
            old = [one for one in there if one not in asking and since[one] <= now_s - MOMENT_S]
            assert counts[address] < EACH or not any(there[one] == address for one in old)
            assert len(there) < MOST or not old
            full = counts[address] >= HARD * EACH or len(there) >= HARD * MOST
            assert not full or all(one in asking for one in there if there[one] == address) or not old
            taken = places.enter(number, address, now_s)
            assert taken == (counts[address] < HARD * EACH and len(there) < HARD * MOST)
            if taken:
                there[number], since[number] = address, now_s
        elif chosen is not None and kind == "ask":
            places.ask(chosen)
            asking.add(chosen)
        elif chosen is not None and kind == "wait":
            places.wait(chosen, now_s)
            if chosen in asking:
                since[chosen] = now_s
            asking.discard(chosen)
        elif chosen is not None and kind == "leave":
            places.leave(chosen)
            del there[chosen]
            asking.discard(chosen)
        places.check()
        assert len(places) == len(there)


def test_strangers_leave_before_those_who_were_answered_and_the_longest_first() -> None:
    places: Places[str] = Places(3, 3)
    for name in ("guest", "old", "young"):
        assert places.make_room("a", 0.0) == [] and places.enter(name, "a", 0.0)
    places.ask("guest")
    places.wait("guest", 0.0)
    assert places.make_room("b", 1.0) == ["old"] and places.enter("1", "b", 1.0)
    assert places.make_room("b", 2.0) == ["young"] and places.enter("2", "b", 2.0)
    places.ask("1")
    places.ask("2")
    assert places.make_room("b", 3.0) == ["guest"] and places.enter("3", "b", 3.0)
