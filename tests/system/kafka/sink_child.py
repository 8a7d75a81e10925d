"""A process that delivers units to a Kafka sink, for tests that freeze or kill it at a step.

It is given one JSON object: the arguments of the sink, which units of how many rows, and what to do at which step of
which unit. Each delivery is a line: the unit's number, or the pulse of a tentative one, and whether it was written.
``units`` may name units as ``[number]`` and, if they are tentative, as ``[since, pulse]``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from typing import Any

import pyarrow as pa

from unbroken.connectors.kafka.sink import KafkaSink, KafkaSinkWriter
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

IDENTITY = "flow/out"


def header(number: int, stream: str = "counts.0>out.0") -> UnitHeader:
    return UnitHeader(StreamId.parse(stream), number, number, 1_000 * number, Digest(1, 1))


def table(number: int, rows: int = 3) -> pa.Table:
    return pa.table({"unit": [number] * rows, "row": list(range(rows))})


def sink(servers: str, topic: str, **parameters: Any) -> KafkaSink:
    made = KafkaSink(servers, topic, **parameters)
    made.identity = IDENTITY
    return made


def tentative(since: int, pulse: int) -> UnitHeader:
    home = header(pulse, "counts~.0>out.0")
    return replace(home, number=1, stable=False, since=since)


def deliver(writer: KafkaSinkWriter, what: list[int], rows: int = 3) -> bool:
    """Deliver the unit ``[number]``, or the tentative one ``[since, pulse]``; its rows have the negative pulse."""
    if len(what) == 1:
        return writer.deliver(header(what[0]), table(what[0], rows))
    since, pulse = what
    return writer.deliver_tentative(tentative(since, pulse), table(-pulse, rows))


def main(what: dict[str, Any]) -> None:
    units = what.get("units") or [[number] for number in range(what["first"], what["last"] + 1)]
    at_unit = what.get("unit")
    stop_at = at_unit if isinstance(at_unit, list) else [at_unit]
    unit: list[int] = []
    done = False

    def at(step: str) -> None:
        nonlocal done
        if not done and (step, unit) == (what.get("step"), stop_at):
            done = True
            os.kill(os.getpid(), signal.Signals[what["signal"]])

    writer = KafkaSinkWriter(sink(what["servers"], what["topic"], **what.get("parameters", {})), at)
    for unit in units:
        while True:
            try:
                written = deliver(writer, unit, what.get("rows", 3))
                break
            except UnbrokenError as error:
                print(f"# {error}", flush=True)
        print(unit[-1], written, flush=True)
    writer.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
