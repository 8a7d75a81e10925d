"""What is worth telling about sources that have trouble while the others go on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from unbroken.protocol.ingress.cut_clock import SLEW, ClockLeap, ClockStep

WORTH_S = 2.0
"""A source that is in trouble for a shorter time is not worth a sentence: a slow read looks like that, too."""


class SourceNews:
    """Turns the troubles of sources into sentences, one when they begin to matter and one when they are over."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._since: dict[str, float] = {}
        self._told: dict[str, str] = {}

    def sentences(
        self,
        now_s: float,
        troubles: Mapping[str, str],
        unreached_ms: Mapping[str, int],
        step: ClockStep | None = None,
        leap: ClockLeap | None = None,
    ) -> list[str]:
        """What is new, also about the clock of this node. ``unreached_ms`` says for how long sources could not be
        asked, on the node that asks them."""
        self._since = {name: self._since.get(name, now_s) for name in troubles}
        lasting = {name for name, since in self._since.items() if now_s - since >= WORTH_S}
        lasting |= {name for name, ms in unreached_ms.items() if ms >= WORTH_S * 1000}
        out: list[str] = []
        for name in sorted(lasting):
            why = troubles.get(name) or self._told.get(name) or "it cannot be asked for its rows"
            if self._told.get(name) != why:
                self._told[name] = why
                out.append(f"source {name} cannot be read on {self._node}, the others go on: {why}")
        for name in sorted(self._told.keys() - lasting - troubles.keys() - unreached_ms.keys()):
            del self._told[name]
            out.append(f"source {name} is read again on {self._node}")
        if leap is not None:
            out.append(
                f"the first pulse of {self._node} is cut at {_time(leap.to_ms)}, by its clock; the last one of the log "
                f"was cut at {_time(leap.from_ms)}. Cut times follow this clock from here on: if the flow was not "
                "stopped in between, correct the clock of the node."
            )
        if step is not None and step.offset_ms == 0:
            out.append(f"the clock of {self._node} agrees with the time of the flow again")
        elif step is not None:
            stands = f"{abs(step.offset_ms) / 1000:.1f} s {'ahead of' if step.offset_ms > 0 else 'behind'}"
            rate = f"{SLEW * 100:.0f} s in 100 s"
            out.append(
                f"the clock of {self._node} is {stands} the time of the flow, which follows it slowly, by {rate}. "
                "Correct the clock of the node."
            )
        return out


def _time(at_ms: int) -> str:
    """A time in UTC, to the second; milliseconds, if a clock is so wrong that there is no such year."""
    try:
        return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
