"""A source that programs push rows to.

Pushed rows cannot be read again from outside, so they are entries of the ingress log themselves. What is here is
the declaration, the form of a batch in the log, and the reader that gives out the rows of committed batches.
"""

from __future__ import annotations

import math
import struct
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.connectors.base import Cut, Position, SourceConnector, SourceReader
from unbroken.data.rows.arrow_stream import read_stream
from unbroken.data.rows.budget import (
    ORIGIN_CHARS,
    REASON_CHARS,
    DecodeBudget,
    OverBudget,
    by_environment,
    clip,
    first_line,
)
from unbroken.data.rows.fit import fit
from unbroken.data.rows.json.elements import elements
from unbroken.data.rows.json.lines import parse_json_lines
from unbroken.data.rows.parsed import BadRow, Rows
from unbroken.data.rows.values.years import REASON, outside
from unbroken.data.schema import arrow_schema, parse_schema
from unbroken.errors import Flaw, UnbrokenError, require
from unbroken.quantities import is_number, milliseconds, number_problems, shown

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PushFormat = Literal["json", "arrow"]
Sign = Literal["", "alive", "leaving"]
_LENGTHS = struct.Struct(">IQ")

LEAST_HEARTBEAT_MS = 100
"""Producers give three signs of life in this time, and one may be delayed by a pause of either process."""

MOST_HEARD = 10_000
"""Producers of a source whose signs of life are kept; of more, those that were heard last."""

DECODERS = 2
"""Arrow batches that are decoded at a time before they are logged; each may take its whole budget."""

_DECODING = threading.BoundedSemaphore(DECODERS)

LEFT = math.inf
"""When a producer was heard that has left: a sign of life that was on its way then does not bring it back."""


@dataclass(frozen=True)
class _PushHeader:
    """A batch without its rows, which are written as they came."""

    source: str
    producer: str
    sequence: int
    format: PushFormat
    sign: Sign


_HEADER = Codec(_PushHeader, "push")


@dataclass(frozen=True)
class PushBatch:
    """Rows that one producer pushed in one request, as they came: JSON lines or an Arrow IPC stream.

    Or a ``sign`` of the producer, without rows and without a place in their sequence: that it is alive and has nothing
    to send, which is not logged, or that it is leaving.
    """

    source: str
    producer: str
    sequence: int
    rows: bytes
    format: PushFormat = "json"
    sign: Sign = ""

    def to_bytes(self) -> bytes:
        """Lengths of header and rows, the header, the rows."""
        header = _HEADER.encode(_PushHeader(self.source, self.producer, self.sequence, self.format, self.sign))
        return b"".join((_LENGTHS.pack(len(header), len(self.rows)), header, self.rows))

    @classmethod
    def from_bytes(cls, data: bytes) -> PushBatch:
        """Raises UnbrokenError if ``data`` is not exactly one batch."""
        try:
            header_size, rows_size = _LENGTHS.unpack_from(data)
            body = _LENGTHS.size + header_size
            if len(data) != body + rows_size:
                raise ValueError(f"{len(data)} bytes instead of {body + rows_size}")
            header = _HEADER.decode(data[_LENGTHS.size : body])
            rows = bytes(data[body:])
            return cls(header.source, header.producer, header.sequence, rows, header.format, header.sign)
        except (struct.error, ValueError, Undecodable) as error:
            raise UnbrokenError(
                f"An entry of the ingress log is not a pushed batch: {error}. The log is damaged or of another version."
            ) from None


@dataclass(frozen=True)
class BatchRefusal:
    """Why a batch is not logged: it is too large when decoded, or cannot be read at all."""

    status: Literal["too-large", "bad-request"]
    reason: str


