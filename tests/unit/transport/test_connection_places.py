"""Which connections have to leave when a server's connections are many."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.transport.connection_places import HARD, MOMENT_S, SHARE, Places

MOST, EACH = 8, 4
addresses = st.sampled_from(["a", "b", "c"])
steps = st.one_of(
    st.tuples(st.just("enter"), addresses),
    st.tuples(st.sampled_from(["ask", "admit", "wait", "leave"]), st.integers(0, 40)),
    st.tuples(st.just("pass"), st.floats(0, 2 * MOMENT_S)),
)


class Model:
    """What is known of the connections from outside: address, state and since when."""

    def __init__(self) -> None:
        self.address: dict[int, str] = {}
        self.strangers: dict[int, float] = {}
        self.guests: dict[int, float] = {}

    def leave(self, one: int) -> None:
        del self.address[one]
        self.strangers.pop(one, None)
        self.guests.pop(one, None)

    def under_way(self) -> set[int]:
        """Those with an admitted request."""
        return self.address.keys() - self.strangers.keys() - self.guests.keys()

    def ripe(self, group: dict[int, float], now_s: float, address: str | None = None) -> list[int]:
        return [
            one
            for one, since_s in group.items()
            if since_s <= now_s - MOMENT_S and address in (None, self.address[one])
        ]


def room_is_made(places: Places[int], model: Model, number: int, address: str, now_s: float) -> None:
    counts = Counter(model.address.values())
    crowded = counts[address] >= HARD * EACH or len(model.address) >= HARD * MOST
    for gone in places.make_room(address, now_s):
        assert gone not in model.under_way()
        if gone in model.guests:
            rivals = [one for one in model.strangers if crowded and model.address[one] == address]
            assert crowded and not rivals, "a stranger would have had to leave first"
        else:
            assert crowded or model.strangers[gone] <= now_s - MOMENT_S
        model.leave(gone)
    strangers_from = Counter(model.address[one] for one in model.strangers)
    assert strangers_from[address] < EACH // SHARE or not model.ripe(model.strangers, now_s, address)
    assert len(model.strangers) < MOST // SHARE or not model.ripe(model.strangers, now_s)
    taken = places.enter(number, address, now_s)
    if taken:
        model.address[number] = address
        model.strangers[number] = now_s
    else:
        mine = {one for one, place in model.address.items() if place == address}
        everywhere = len(model.address) >= HARD * MOST
        assert model.address.keys() == model.under_way() if everywhere else mine <= model.under_way()


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=120))
def test_any_sequence_keeps_the_bounds_and_those_that_are_admitted(sequence: list[tuple[str, object]]) -> None:
    places: Places[int] = Places(MOST, EACH)
    model = Model()
    now_s, number = 0.0, 0
    for kind, value in sequence:
        chosen = (
            sorted(model.address)[int(value) % len(model.address)] if model.address and isinstance(value, int) else None
        )
        if kind == "pass":
            assert isinstance(value, float)
            now_s += value
        elif kind == "enter":
            number += 1
            room_is_made(places, model, number, str(value), now_s)
        elif chosen is None:
            continue
        elif kind == "ask":
            places.ask(chosen, now_s)
            model.guests.pop(chosen, None)
            model.strangers.pop(chosen, None)
            model.strangers[chosen] = now_s
        elif kind == "admit":
            model.strangers.pop(chosen, None)
            model.guests.pop(chosen, None)
            for gone in places.admit(chosen, now_s):
                assert model.guests[gone] <= now_s - MOMENT_S, "only those that wait leave for one that is admitted"
                model.leave(gone)
            admitted = len(model.address) - len(model.strangers)
            assert admitted <= MOST or not model.ripe(model.guests, now_s)
        elif kind == "wait":
            places.wait(chosen, now_s)
            if chosen not in model.strangers:
                model.guests.setdefault(chosen, now_s)
        elif kind == "leave":
            places.leave(chosen)
            model.leave(chosen)
        places.check()
        assert len(places) == len(model.address)


def fill(places: Places[str], names: list[str], address: str, now_s: float) -> None:
    for name in names:
        assert places.make_room(address, now_s) == [] and places.enter(name, address, now_s)


def test_a_stranger_leaves_though_its_request_is_under_way_the_longest_first() -> None:
    places: Places[str] = Places(8, 8)
    fill(places, ["old", "young"], "a", 0.0)
    places.ask("young", 0.5)
    places.ask("old", 0.6)
    assert places.make_room("b", 1.0) == ["young"] and places.enter("1", "b", 1.0)
    assert places.make_room("b", 2.0) == ["old"] and places.enter("2", "b", 2.0)


def test_strangers_do_not_take_places_of_those_that_were_admitted() -> None:
    places: Places[int] = Places(8, 8)
    for number in range(8):
        assert places.make_room("a", 0.0) == [] and places.enter(number, "a", 0.0)
        places.ask(number, 0.0)
        assert places.admit(number, 0.0) == []
        if number < 4:
            places.wait(number, 0.0)
    for number in range(100, 150):
        assert all(gone >= 100 for gone in places.make_room("a", 10.0))
        assert places.enter(number, "a", 10.0)


def test_an_admitted_connection_is_a_strangers_with_its_next_request() -> None:
    places: Places[str] = Places(8, 8)
    fill(places, ["proxy", "other"], "a", 0.0)
    places.ask("proxy", 0.0)
    places.admit("proxy", 0.0)
    places.wait("proxy", 0.0)
    places.leave("other")
    places.ask("proxy", 1.0)
    fill(places, ["1"], "b", 2.0)
    assert places.make_room("b", 2.0) == ["proxy"]
