"""Turns agreed pulses into units: reads every source as the ingress log says, splits, and writes the outboxes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from unbroken.connectors.base import SourceReader
from unbroken.connectors.deadletter import DeadLetters
from unbroken.connectors.push import PushBatch, PushReader
from unbroken.digest import arrow_digest
from unbroken.flow import Dataflow
from unbroken.protocol.ids import ShardId, StreamId
from unbroken.protocol.ingress import Entry
from unbroken.protocol.layout import Topology
from unbroken.protocol.units import UnitHeader
from unbroken.sharding import split
from unbroken.transport.store import UnitStore, encode_unit

log = logging.getLogger(__name__)


class Feeder:
    """The sources of one ingress node.

    ``poll`` is called on the node that leads the ingress, ``produce`` on every ingress node for every
    committed pulse in order. Both run on one thread. Given the same log all ingress nodes write the same
    units: a pulse says for each source where it starts and ends, and nothing else decides what is read.
    """

    def __init__(self, flow: Dataflow, topology: Topology, store: UnitStore, dead_letters: Path) -> None:
        self._flow = flow
        self._store = store
        self._letters = DeadLetters(dead_letters)
        self._readers: dict[str, SourceReader] = {
            name: source.connector.open() for name, source in flow.sources.items()
        }
        self._consumers = {
            name: [consumer for producer, consumer in topology.edges if producer == name] for name in flow.sources
        }
        self._topology = topology
        self._positions: dict[str, Any] = {}
        self._last_cut_ms = 0
        self.rows = 0
        self.bad_rows = 0

    def persisted(self, entry: Entry) -> None:
        """An entry is in this node's log: the next pulse, if this node cuts it, starts where it ends."""
        if entry.pulse:
            record = json.loads(entry.body)
            self._positions = {name: span[1] for name, span in record["spans"].items()}
            self._last_cut_ms = int(record["cut_ms"])

    def poll(self, now_ms: int) -> tuple[bytes, bool]:
        """The record of the next pulse, and whether it is the last."""
        cut_ms = max(now_ms, self._last_cut_ms + 1)
        spans: dict[str, Any] = {}
        exhausted = True
        for name, reader in self._readers.items():
            start = self._positions.get(name)
            cut = reader.poll(start, cut_ms)
            spans[name] = [start, cut.position]
            exhausted = exhausted and cut.exhausted
        record = {"cut_ms": cut_ms, "spans": spans}
        return json.dumps(record, separators=(",", ":")).encode(), exhausted

    def take_push(self, entry: Entry) -> PushBatch:
        """Rows pushed to a source became part of the log."""
        batch = PushBatch.from_bytes(entry.body)
        reader = self._readers.get(batch.source)
        if isinstance(reader, PushReader):
            reader.take(entry.index, batch)
        return batch

    def produce(self, entry: Entry) -> tuple[UnitHeader, ...]:
        """Write the units of a committed pulse."""
        record = json.loads(entry.body)
        headers: list[UnitHeader] = []
        rows_taken = bad_rows = 0
        for name, (start, end) in record["spans"].items():
            rows = self._readers[name].read(start, end)
            if rows.bad:
                self._letters.write(name, entry.pulse, rows.bad)
            bad_rows += len(rows.bad)
            rows_taken += rows.table.num_rows
            headers += self._write(name, entry, int(record["cut_ms"]), rows.table)
        # Only when the pulse is whole: if a source fails, the pulse is read again from the start.
        self.rows += rows_taken
        self.bad_rows += bad_rows
        for name, reader in self.push_readers().items():
            reader.forget(record["spans"][name][1])
        return tuple(headers)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def push_readers(self) -> Mapping[str, PushReader]:
        return {name: reader for name, reader in self._readers.items() if isinstance(reader, PushReader)}

    def _write(self, source: str, entry: Entry, cut_ms: int, table: pa.Table) -> list[UnitHeader]:
        out: list[UnitHeader] = []
        for consumer in self._consumers[source]:
            shards = self._topology.segments[consumer]
            keys = self._flow.segments[consumer].shard_by.get(source, ())
            for index, piece in enumerate(split(table, keys, shards)):
                stream = StreamId(ShardId(source, 0), ShardId(consumer, index))
                digest = arrow_digest(piece)
                header = UnitHeader(stream, entry.pulse, entry.pulse, cut_ms, digest, piece.nbytes, final=entry.final)
                path = self._store.outbox_path(stream, entry.pulse)
                if not path.exists():
                    self._store.write(path, encode_unit(header, piece))
                out.append(header)
        return out