class Push(SourceConnector):
    """Rows that programs send with `unbroken.client.PushClient` or by HTTP.

    Parameters
    ----------
    schema
        The columns of the rows.
    max_body_bytes
        Larger requests are refused.
    max_line_bytes
        Longer lines are bad rows.
    max_decoded_bytes
        Requests whose rows take more memory than this are refused, however small they are when sent.
    heartbeat
        How long a producer may be silent (``"2s"``) before the source counts as one that has failed, until it is heard
        again or says that it leaves. `PushClient` gives signs of life by itself. None: silence means nothing.
    """

    def __init__(
        self,
        schema: str | StructType,
        *,
        max_body_bytes: int = 16_000_000,
        max_line_bytes: int = 1_000_000,
        max_decoded_bytes: int = 128_000_000,
        heartbeat: str | float | None = None,
    ) -> None:
        self._schema = parse_schema(schema)
        self.max_body_bytes = max_body_bytes
        self.max_line_bytes = max_line_bytes
        self.max_decoded_bytes = max_decoded_bytes
        self.heartbeat = heartbeat

    @property
    def schema(self) -> StructType:
        return self._schema

    @property
    def heartbeat_ms(self) -> float | None:
        return None if self.heartbeat is None else float(milliseconds(self.heartbeat))

    def problems(self) -> list[Flaw]:
        found = number_problems(self, ("max_body_bytes", "max_line_bytes", "max_decoded_bytes"))
        if self.heartbeat is not None and not _at_least(self.heartbeat, LEAST_HEARTBEAT_MS):
            found.append(
                Flaw(f"heartbeat is {shown(self.heartbeat)}", f"give {LEAST_HEARTBEAT_MS}ms or more, such as '2s'")
            )
        return found

    @property
    def budget(self) -> DecodeBudget:
        return DecodeBudget(self.max_decoded_bytes)

    def refusal(self, batch: PushBatch) -> BatchRefusal | None:
        """Why a batch cannot be taken at all, so that its producer is told instead of acknowledged.

        Single bad JSON rows do not refuse the batch; they are set aside when it is read.
        """
        schema = arrow_schema(self._schema)
        try:
            if batch.format == "json":
                _require_json(batch.rows, schema, self.budget)
            else:
                with _DECODING:
                    _arrow_rows(batch.rows, schema, self.budget)
        except OverBudget as error:
            return BatchRefusal("too-large", clip(str(error), REASON_CHARS))
        except ValueError as error:
            return BatchRefusal("bad-request", clip(str(error), REASON_CHARS))
        return None

    def open(self) -> PushReader:
        return PushReader(self)


