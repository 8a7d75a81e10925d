"""Arrow IPC streams from outside: what they claim is looked at before anything is decoded.

A stream of some kilobytes can hold gigabytes: compressed buffers say how long they become, rows of some types take no
bytes at all, and a dictionary counts again for every batch that follows it. All of it is in the messages' metadata,
which are flatbuffers; the few fields that are needed are read here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa

from unbroken.data.rows.budget import DecodeBudget, OverBudget, by_environment, first_line

WORK_FACTOR = 16
"""Dictionaries are checked once for every batch. All of that together may take this many times the budget's bytes."""

_DICTIONARY, _RECORDS = 2, 3  # MessageHeader of Arrow's Message.fbs
_HEADER_TYPE, _HEADER = 1, 2  # Message
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3  # RecordBatch
_ID, _DATA, _DELTA = 0, 1, 2  # DictionaryBatch
_BUFFER = struct.Struct("<qq")
_I64 = struct.Struct("<q")


def read_stream(data: bytes, budget: DecodeBudget) -> pa.Table:
    """The table of an Arrow IPC stream.

    Raises
    ------
    OverBudget
        Before anything is decoded, if it would become too large.
    ValueError
        If ``data`` is not such a stream.
    """
    try:
        _check(data, budget)
        with pa.ipc.open_stream(data) as stream:
            return stream.read_all()
    except OverBudget:
        raise
    except Exception as error:
        if by_environment(error):
            raise
        raise ValueError(f"not an Arrow IPC stream: {first_line(error)}") from None


def _check(data: bytes, budget: DecodeBudget) -> None:
    size = rows = work = 0
    dictionaries: dict[int, int] = {}
    for message in pa.ipc.MessageReader.open_stream(data):
        claim = _claim(memoryview(message.metadata), memoryview(message.body or b""))
        if claim is None:
            continue
        size += claim.bytes
        if claim.dictionary is None:
            rows += claim.rows
            work += sum(dictionaries.values())
        else:
            dictionaries[claim.dictionary] = claim.bytes + claim.rows
        budget.require(size, max(rows, claim.rows), "the Arrow stream")
        if work > WORK_FACTOR * budget.bytes:
            raise OverBudget("the Arrow stream has too many batches for its dictionaries. Send larger batches.")


@dataclass(frozen=True)
class _Claim:
    """What a message says of itself: rows, bytes when decompressed, and which dictionary it is, if it is one."""

    rows: int
    bytes: int
    dictionary: int | None


class _Table:
    """A flatbuffers table; struct.error if it points outside of its buffer."""

    def __init__(self, buffer: memoryview, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._fields = at - self._int("<i", at)
        self._size = self._int("<H", self._fields)

    def _int(self, form: str, at: int) -> int:
        if at < 0:
            raise struct.error("before the beginning")
        return int(struct.unpack_from(form, self._buffer, at)[0])

    def _slot(self, field: int) -> int | None:
        place = 4 + 2 * field
        offset = self._int("<H", self._fields + place) if place < self._size else 0
        return self._at + offset if offset else None

    def number(self, field: int, form: str) -> int:
        at = self._slot(field)
        return 0 if at is None else self._int(form, at)

    def table(self, field: int) -> _Table | None:
        at = self._slot(field)
        return None if at is None else _Table(self._buffer, at + self._int("<I", at))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs of two 64-bit numbers."""
        at = self._slot(field)
        if at is None:
            return []
        start = at + self._int("<I", at)
        count = self._int("<I", start)
        end = start + 4 + count * _BUFFER.size
        if end > len(self._buffer):
            raise struct.error("a vector is longer than the message")
        return list(_BUFFER.iter_unpack(self._buffer[start + 4 : end]))


def _claim(metadata: memoryview, body: memoryview) -> _Claim | None:
    message = _Table(metadata, struct.unpack_from("<I", metadata)[0])
    kind = message.number(_HEADER_TYPE, "<B")
    header = message.table(_HEADER)
    if header is None or kind not in (_DICTIONARY, _RECORDS):
        return None
    if kind == _RECORDS:
        return _Claim(header.number(_LENGTH, "<q"), _decompressed(header, body), None)
    if header.number(_DELTA, "<B"):
        raise ValueError("it adds to a dictionary; write dictionaries as a whole")
    data = header.table(_DATA)
    if data is None:
        return None
    return _Claim(data.number(_LENGTH, "<q"), _decompressed(data, body), header.number(_ID, "<q"))


def _decompressed(records: _Table, body: memoryview) -> int:
    """What the buffers of a batch take; those that are compressed begin with their length, or -1 if they are not."""
    total = 0
    compressed = records.table(_COMPRESSION) is not None
    for offset, length in records.pairs(_BUFFERS):
        if offset < 0 or length < 0 or offset + length > len(body):
            raise ValueError("a buffer lies outside of its message")
        claimed = _I64.unpack_from(body, offset)[0] if compressed and length >= _I64.size else -1
        if claimed < -1:
            raise ValueError("a buffer has a negative length")
        total += length if claimed == -1 else claimed
    return total
