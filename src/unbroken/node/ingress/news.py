"""What is worth telling about sources that have trouble while the others go on."""

from __future__ import annotations

from collections.abc import Mapping

from unbroken.protocol.ingress.cut_clock import SLEW, ClockLeap, ClockOffset
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.ingress import (
    ClockAgrees,
    ClockOff,
    CutTimeLeapt,
    SourceReadable,
    SourceUnreadable,
)

WORTH_S = 2.0
"""A source that is in trouble for a shorter time is not worth a notice: a slow read looks like that, too."""


class SourceNews:
    """Turns the troubles of sources into notices, one when they begin to matter and one when they are over."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._since: dict[str, float] = {}
        self._told: dict[str, str] = {}

    def notices(
        self,
        now_s: float,
        troubles: Mapping[str, str],
        unreached_ms: Mapping[str, int],
        step: ClockOffset | None = None,
        leap: ClockLeap | None = None,
    ) -> list[Notice]:
        """What is new, also about the clock of this node. ``unreached_ms`` says for how long sources could not be
        asked, on the node that asks them."""
        self._since = {name: self._since.get(name, now_s) for name in troubles}
        lasting = {name for name, since in self._since.items() if now_s - since >= WORTH_S}
        lasting |= {name for name, ms in unreached_ms.items() if ms >= WORTH_S * 1000}
        out: list[Notice] = []
        for name in sorted(lasting):
            why = troubles.get(name) or self._told.get(name) or "it cannot be asked for its rows"
            if self._told.get(name) != why:
                self._told[name] = why
                out.append(SourceUnreadable(name, self._node, why))
        for name in sorted(self._told.keys() - lasting - troubles.keys() - unreached_ms.keys()):
            del self._told[name]
            out.append(SourceReadable(name, self._node))
        if leap is not None:
            out.append(CutTimeLeapt(self._node, leap.from_ms, leap.to_ms))
        if step is not None and step.offset_ms == 0:
            out.append(ClockAgrees(self._node))
        elif step is not None:
            out.append(ClockOff(self._node, step.offset_ms / 1000, SLEW))
        return out
