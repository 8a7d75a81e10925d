"""State that is pinned on a donor, and the server from which others copy it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from kit.support import TOKEN
from unbroken.protocol.values.ids import ShardId
from unbroken.transport.auth import server_options
from unbroken.transport.calls import QUESTIONS, TICKET, PinQuestion, PinTicket, ReleaseQuestion
from unbroken.transport.state import pins as pins_module
from unbroken.transport.state.pins import (
    CHUNK_SCHEMA,
    EMPTY_SHA256,
    MANIFEST,
    Manifest,
    PinnedFile,
    Pins,
)

CHUNK = 16_384
NEW, BAD = "new", "bad"
"""Shards for which a `Donor` makes a pin first, and for which it answers with nonsense."""

Batches = Iterator[pa.RecordBatch]
TREE = {"checkpoint/offsets/1": b"v1", "checkpoint/.1.crc": b"", "outbox/s.0>t.0/1.arrow": bytes(range(256)) * 300}


def written(files: Any, pin: str = "p") -> bytes:
    """A manifest as a donor may write it, which can be anything."""
    listed = [dict(zip(("path", "size", "sha256"), each, strict=False)) for each in files] if files else files
    return b"manifest/1 " + json.dumps({"pin": pin, "files": listed, "version": 0, "admission": None}).encode()


def asking(pin: str) -> PinQuestion:
    """Asks a `Donor` for the pin of this name."""
    return PinQuestion(ShardId(pin, 0), "newcomer")


class Donor(flight.FlightServerBase):  # type: ignore[misc]
    """A server that wires pins as a node does; ``bend`` does to the contents what a fault would do."""

    def __init__(self, pins: Pins, port: int = 0, bend: Callable[[Batches], Batches] | None = None) -> None:
        super().__init__(f"grpc+tls://127.0.0.1:{port}", **server_options(TOKEN))
        self.pins = pins
        self.bend = bend
        self.tickets: list[PinTicket] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def do_action(self, context: Any, action: Any) -> Any:
        question = QUESTIONS[action.type].decode(action.body.to_pybytes())
        if isinstance(question, ReleaseQuestion):
            self.pins.release(question.pin)
            return [b""]
        assert isinstance(question, PinQuestion)
        return [self._pin(question.shard.part)]

    def _pin(self, name: str) -> bytes:
        if name == BAD:
            return written([["../x", 0, EMPTY_SHA256]])
        if name == NEW:
            self.pins.directory(name)
        return MANIFEST.encode(self.pins.manifest(name))

    def do_get(self, context: Any, ticket: Any) -> Any:
        asked = TICKET.decode(ticket.ticket)
        assert isinstance(asked, PinTicket)
        self.tickets.append(asked)
        if self.bend is None:
            return self.pins.stream(asked)
        batches = self.pins.chunks(asked.pin, asked.paths, asked.offset)
        return flight.GeneratorStream(CHUNK_SCHEMA, self.bend(batches))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pins(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Pins:
    monkeypatch.setattr(pins_module, "CHUNK_BYTES", CHUNK)
    return Pins(tmp_path / "pins", 3, 60.0, clock)


@pytest.fixture
def donor(pins: Pins) -> Iterator[Donor]:
    server = Donor(pins)
    yield server
    server.shutdown()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "incoming" / "sums.0#2"


def write(root: Path, tree: dict[str, bytes]) -> None:
    for path, content in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


def pin(pins: Pins, tree: dict[str, bytes], name: str = "p") -> Manifest:
    write(pins.directory(name), tree)
    return pins.seal(name, 7)


def tree_of(root: Path) -> dict[str, bytes]:
    """Everything below ``root``; an empty directory would show up as well."""
    found = {str(path.relative_to(root)): path for path in root.rglob("*")}
    return {
        name: b"directory" if path.is_dir() else path.read_bytes()
        for name, path in found.items()
        if not (path.is_dir() and any(path.iterdir()))
    }


def pinned(path: str, content: bytes = b"x") -> PinnedFile:
    return PinnedFile(path, len(content), hashlib.sha256(content).hexdigest())
