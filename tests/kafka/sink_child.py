"""A process that delivers units to a Kafka sink, for tests that freeze or kill it at a step.

It is given one JSON object: the arguments of the sink, which units of how many rows, and what to do at which step of
which unit. Each delivery is a line: the unit's number and whether it was written here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import pyarrow as pa

from unbroken.connectors.kafka_sink import KafkaSink, KafkaSinkWriter
from unbroken.errors import UnbrokenError
from unbroken.protocol.ids import StreamId
from unbroken.protocol.units import Digest, UnitHeader

IDENTITY = "flow/out"


def header(number: int, stream: str = "counts.0>out.0") -> UnitHeader:
    return UnitHeader(StreamId.parse(stream), number, number, 1_000 * number, Digest(1, 1))


def table(number: int, rows: int = 3) -> pa.Table:
    return pa.table({"unit": [number] * rows, "row": list(range(rows))})


def sink(servers: str, topic: str, **parameters: Any) -> KafkaSink:
    made = KafkaSink(servers, topic, **parameters)
    made.identity = IDENTITY
    return made


def main(what: dict[str, Any]) -> None:
    unit, done = 0, False

    def at(step: str) -> None:
        nonlocal done
        if not done and (step, unit) == (what.get("step"), what.get("unit")):
            done = True
            os.kill(os.getpid(), signal.Signals[what["signal"]])

    writer = KafkaSinkWriter(sink(what["servers"], what["topic"], **what.get("parameters", {})), at)
    for unit in range(what["first"], what["last"] + 1):
        while True:
            try:
                written = writer.deliver(header(unit), table(unit, what.get("rows", 3)))
                break
            except UnbrokenError as error:
                print(f"# {error}", flush=True)
        print(unit, written, flush=True)
    writer.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