class PushReader(SourceReader):
    """The rows of committed batches; a position is the index of an entry in the ingress log.

    Every ingress node calls `take` for each committed batch of this source that is not a duplicate, in the order
    of the log. A pulse is committed after the batches it covers, so whoever reads a pulse has taken them. What
    has been read by all that need it is dropped with `forget`; `buffered_bytes` lets the node refuse further
    batches before memory runs out.

    Where a heartbeat is asked for, the source is reachable if every producer that this reader has heard of, and that
    has not left, was heard within that time: by rows that are logged, or by a sign of life. A producer that the log
    knows of is waited for from the beginning (`expect`).
    """

    def __init__(self, source: Push) -> None:
        self._source = source
        self._arrow = arrow_schema(source.schema)
        self._batches: deque[tuple[int, PushBatch]] = deque()
        self._last = 0
        self._forgotten = 0
        self._heartbeat_ms = source.heartbeat_ms
        self._heard: dict[str, float | None] = {}
        self._hearing = threading.Lock()
        self.buffered_bytes = 0

    @property
    def heeds(self) -> bool:
        """Whether producers are waited for."""
        return self._heartbeat_ms is not None

    def expect(self, producers: Iterable[str], heard_ms: int) -> None:
        """These producers, and no others, have not left; they were heard at this time, or before it."""
        if self.heeds:
            with self._hearing:
                self._heard = dict.fromkeys(producers, float(heard_ms))

    def take(self, index: int, batch: PushBatch, came_ms: int | None = None) -> None:
        """The entry ``index`` of the log is committed and holds ``batch``, which came at about ``came_ms``.

        None: its producer counts as heard at the next poll, which takes the rows.
        """
        require(index > self._last, f"push entry {index} after {self._last}")
        self._last = index
        self.hear(batch, came_ms)
        if index > self._forgotten and not batch.sign:
            self._batches.append((index, batch))
            self.buffered_bytes += len(batch.rows)

    def hear(self, batch: PushBatch, now_ms: int | None) -> None:
        """A producer has given a sign of life; may be called by any thread."""
        if self._heartbeat_ms is None:
            return
        with self._hearing:
            before = self._heard.pop(batch.producer, None)
            at: float | None = now_ms
            if batch.sign == "leaving" or (batch.sign == "alive" and before == LEFT):
                at = LEFT
            elif at is not None and before is not None and before != LEFT:
                # Entries that are taken again after a restart are older than signs of life that come meanwhile.
                at = max(at, before)
            self._heard[batch.producer] = at
            if len(self._heard) > MOST_HEARD:
                del self._heard[next(iter(self._heard))]

    def poll(self, position: Position | None, now_ms: int) -> Cut:
        silent = self._silent(now_ms)
        why = f"nothing is heard of {', '.join(silent)}" if silent else ""
        return Cut(max(self._last, 0 if position is None else int(position)), reachable=not silent, why=why)

    def _silent(self, now_ms: int) -> list[str]:
        """The producers that should have given a sign of life."""
        limit = self._heartbeat_ms
        if limit is None:
            return []
        with self._hearing:
            self._heard = {producer: now_ms if at is None else at for producer, at in self._heard.items()}
            return sorted(name for name, at in self._heard.items() if at is not None and now_ms - at > limit)

    def read(self, start: Position | None, end: Position) -> Rows:
        first = 0 if start is None else int(start)
        if int(end) > first and first < self._forgotten:
            raise UnbrokenError(
                f"Pushed rows after entry {first} of the ingress log are asked for, but those up to "
                f"{self._forgotten} are dropped; this ingress node must be set up again from another."
            )
        wanted = (batch for index, batch in self._batches if first < index <= int(end))
        return Rows.joined(self._arrow, (self._parse(batch) for batch in wanted))

    def forget(self, through: int) -> None:
        """Batches up to entry ``through`` will not be read again."""
        self._forgotten = max(self._forgotten, through)
        while self._batches and self._batches[0][0] <= through:
            _, batch = self._batches.popleft()
            self.buffered_bytes -= len(batch.rows)

    def _parse(self, batch: PushBatch) -> Rows:
        """The rows of a batch; one that cannot be decoded is one bad row, the same on all ingress nodes."""
        origin = f"{clip(batch.producer, ORIGIN_CHARS // 2)}/{batch.sequence}"
        budget = self._source.budget
        try:
            if batch.format == "arrow":
                return Rows(_arrow_rows(batch.rows, self._arrow, budget))
            _require_json(batch.rows, self._arrow, budget)
            return parse_json_lines(batch.rows, self._arrow, origin, self._source.max_line_bytes)
        except Exception as error:
            if by_environment(error):
                raise
            raw = f"({len(batch.rows)} bytes of {batch.format})"
            return Rows(self._arrow.empty_table(), (BadRow(raw, first_line(error), origin),))


def _at_least(value: Any, least: float) -> bool:
    """Whether a length of time that a user wrote is one, and long enough."""
    try:
        length = milliseconds(value)
    except ValueError:
        return False
    return is_number(length) and length >= least


def _require_json(data: bytes, schema: pa.Schema, budget: DecodeBudget) -> None:
    size = len(data) + elements(schema).bytes_of(data)
    budget.require_lines(data.count(b"\n") + 1, size, schema, "the batch")


def _arrow_rows(data: bytes, schema: pa.Schema, budget: DecodeBudget) -> pa.Table:
    table = fit(read_stream(data, budget), schema, exact_names=False, budget=budget)
    wrong = outside(table)
    if wrong.any():
        raise ValueError(f"{REASON}, first in row {int(wrong.argmax()) + 1}")
    return table
