"""Work that keeps failing in the same way is set aside; work that meets passing trouble never is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unbroken.protocol.ingress.quarantine import Attempts


class Refusal(Exception):
    """A class of a user's."""


def is_outside(error: BaseException) -> bool:
    return isinstance(error, OSError)


def raised(place: str, message: str) -> Exception:
    """An error with the line that raised it."""
    try:
        if place == "a":
            raise Refusal(message)
        raise Refusal(message)
    except Refusal as error:
        return error


@given(st.integers(1, 6), st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=30))
def test_set_aside_after_so_many_equal_failures_in_a_row(limit: int, failures: list[tuple[str, bool]]) -> None:
    attempts = Attempts(limit, is_outside)
    for turn, (place, passing) in enumerate(failures):
        aside = attempts.failed(OSError(5, "I/O") if passing else raised(place, "no"))
        attempts.check()
        last = failures[max(0, turn + 1 - limit) : turn + 1]
        assert aside == (len(last) == limit and set(last) == {(place, False)})


def test_a_message_that_varies_does_not_hide_that_a_failure_repeats_itself() -> None:
    attempts = Attempts(5, is_outside)
    told = [attempts.failed(raised("a", f"{object()} at {turn}")) for turn in range(5)]
    assert told == [False] * 4 + [True] and attempts.reason.endswith("at 4")
