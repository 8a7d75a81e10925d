"""A flow that a page can look at."""

from __future__ import annotations

import dataclasses
from typing import Any

from kit.page.flows import NOW_MS, snapshot, states, told
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.values.notices.placement import FirstLayout


class Flow:
    """A flow that is a second older with every look."""

    def __init__(self) -> None:
        self.looks = 0
        self.found = states()
        self.history: tuple[Any, ...] = (told(FirstLayout(("a", "b", "c")), -60_000),)
        self.error: Exception | None = None

    def look(self) -> FlowSnapshot:
        self.looks += 1
        if self.error is not None:
            raise self.error
        seen = snapshot(self.found, history=self.history)
        return dataclasses.replace(seen, time_ms=NOW_MS + self.looks * 1_000)
