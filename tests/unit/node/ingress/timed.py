"""Sources with event times that fail as they are told, and ingress nodes that read them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from kit.support import consumers_of
from unbroken import Client, Dataflow
from unbroken.connectors.base import Cut, Position, SourceConnector, SourceReader
from unbroken.connectors.dead_letters import DeadLetters
from unbroken.connectors.push.source import Push, PushBatch
from unbroken.data.rows.parsed import Rows
from unbroken.data.schema import parse_schema
from unbroken.data.unit_store import UnitStore, decode_unit, unit_name
from unbroken.errors import Flaw
from unbroken.node.ingress.calls import Inline
from unbroken.node.ingress.entries import PULSE, PulseRecord
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.ingress.unit_writer import UnitWriter
from unbroken.node.policies.bucket import BucketFeeder
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.units import UnitHeader

SCHEMA = "at timestamp, k int, n long"
SIZE = 100
NOON = 1_700_000_000_000


def rows_at(times: Iterable[int], first: int = 0) -> pa.Table:
    """Rows with these event times (milliseconds after noon), numbered from ``first`` on."""
    micros = pa.array([(NOON + at) * 1000 for at in times], pa.int64())
    numbers = pa.array(range(first, first + len(micros)), pa.int64())
    keys = pa.array([n % 5 for n in numbers.to_pylist()], pa.int32())
    return pa.table({"at": micros.cast(pa.timestamp("us", "UTC")), "k": keys, "n": numbers})


class Script(SourceConnector):
    """A source with all of its rows from the beginning; a position is the number of rows that were read.

    ``fails`` is asked before every call to the reader, and raises if that is to fail.
    """

    def __init__(self, times: Iterable[int], fails: Callable[[str], None] = lambda what: None) -> None:
        self.times = list(times)
        self.there = 0
        self.reachable = True
        self.fails = fails

    @property
    def schema(self) -> Any:
        return parse_schema(SCHEMA)

    def problems(self) -> list[Flaw]:
        return []

    def open(self) -> SourceReader:
        return _Reader(self)


class _Reader(SourceReader):
    def __init__(self, script: Script) -> None:
        self._script = script

    def poll(self, position: Position | None, now_ms: int) -> Cut:
        self._script.fails("poll")
        return Cut(self._script.there, self._script.there >= len(self._script.times), self._script.reachable)

    def read(self, start: Position | None, end: Position) -> Rows:
        self._script.fails("read")
        return Rows(rows_at(self._script.times[start or 0 : end], start or 0))


def make_flow(scripts: Mapping[str, SourceConnector], disorder: str | float = 0, **settings: Any) -> Dataflow:
    flow = Dataflow("timed", nodes=2, ordering="bucket", bucket=SIZE, bucket_origin=NOON, **settings)
    for name, script in scripts.items():
        flow.source(name, script, event_time="at", disorder=disorder)
    flow.segment(*scripts, name="sharded", shard_by=["k"], shards=2)(lambda *frames: frames[0])
    flow.sink("out", "sharded", Client())
    return flow


class Member:
    """An ingress node as it works: log, ledgers and feeder on one directory; its units go to another one."""

    def __init__(self, flow: Dataflow, root: Path, letters: Path, units: str = "units") -> None:
        self.log = IngressLogFile(root / "log")
        self.units = root / units
        self.store = UnitStore(self.units)
        self.feeder = BucketFeeder(
            flow,
            UnitWriter(consumers_of(flow), self.store, self.path),
            DeadLetters(letters),
            self.log.base,
            self.log.read_waiting(),
            lambda name, reader: Inline(),
        )
        self.ledgers = self.feeder.ledgers()
        self.headers: list[UnitHeader] = []
        for entry in self.log.read():
            self.feeder.persisted(entry)

    def path(self, stream: StreamId, number: int) -> Path:
        return self.units / str(stream) / unit_name(number)

    def persist(self, entry: Entry) -> None:
        self.log.append(entry)
        self.feeder.persisted(entry)

    def commit(self, entry: Entry) -> tuple[UnitHeader, ...]:
        if entry.pulse:
            return self.keep(self.feeder.produce(entry))
        batch = PushBatch.from_bytes(entry.body)
        if self.ledgers[batch.source].accept(batch.producer, batch.sequence) != "duplicate":
            self.feeder.take_push(entry)
        return ()

    def collect(self) -> tuple[UnitHeader, ...]:
        return self.keep(self.feeder.collect())

    def keep(self, headers: tuple[UnitHeader, ...]) -> tuple[UnitHeader, ...]:
        self.headers += headers
        return headers

    def trim(self, units: dict[str, int]) -> None:
        base = self.feeder.base_after(units)
        if base is not None:
            self.log.rebase(base)

    def take(self, entry: Entry) -> tuple[UnitHeader, ...]:
        self.persist(entry)
        return self.commit(entry)

    def files(self, after: dict[str, int] | None = None) -> dict[str, bytes]:
        """The units, by name; of each source those after a number."""
        found = {}
        for path in self.units.rglob("*.arrow"):
            source = StreamId.parse(path.parent.name).producer.part
            if int(path.stem) > (after or {}).get(source, 0):
                found[str(path.relative_to(self.units))] = path.read_bytes()
        return found

    def numbers(self, source: str, unit: int) -> list[int]:
        """The numbers of the rows in a unit."""
        tables = [self.table(source, shard, unit) for shard in range(2)]
        return sorted(n for table in tables for n in table.column("n").to_pylist())

    def table(self, source: str, shard: int, unit: int) -> pa.Table:
        stream = StreamId(ShardId(source, 0), ShardId("sharded", shard))
        return decode_unit(self.store.read(self.path(stream, unit)))[1]

    def last(self, source: str) -> int:
        return max((int(path.stem) for path in self.units.glob(f"{source}.0>sharded.0/*.arrow")), default=0)

    def lasts(self, sources: Iterable[str]) -> dict[str, int]:
        return {source: self.last(source) for source in sources}

    def state(self) -> object:
        """Everything that decides what comes next, as far as it can be seen."""
        feeder = self.feeder
        ledgers = {name: ledger.known() for name, ledger in self.ledgers.items()}
        return feeder.poll(NOON + 999_000, 1), feeder.rows, feeder.bad_rows, feeder.late_rows, ledgers

    def close(self) -> None:
        self.log.close()
        self.feeder.close()


def entry_of(index: int, pulse: int, cut_ms: int, spans: dict[str, Any], **said: Any) -> Entry:
    """A pulse of the log as a leader would write it."""
    return Entry(index, 1, PULSE.encode(PulseRecord(NOON + cut_ms, spans, 1, 0, **said)), pulse)


def pushed_rows(source: str, producer: str, sequence: int, times: Iterable[int]) -> bytes:
    lines = [
        json.dumps(
            {
                "at": dt.datetime.fromtimestamp((NOON + at) / 1000, dt.UTC).isoformat(),
                "k": 1,
                "n": 1000 * sequence + place,
            }
        )
        for place, at in enumerate(times)
    ]
    return PushBatch(source, producer, sequence, "\n".join(lines).encode()).to_bytes()


def push_source() -> Push:
    return Push(SCHEMA)
