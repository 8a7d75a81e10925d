"""A stage for one segment at a time: a gate and a store of units stand in for a node, and the clock is read at both.

All input is there before a query starts, so that it never waits: a micro-batch begins when the gate answers, its
results are ready when they are written, and it is committed when the query asks for the next one.
"""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from unbroken.data.unit_store import UnitStore
from unbroken.errors import UnbrokenError
from unbroken.flow.program import Consumer
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken.spark import checkpoints
from unbroken.spark.runner import QueryRunner, QuerySurroundings, SegmentCode
from unbroken.transport.calls import GateAnswer, GateQuestion
from unbroken.transport.server import NodeServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN = secrets.token_urlsafe(32)
OUT = "out"
"""The part that takes the results of every segment."""

BEGAN_MS = 1_700_000_000_000
"""When the first pulse would have been cut; segments may ask for the time of the cut."""

DEADLINE_S = 180.0
"""For one run of a segment; one that takes longer could not be run with pulses either."""

IDLE_S = 0.1
LOOK_S = 0.05

CheckpointFiles = dict[str, tuple[int, int]]
"""What a copy of a checkpoint consists of: names, and for each the file's identity and size."""


@dataclass
class Take:
    """One run of a segment's query over the units up to ``last``; times are those of ``time.monotonic``."""

    last: int
    checkpoint: Path
    began: float = 0.0
    first_ask: float = 0.0
    answered: dict[int, float] = field(default_factory=dict)
    produced: dict[int, float] = field(default_factory=dict)
    asked: dict[int, float] = field(default_factory=dict)
    pins: dict[int, CheckpointFiles] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)

    def ask(self, start: int) -> int:
        """The gate: one unit further, until there are no more. ``start`` is committed."""
        now = time.monotonic()
        self.first_ask = self.first_ask or now
        if start not in self.asked:  # with several inputs, each of them asks
            self.asked[start] = now
            self._pin(start)
        if start >= self.last:
            self.done.set()
            time.sleep(IDLE_S)
            return start
        self.answered[start + 1] = time.monotonic()
        return start + 1

    @property
    def start_ms(self) -> float:
        """From the start of the query to its first question."""
        return (self.first_ask - self.began) * 1000

    def batch_ms(self, number: int) -> float:
        return (self.produced[number] - self.answered[number]) * 1000

    def commit_ms(self, number: int) -> float:
        return (self.asked[number] - self.produced[number]) * 1000

    def _pin(self, number: int) -> None:
        """Note what a copy of this version would consist of."""
        target = self.checkpoint.parent / "pin"
        shutil.rmtree(target, ignore_errors=True)
        if number:
            checkpoints.pin(self.checkpoint, target, checkpoints.batches_through(self.checkpoint, number))
            found = [(path, path.stat()) for path in sorted(target.rglob("*")) if path.is_file()]
            self.pins[number] = {str(path.relative_to(target)): (stat.st_ino, stat.st_size) for path, stat in found}


class SegmentStage:
    """Runs segments one after the other. To be closed, also after a failure: it is a server."""

    def __init__(self, directory: Path, session: SparkSession, pulse_ms: float) -> None:
        self.directory = directory
        self.store = UnitStore(directory / "replicas")
        self.units: dict[str, Sequence[Path]] = {}
        self._take: Take | None = None
        # Of what nodes ask each other nothing is asked here: queries need the gate alone.
        self._server = NodeServer("127.0.0.1", 0, TOKEN, _Gate(self), 1.0)  # type: ignore[arg-type]
        self._around = QuerySurroundings(
            session=session,
            store=self.store,
            gate=self._server.address,
            token=TOKEN,
            checkpoint=self._checkpoint,
            base=lambda _replica: 0,
            cut_header=lambda replica, number, _cut: UnitHeader(
                StreamId(ShardId("made", 0), replica.shard), number, number, cut_ms(number, pulse_ms), Digest(0, 0)
            ),
            produced=lambda _replica, number, _headers, _watermark_ms: self._produced(number),
            consumers=lambda _part: (Consumer(OUT, (), 1),),
        )

    def close(self) -> None:
        self._server.close()

    def keep(self, producer: str, number: int, data: pa.Buffer) -> Path:
        """Write a unit of a source."""
        path = self.directory / "made" / producer / f"{number}.arrow"
        self.store.write(path, data)
        return path

    def feed(self, replica: ReplicaId, producer: str) -> StreamId:
        """Make the units of a producer the input of a replica."""
        stream = StreamId(ShardId(producer, 0), replica.shard)
        for number, path in enumerate(self.units[producer], start=1):
            self.store.link(path, self.store.inbox_path(replica, stream, number))
        return stream

    def made(self, replica: ReplicaId, count: int) -> list[Path]:
        """The units that a replica has made."""
        stream = StreamId(replica.shard, ShardId(OUT, 0))
        return [self.store.outbox_path(replica, stream, number) for number in range(1, count + 1)]

    def run(self, code: SegmentCode, replica: ReplicaId, last: int) -> Take:
        """Start the query of a replica on what it has, let it process its units up to ``last``, and end it."""
        take = self._take = Take(last, self._checkpoint(replica))
        runner = QueryRunner(replica, code, self._around)
        take.began = time.monotonic()
        try:
            runner.start()
            while not take.done.wait(LOOK_S):
                failure = runner.failure()
                if failure is not None:
                    raise UnbrokenError(f"segment {replica.shard.part} failed while it was measured: {failure}")
                if time.monotonic() - take.began > DEADLINE_S:
                    raise UnbrokenError(_too_slow(replica.shard.part, max(take.produced, default=0), last))
        finally:
            runner.stop()
            self._take = None
        return take

    def answer(self, start: int) -> int:
        take = self._take
        if take is None:
            time.sleep(IDLE_S)
            return start
        return take.ask(start)

    def _produced(self, number: int) -> None:
        if self._take is not None:
            self._take.produced[number] = time.monotonic()

    def _checkpoint(self, replica: ReplicaId) -> Path:
        return self.directory / "replicas" / str(replica) / "checkpoint"


class _Gate:
    """The part of a node that queries talk to."""

    def __init__(self, stage: SegmentStage) -> None:
        self._stage = stage

    def ask_gate(self, question: GateQuestion) -> GateAnswer:
        return GateAnswer(self._stage.answer(question.start))


def cut_ms(number: int, pulse_ms: float) -> int:
    return BEGAN_MS + int(number * pulse_ms)


def _too_slow(segment: str, done: int, last: int) -> str:
    told = f"segment {segment} processed {done} of {last} units in {DEADLINE_S:.0f} s"
    return f"{told}; run it alone on the machine, or give a smaller --rate"
