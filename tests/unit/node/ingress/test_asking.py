"""A source that never says how far it can be read is seen, and for how long."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from kit.support import wait_until
from unbroken.connectors.base import Cut, SourceReader
from unbroken.data.rows.parsed import Rows
from unbroken.node.ingress.calls import ThreadedCalls
from unbroken.node.ingress.lanes import PulseLane

SCHEMA = pa.schema({"n": pa.int64()})
DEADLINE_S = 20.0


class Slow(SourceReader):
    """A reader whose answer waits for an event."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def poll(self, position: Any, now_ms: int) -> Cut:
        assert self.go.wait(DEADLINE_S)
        return Cut(position)

    def read(self, start: Any, end: Any) -> Rows:
        return Rows(SCHEMA.empty_table())

    def close(self) -> None:
        self.go.set()


def test_a_poll_that_does_not_come_back_is_seen_without_a_step() -> None:
    reader = Slow()
    lane = PulseLane(reader, SCHEMA, ThreadedCalls("slow"))
    assert lane.asking_s == 0.0
    lane.ask_cut(None, 0)
    wait_until(lambda: lane.asking_s > 0.05, DEADLINE_S, "the poll is not seen")
    first = lane.asking_s
    lane.ask_cut(None, 0)
    assert lane.asking_s >= first and not lane.hangs, "asking once more does not begin a new count"
    reader.go.set()
    wait_until(lambda: lane.asking_s == 0.0, DEADLINE_S, "the answer is not seen")
    lane.close()
