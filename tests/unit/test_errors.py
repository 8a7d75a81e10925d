"""Failures as one line that can be stored and read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unbroken.errors import LONGEST_REASON, Unfit, reason_of


class Wild(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@given(st.text())
def test_a_reason_is_one_bounded_line(text: str) -> None:
    for error in (ValueError(text * 100), OSError(text), Unfit(text)):
        reason = reason_of(error)
        assert 0 < len(reason) <= LONGEST_REASON and len(reason.splitlines()) == 1


def test_an_error_without_a_message_has_a_reason() -> None:
    assert reason_of(Wild()) == "Wild"
