"""Journals as bytes: the beginning, and segments of steps in compressed pieces, each with a checkpoint.

The rows of users are not in a journal. The protocol looks at no more of the bytes it is given than their length and
whether they are equal, so a journal has their length and a digest, and a replay has stand-ins of the same length.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from unbroken.codecs.checkpoint import Frame, NoCheckpoint, read_checkpoint, write_checkpoint
from unbroken.codecs.codec import Codec, Undecodable
from unbroken.codecs.derivation import TAG, Derived, derive
from unbroken.errors import InvariantViolation, UnbrokenError
from unbroken.protocol.events import Event
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.journal import Beginning, JournalPart, JournalStep
from unbroken.protocol.machine import NodeProtocol

PIECE_BYTES = 64 << 10
"""Steps that are compressed together; that takes about a millisecond of the loop."""

LARGEST_PIECE = 64 << 20
"""A piece that is larger than this when it is unpacked was not written by a node."""

MARK_BYTES = 8

UNREADABLE = (ValueError, OverflowError, RecursionError, InvariantViolation, NoCheckpoint, zlib.error)
"""What bytes lead to that are no part of a journal."""


@dataclass(frozen=True)
class JournalSegment:
    """Steps without a gap, from the number ``first`` on, and a ``checkpoint`` of the state before them.

    Without a checkpoint they follow the beginning, those of the segment before, or nothing that is known.
    """

    first: int
    checkpoint: bytes
    steps: tuple[bytes, ...]


@dataclass(frozen=True)
class JournalFile:
    """A journal as it is kept: what the protocol object was made from, and the segments that are left, oldest first."""

    node: str
    reason: str
    written_ms: int
    beginning: bytes
    segments: tuple[JournalSegment, ...]


JOURNAL = Codec(JournalFile, "journal")


class StandIns:
    """Bytes as their length and digest, and back as bytes of that length which have the same digest by definition."""

    def __init__(self) -> None:
        self._made: dict[bytes, bytes] = {}

    def digest(self, data: bytes) -> tuple[int, bytes]:
        known = self._made.get(data)
        return len(data), known or hashlib.blake2b(data, digest_size=MARK_BYTES).digest()

    def stand_in(self, told: tuple[int, bytes]) -> bytes:
        length, digest = told
        if not 0 <= length <= LARGEST_PIECE or len(digest) != MARK_BYTES:
            raise ValueError(f"a stand-in of {length} bytes")
        data = (digest * (length // MARK_BYTES + 1))[:length]
        self._made[data] = digest
        return data


class JournalForm:
    """Writes and reads the parts of one journal; the stand-ins of a replay are its own."""

    def __init__(self) -> None:
        stand_ins = self._stand_ins = StandIns()
        self._step: Derived = derive(JournalStep, by_name=False, bodies=stand_ins)
        self._beginning: Derived = derive(Beginning, by_name=False, bodies=stand_ins)
        self._instruction: Derived = derive(Instruction, by_name=False, bodies=stand_ins)
        self._named = derive(Event | Instruction, by_name=True, bodies=stand_ins).out
        self._encode = msgspec.msgpack.Encoder().encode
        self._read_step = msgspec.msgpack.Decoder(tuple[self._step.wire, ...])  # type: ignore[name-defined]
        self._read_beginning = msgspec.msgpack.Decoder(self._beginning.wire)

    def mark(self, instructions: Sequence[Instruction]) -> str:
        """A digest of instructions in their order."""
        if not instructions:
            return "-"
        out, encode = self._instruction.out, self._encode
        parts = [encode(out(each)) for each in instructions]
        return hashlib.blake2b(b"".join(parts), digest_size=MARK_BYTES).hexdigest()

    def shown(self, value: Event | Instruction) -> Any:
        """An event or instruction as JSON has it, by the names of its fields."""
        return msgspec.to_builtins(self._named(value), str_keys=True)

    def line(self, value: Event | Instruction) -> str:
        """The same in one line of text."""
        fields = self.shown(value)
        kind = fields.pop(TAG)
        return " ".join([kind, *(f"{name}={json.dumps(field)}" for name, field in fields.items())])

    def step_bytes(self, step: JournalStep) -> bytes:
        return self._encode(self._step.out(step))

    def beginning_bytes(self, beginning: Beginning) -> bytes:
        return zlib.compress(self._encode(self._beginning.out(beginning)), 1)

    def beginning(self, data: bytes) -> Beginning:
        found: Beginning = self._guarded(self._read_beginning, data, self._beginning.back)
        return found

    def checkpoint_bytes(self, frame: Frame, text: Callable[[str], str] = str) -> bytes:
        """The state of the protocol object of the frame, with its texts changed; raises NoCheckpoint."""
        return zlib.compress(write_checkpoint(frame, self._stand_ins, text), 1)

    def parts(self, kept: JournalFile) -> tuple[JournalPart, ...]:
        """The segments of a journal as they are replayed."""
        return tuple(
            JournalPart(segment.first, list(self.steps(segment.steps)), self._restoring(kept, segment))
            for segment in kept.segments
        )

    def _restoring(self, kept: JournalFile, segment: JournalSegment) -> Callable[[], NodeProtocol] | None:
        def restored() -> NodeProtocol:
            protocol = self.beginning(kept.beginning).protocol()
            if not segment.checkpoint:
                return protocol
            return self._guarded(  # type: ignore[no-any-return]
                _Undecoded, segment.checkpoint, lambda data: read_checkpoint(protocol, data, self._stand_ins)
            )

        return restored if segment.checkpoint or segment.first == 1 else None

    def steps(self, pieces: Sequence[bytes]) -> Iterator[JournalStep]:
        for piece in pieces:
            yield from self._guarded(self._read_step, piece, lambda found: [self._step.back(each) for each in found])

    @staticmethod
    def _guarded(decoder: Any, data: bytes, back: Any) -> Any:
        try:
            unpacked = zlib.decompressobj().decompress(data, LARGEST_PIECE)
            return back(decoder.decode(unpacked))
        except (*UNREADABLE, UnbrokenError) as error:
            raise Undecodable(f"a part of the journal cannot be read: {error}") from None


class _Undecoded:
    """Reads nothing."""

    @staticmethod
    def decode(data: bytes) -> bytes:
        return data


class PackedSteps:
    """Steps of a journal, packed; ``bytes`` is their size as far as they are."""

    def __init__(self) -> None:
        self.bytes = 0
        self.count = 0
        self._packed: list[bytes] = []
        self._open: list[bytes] = []
        self._open_bytes = 0

    def add(self, data: bytes) -> None:
        self._open.append(data)
        self._open_bytes += len(data)
        self.count += 1
        if self._open_bytes >= PIECE_BYTES:
            packed = _packed(self._open)
            self._packed.append(packed)
            self.bytes += len(packed)
            self._open, self._open_bytes = [], 0

    def all(self) -> tuple[bytes, ...]:
        return (*self._packed, *((_packed(self._open),) if self._open else ()))


def _packed(steps: Sequence[bytes]) -> bytes:
    head = msgspec.msgpack.encode([None] * len(steps))[: -len(steps)]
    return zlib.compress(head + b"".join(steps), 1)
