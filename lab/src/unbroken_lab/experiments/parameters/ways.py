"""The configurations that Rosinosky et al. compare, and what they are called here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unbroken.errors import UnbrokenError

NONE, PASSIVE, UNORDERED, LEADER, PULSE = "none", "passive", "unordered", "leader", "pulse"
WAYS = (NONE, PASSIVE, UNORDERED, LEADER, PULSE)

NAMES: Mapping[str, str] = {
    NONE: "no replication",
    PASSIVE: "passive",
    UNORDERED: "no ordering (incorrect)",
    LEADER: "leader",
    PULSE: "pulse",
}

COLORS: Mapping[str, str] = {
    NONE: "0.55",
    PASSIVE: "tab:purple",
    UNORDERED: "tab:orange",
    LEADER: "tab:green",
    PULSE: "tab:blue",
}

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    NONE: {"ha": "none"},
    PASSIVE: {"ha": "passive", "k_safety": 1},
    UNORDERED: {"ordering": "leader"},
    LEADER: {"ordering": "leader"},
    PULSE: {"ordering": "pulse"},
}


def arguments(way: str) -> dict[str, Any]:
    """What a segment is declared with; a flow that is not ordered also has to say so to ``arrival``."""
    if way not in ARGUMENTS:
        raise UnbrokenError(f"there is no configuration {way!r}; choose from {', '.join(ARGUMENTS)}")
    return dict(ARGUMENTS[way])


def name_of(way: str) -> str:
    return NAMES.get(way, way)


def color_of(way: str) -> str:
    return COLORS.get(way, "black")
