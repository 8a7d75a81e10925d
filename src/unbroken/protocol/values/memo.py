"""Answers that are looked up all the time and follow from a value that never changes: worked out once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)
Owner = TypeVar("Owner")
Answer = TypeVar("Answer")


def remembered(method: Callable[[Owner, Key], Answer]) -> Callable[[Owner, Key], Answer]:
    """A method of an immutable object with one argument: each answer is made once and kept with the object.

    Whoever gets an answer must not change it.
    """
    place = f"_{method.__name__}_remembered"

    @wraps(method)
    def look(self: Owner, key: Key) -> Answer:
        known: dict[Any, Answer] | None = self.__dict__.get(place)
        if known is None:
            known = self.__dict__[place] = {}
        try:
            return known[key]
        except KeyError:
            answer = known[key] = method(self, key)
            return answer

    return look
