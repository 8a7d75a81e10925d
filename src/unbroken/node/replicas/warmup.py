"""Warming a node up for what may come to it, so that a replica that does is at full speed at once.

The first micro-batch of a query takes seconds: classes are loaded, plans compiled, Python processes started. A
joining replica that has to go through that is many units behind before it has processed its first one. So an idle node
runs each segment once, by the very code that runs replicas, over a few units of made-up rows, and throws the result
away. A node at work does so with the segments that it would have to take over alone, when its own are under way.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from unbroken.data.schema import arrow_schema
from unbroken.data.unit_store import UnitStore, encode_unit
from unbroken.errors import UnbrokenError, reason_of
from unbroken.node.interfaces import LoopAccess, NodeLife
from unbroken.node.replicas.programs import Programs
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken.spark.runner import QueryRunner, QuerySurroundings

log = logging.getLogger(__name__)

T = TypeVar("T")

UNITS = 12
"""Micro-batches of each segment: from about the tenth on they take as long as they always will."""

ROWS = 200
SEGMENT_DEADLINE_S = 60.0
LOOK_S = 0.1

WARM_INDEX = 1_000_000_000
"""Index of the replicas that exist for the warm-up only; real ones are counted up from zero."""


SETTLED = 5
"""Units that a node's own replicas have committed when it has time for others."""

SETTLE_S = 120.0


class WarmUp:
    """Runs segments once; ends early when the node gets something to do."""

    def __init__(
        self, life: NodeLife, loop: LoopAccess, programs: Programs, root: Path, around: QuerySurroundings
    ) -> None:
        self._life = life
        self._loop = loop
        self._programs = programs
        self._root = root / "warm-up"
        store = UnitStore(self._root)
        self._around = replace(
            around,
            store=store,
            checkpoint=lambda replica: self._root / str(replica) / "checkpoint",
            base=lambda _replica: 0,
            cut_header=lambda replica, number, _cut: UnitHeader(
                StreamId(ShardId("made-up", 0), replica.shard), number, number, number, Digest(0, 0)
            ),
            produced=lambda _replica, _number, _headers, _watermark_ms: None,
        )
        self._done: dict[ReplicaId, threading.Event] = {}
        self._idle = True

    def start(self) -> None:
        threading.Thread(target=self._run, name="warm-up", daemon=True).start()

    def answer(self, replica: ReplicaId, start: int) -> int | None:
        """The gate of the made-up replicas: one unit further, until there are no more. None for real ones."""
        done = self._done.get(replica)
        if done is None:
            return None
        if start < UNITS:
            return start + 1
        done.set()
        return start

    def _run(self) -> None:
        self._idle = not self._ask(lambda protocol: bool(protocol.hosted()), True)
        if not self._idle:
            self._await_own()
        for name in self._segments():
            if self._busy():
                break
            try:
                self._segment(name)
            except BaseException as error:
                # Made-up rows may not suit the user's code; then the first real micro-batch is a slow one.
                log.info("segment %s was not warmed up: %s", name, reason_of(error))
        shutil.rmtree(self._root, ignore_errors=True)
        log.info("%s is warm", self._life.name)

    def _segments(self) -> list[str]:
        """All of them on an idle node; otherwise those that this node may have to take over with nobody beside it."""
        topology = self._programs.topology
        if self._idle:
            return list(topology.segments)
        none: list[ReplicaId] = []
        here = {replica.shard.part for replica in self._ask(lambda protocol: protocol.hosted(), none)}
        held = {replica.shard.part for replica in self._ask(lambda protocol: list(protocol.policies.held()), none)}
        relying = {part for part in topology.segments if topology.strategy(part).rebuilt}
        return [part for part in topology.segments if part in (held | relying) - here]

    def _await_own(self) -> None:
        waited = 0.0
        while waited < SETTLE_S and not self._busy():
            if self._ask(lambda protocol: all(r.committed >= SETTLED for r in protocol.replicas.values()), True):
                return
            time.sleep(LOOK_S)
            waited += LOOK_S

    def _segment(self, name: str) -> None:
        replica = ReplicaId(ShardId(name, 0), WARM_INDEX)
        code = self._programs.code(replica.shard)
        for input_name, streams in code.streams.items():
            table = made_up_rows(arrow_schema(code.schemas[input_name]))
            for stream, number in itertools.product(streams, range(1, UNITS + 1)):
                header = UnitHeader(stream, number, number, number, Digest(table.num_rows, 0))
                path = self._around.store.inbox_path(replica, stream, number)
                self._around.store.write(path, encode_unit(header, table))
        done = self._done[replica] = threading.Event()
        runner = QueryRunner(replica, code, self._around)
        try:
            runner.start()
            waited = 0.0
            while not done.wait(LOOK_S) and waited < SEGMENT_DEADLINE_S and not self._busy():
                waited += LOOK_S
                if runner.failure() is not None:
                    raise RuntimeError(runner.failure())
        finally:
            runner.stop()
            del self._done[replica]

    def _busy(self) -> bool:
        if self._life.stopping:
            return True
        idle = self._idle
        return self._ask(lambda protocol: bool(protocol.hosted() if idle else protocol.newcomers.joins), True)

    def _ask(self, question: Callable[[NodeProtocol], T], otherwise: T) -> T:
        """Ask the loop; ``otherwise`` if the node has no place, or ends."""
        try:
            found = self._loop.inquire(question)
        except UnbrokenError:
            return otherwise
        return otherwise if found is None else found


def made_up_rows(schema: pa.Schema, rows: int = ROWS) -> pa.Table:
    """Plausible rows of a schema: a few different small values in every column."""
    columns = [pa.array([_value(field.type, row) for row in range(rows)], field.type) for field in schema]
    return pa.table(columns, schema=schema)


def _value(kind: pa.DataType, row: int) -> Any:
    small = row % 7
    if pa.types.is_boolean(kind):
        return small % 2 == 0
    if pa.types.is_integer(kind):
        return small
    if pa.types.is_floating(kind):
        return float(small)
    if pa.types.is_decimal(kind):
        return decimal.Decimal(small)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str(small)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return bytes([small])
    if pa.types.is_date(kind):
        return datetime.date(2020, 1, 1 + small)
    if pa.types.is_timestamp(kind):
        zone = datetime.UTC if kind.tz is not None else None
        return datetime.datetime(2020, 1, 1, 0, 0, small, tzinfo=zone)
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, row) for field in kind}
    if pa.types.is_map(kind):
        return []
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(kind.value_type, row)]
    return None
