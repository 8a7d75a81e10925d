"""Sources that go their own ways in the simulated cluster, and what the sinks have to hold then.

Unit b of a source is the same whenever it comes. A source that was away closes all the units that it has missed with
the next entry of the log, and replicas take such units together; which ones, follows from the units alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.model_parts import State, memory_of, no_rows, result_of, run_batch, source_unit
from protocol.sim_programs import Lane, lane_of, pulse_body
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.replica.cuts import TOGETHER
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.layout import Topology


def bucket_body(number: int) -> bytes:
    """The rows of a bucket, which do not depend on when it comes."""
    return pulse_body(number, 1, 0)


def away_at(entry: Entry) -> list[str]:
    """The sources that could not be asked."""
    return list(json.loads(entry.body)["away"])


def buckets_of(source: str, entry: Entry, entries: Mapping[int, Entry]) -> range:
    """The units that a source closes with an entry of the log: one for each pulse since it was last there."""
    if source in away_at(entry):
        return range(0)
    asked = [e.pulse for e in entries.values() if 0 < e.pulse < entry.pulse and source not in away_at(e)]
    return range(max(asked, default=0) + 1, entry.pulse + 1)


@dataclass(frozen=True)
class _Unit:
    content: int
    cut: int
    fold: int


def bucketed_reference(topology: Topology, entries: Mapping[int, Entry]) -> dict[Lane, list[tuple[str, int]]]:
    """What the sinks hold after a run without faults in which the sources were away just the same."""
    units: dict[StreamId, dict[int, _Unit]] = {stream: {} for stream in topology.streams}
    for entry in entries.values():
        for source in topology.sources if entry.pulse else ():
            closed = buckets_of(source, entry, entries)
            for number in closed:
                for stream in topology.outputs(ShardId(source, 0)):
                    content = source_unit(stream, (bucket_body(number),))
                    units[stream][number] = _Unit(content, entry.pulse, closed[-1])
    for shard in [shard for part in topology.segments for shard in topology.shards(part)]:
        _run(topology, shard, units)
    sinks = [stream for stream in topology.streams if topology.is_sink(stream.consumer)]
    return {
        lane_of(stream): [(stream.producer.part, units[stream][n].content) for n in sorted(units[stream])]
        for stream in sinks
    }


def _run(topology: Topology, shard: ShardId, units: dict[StreamId, dict[int, _Unit]]) -> None:
    """All that a shard makes of its input."""
    inputs, done = topology.inputs(shard), 0
    through = min(len(units[stream]) for stream in inputs)
    current: State = 0
    while done < through:
        last = _last_together([units[stream][done + 1] for stream in inputs], done + 1)
        contents = {n: {s: [units[s][n].content] for s in inputs} for n in range(done + 1, last + 1)}
        current = run_batch(shard, current, contents, memory_of(topology, shard.part))
        cut, fold = max(units[stream][last].cut for stream in inputs), last if last > done + 1 else 0
        for stream in topology.outputs(shard):
            for between in range(done + 1, last):
                units[stream][between] = _Unit(no_rows(stream, between), cut, fold)
            units[stream][last] = _Unit(result_of(current, stream), cut, fold)
        done = last


def _last_together(firsts: list[_Unit], number: int) -> int:
    """Those are taken together that the input which came last has closed at once."""
    latest = max(unit.cut for unit in firsts)
    fold = min(unit.fold for unit in firsts if unit.cut == latest)
    return max(number, min(fold, number + TOGETHER - 1))
