"""What is wrong with a number that a user gave, as a sentence; it may be of any type, since nothing else checks it."""

from __future__ import annotations

import math
from typing import Any


def is_number(value: Any) -> bool:
    """Whether a value is a number that can be compared and counted with; infinity and NaN are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def number_problems(made: Any, names: tuple[str, ...], least: int = 1) -> list[str]:
    """A sentence for each of these attributes that is not a number of at least ``least``."""
    return [
        f"{name} is {shown(value)}; give {'at' if is_number(value) else 'a number of at'} least {least}."
        for name, value in ((name, getattr(made, name)) for name in names)
        if not is_number(value) or value < least
    ]


def shown(value: Any) -> str:
    """A value in a sentence; Python does not write integers that are too long."""
    try:
        text = repr(value)
    except ValueError:
        return "too large"
    return text if len(text) <= 100 else text[:97] + "..."
