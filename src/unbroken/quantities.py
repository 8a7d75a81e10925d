"""Numbers and durations as users write them, and what is wrong with one.

A value may be of any type, since nothing else has checked it.
"""

from __future__ import annotations

import math
import re
from typing import Any

from unbroken.errors import Flaw, WrongValue

UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}


def is_number(value: Any) -> bool:
    """Whether a value is a number that can be compared and counted with; infinity and NaN are not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def number_problems(made: Any, names: tuple[str, ...], least: int = 1) -> list[Flaw]:
    """A flaw for each of these attributes that is not a number of at least ``least``."""
    return [
        Flaw(f"{name} is {shown(value)}", f"give {'at' if is_number(value) else 'a number of at'} least {least}")
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


def milliseconds(value: Any) -> Any:
    """Turn ``"500ms"``, ``"2 seconds"`` or ``"1min"`` into milliseconds; numbers are milliseconds already."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*((?:[0-9]++(?:\.[0-9]++)?|\.[0-9]++))\s*([a-z]+)\s*", value)
    if match is None or match[2] not in UNITS_MS:
        raise WrongValue(f"{shown(value)} is not a duration", "write for example '500ms', '2s' or '1min'")
    return float(match[1]) * UNITS_MS[match[2]]
