"""Writes the units of sources to the outboxes of an ingress node, split for their consumers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from unbroken.data.hashed_rows import HashedRows
from unbroken.data.unit_store import UnitStore, unit_parts
from unbroken.flow.program import Consumer
from unbroken.node.ingress.pulse_end import PulseEnd
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.units import UnitHeader


class SourceUnits(Protocol):
    """The outboxes of an ingress node, to which the units of its sources are written.

    Given the same rows, all ingress nodes write the same units. Everything is called by one thread.
    """

    def write(
        self,
        source: str,
        number: int,
        mark: PulseEnd,
        table: pa.Table,
        *,
        final: bool,
        fold: int = 0,
        anew: bool = False,
    ) -> list[UnitHeader]:
        """Write one unit of a source, split for its consumers; the entry of ``mark`` makes it whole, and those up to
        ``fold`` may be processed together with it. With ``anew``, files of it that are there count for nothing."""


class UnitWriter(SourceUnits):
    """Writes units as files."""

    def __init__(
        self,
        consumers: Callable[[str], tuple[Consumer, ...]],
        store: UnitStore,
        outbox_path: Callable[[StreamId, int], Path],
    ) -> None:
        self._consumers = consumers
        self._store = store
        self._outbox_path = outbox_path

    def write(
        self,
        source: str,
        number: int,
        mark: PulseEnd,
        table: pa.Table,
        *,
        final: bool,
        fold: int = 0,
        anew: bool = False,
    ) -> list[UnitHeader]:
        out: list[UnitHeader] = []
        consumers = self._consumers(source)
        rows = HashedRows.of(table, [each.keys for each in consumers if each.shards > 1], computed=False)
        for consumer in consumers:
            for index, piece in enumerate(rows.split(consumer.keys, consumer.shards)):
                stream = StreamId(ShardId(source, 0), ShardId(consumer.part, index))
                header = UnitHeader(
                    stream,
                    number,
                    number,
                    mark.cut_ms,
                    piece.digest(),
                    piece.table.nbytes,
                    final=final,
                    generation=mark.generation,
                    layout=mark.layout,
                    fold=fold,
                )
                path = self._outbox_path(stream, number)
                if anew or not path.exists():
                    self._store.write(path, *unit_parts(header, piece.table))
                out.append(header)
        return out
