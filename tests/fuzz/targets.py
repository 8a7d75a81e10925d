"""What is fuzzed: every function that reads bytes which a producer, a peer, a disk or an operator gave.

A target either stands every input, or refuses it with the exceptions that it documents.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from fuzz.flows import UNCHANGED, handle_message, handle_nonsense
from kit.support import TOKEN
from unbroken.connectors.files.source import Files
from unbroken.connectors.kafka.rows import parse_values
from unbroken.connectors.push.source import Push, PushBatch
from unbroken.coordination.documents import LAYOUT
from unbroken.data.checksum import crc32c, sealed, unsealed
from unbroken.data.rows.csv.lines import parse_csv
from unbroken.data.rows.json.lines import JsonFormat, parse_json_lines
from unbroken.data.rows.parquet import decoded_estimate
from unbroken.data.rows.parsed import Rows
from unbroken.data.schema import arrow_schema, parse_schema
from unbroken.data.unit_store import HEADER, HEADER_KEY, decode_unit, encode_unit
from unbroken.errors import FlowError, UnbrokenError
from unbroken.flow.network.build import load_network
from unbroken.flow.settings import load_settings
from unbroken.node.ingress.base import BASE, FILE_NAME, IngressBase
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.ingress.records import entry_head
from unbroken.node.policies.leader.records import OrderLogMark, OrderRecord
from unbroken.node.policies.leader.seal import RecordSeal
from unbroken.protocol.ingress.log import Append, AppendAck, Entry
from unbroken.protocol.messages import Ack, Delivered, DigestNote, Ping, Progress, Subscribe
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken.security.sealing import Seal
from unbroken.transport.codec import MESSAGE

SCHEMA = (
    "user string, n long, small short, price decimal(10,2), at timestamp, day date, ok boolean, x double, "
    "raw binary, tags array<string>, inner struct<a: int, b: array<decimal(5,1)>>, counts map<string, bigint>"
)
FLAT = "user string, n long, price decimal(10,2), at timestamp, day date, ok boolean, x double"

ROWS: list[dict[str, Any]] = [
    {
        "user": "ann",
        "n": 1,
        "small": 2,
        "price": 1.25,
        "at": "2026-03-01T12:00:00Z",
        "day": "2026-03-01",
        "ok": True,
        "x": 1e-3,
        "raw": "aGk=",
        "tags": ["a", None],
        "inner": {"a": 1, "b": [1.5]},
        "counts": {"k": 3},
    },
    {"user": "bob", "n": -(2**63), "price": "12345678.90", "at": 1_772_366_400_000, "x": 1e300},
    {"user": None, "tags": [], "inner": None, "counts": {}},
]


@dataclass(frozen=True)
class Target:
    """Something that reads bytes; ``run`` raises one of ``refusals`` or returns, and asserts what must hold."""

    name: str
    seeds: tuple[bytes, ...]
    run: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = ()
    patterns: tuple[bytes, ...] = field(default=())
    """Pieces that are repeated to see how the cost grows with the size."""
    cost: int = 1
    """How many times as long an input takes as those of decoders do; a campaign makes as many times fewer of them."""


def _schema(text: str) -> pa.Schema:
    return arrow_schema(parse_schema(text))


def _whole(rows: Rows) -> None:
    rows.table.validate(full=True)


def _json(data: bytes) -> None:
    rows = parse_json_lines(data, _schema(SCHEMA), "fuzz", 1_000_000)
    _whole(rows)


def _csv(data: bytes) -> None:
    _whole(parse_csv(data, _schema(FLAT), "fuzz", 1_000_000, header=True))


def _kafka(data: bytes) -> None:
    """Values of one poll: a record decides nothing about its neighbours."""
    values = [piece for piece in data.split(b"\x1e") if piece]
    if values:
        table, wrong = parse_values(pa.array(values, pa.binary()), JsonFormat(_schema(SCHEMA)))
        assert table.num_rows + len(wrong) == len(values)
        table.validate(full=True)


@cache
def _push() -> Push:
    return Push(SCHEMA)


def _arrow(data: bytes) -> None:
    """What is not refused at the door can be read later."""
    batch = PushBatch("events", "p", 1, data, "arrow")
    if _push().refusal(batch) is None:
        reader = _push().open()
        reader.take(1, batch, 0)
        cut = reader.poll(None, 1)
        _whole(reader.read(None, cut.position))


def _batch(data: bytes) -> None:
    PushBatch.from_bytes(data)


@cache
def _directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="unbroken-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))


def _parquet(data: bytes) -> Rows:
    """A file of this content, as a pulse names it."""
    place = _directory() / f"parquet-{os.getpid()}"
    place.mkdir(exist_ok=True)
    (place / "a.parquet").write_bytes(data)
    reader = Files(place, format="parquet", schema=SCHEMA).open()
    decoded_estimate(place / "a.parquet", _schema(SCHEMA))
    rows = reader.read(None, {"ctime_ns": 1, "name": "a.parquet", "count": 1, "files": [["a.parquet", len(data)]]})
    _whole(rows)
    return rows


def _unit(data: bytes) -> None:
    _, table = decode_unit(data)
    table.validate(full=True)


def _log(data: bytes) -> None:
    place = _directory() / f"log-{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / _log_file()[0]).write_bytes(data)
    log = IngressLogFile(place)
    entries = log.read()
    log.close()
    assert [entry.index for entry in entries] == list(range(1, len(entries) + 1))


# --- behind checksums and codes: inputs are changed first and sealed then, or none would get that far ----------


def _log_inside(data: bytes) -> None:
    """Entries whose heads and bodies are anything, with lengths and checksums that are right."""
    _log(b"".join(_sealed_entry(*piece.partition(b"\n")[::2]) for piece in data.split(b"\x1e")))


def _sealed_entry(head: bytes, body: bytes) -> bytes:
    lengths = struct.pack(">II", len(head), len(body))
    sums = (crc32c(lengths), crc32c(lengths, head, body))
    first, last = (struct.pack(">I", value) for value in sums)
    return lengths + first + head + body + last


def _unit_inside(data: bytes) -> None:
    """Any header, in a unit whose checksums are right."""
    _unit(_sealed_unit(_stream_file({HEADER_KEY: data})))


def _sealed_unit(image: bytes) -> bytes:
    prefix = struct.pack(">8sQI40s", bytes(encode_unit(_header(), _table()))[:8], len(image), crc32c(image), b"")
    return prefix + struct.pack(">I", crc32c(prefix)) + image


def _stream_file(metadata: dict[bytes, bytes]) -> bytes:
    table = _table().replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _document_inside(data: bytes) -> None:
    sealed_for_here = _seal().seal(DOCUMENT_PATH, data)
    layout = LAYOUT.decode(_seal().unseal(DOCUMENT_PATH, sealed_for_here))
    assert LAYOUT.decode(LAYOUT.encode(layout)) == layout


def _file_inside(data: bytes) -> None:
    place = _directory() / f"base-{os.getpid()}"
    place.mkdir(exist_ok=True)
    (place / FILE_NAME).write_bytes(sealed(data))
    IngressBase.read(place)


def _wire(data: bytes) -> None:
    message = MESSAGE.decode(data)
    assert MESSAGE.decode(MESSAGE.encode(message)) == message or "nan" in repr(message)


def _order(data: bytes) -> None:
    OrderRecord.from_bytes(data)
    found = _record_seal().open(data)
    assert found is None or _record_seal().seal(found) == data


@cache
def _record_seal() -> RecordSeal:
    return RecordSeal(TOKEN, "orders-1.seg.1", STREAM.consumer)


@cache
def _seal() -> Seal:
    return Seal(TOKEN)


def _document(data: bytes) -> None:
    """Only what was sealed for this place is read."""
    assert _seal().unseal(DOCUMENT_PATH, data) == DOCUMENT


def _file(data: bytes) -> None:
    assert unsealed(Path("identity.json"), data, "Remove it.") == DOCUMENT


def _network(data: bytes) -> None:
    load_network(_directory() / "network.yaml", data.decode(errors="replace"))


def _settings(data: bytes) -> None:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(values, dict):
        load_settings("flow.py", values)


# --- seeds: small, right inputs of every kind --------------------------------------------------------------

STREAM = StreamId(ShardId("src", 0), ShardId("seg", 1))
REPLICA = ReplicaId(ShardId("seg", 1), 0)
NETWORK = """
name: clicks
settings: {nodes: 2, pulse_min: 300ms}
sources:
  clicks: {push: {schema: "user string, url string, ms long, at timestamp"}}
operators:
  slow: {filter: {where: "ms > 100"}, input: clicks}
  per_user: {count: {by: user}, input: slow, replicas: 2}
sinks:
  seen: {input: per_user, client: {}}
"""


def _lines() -> bytes:
    return b"\n".join(json.dumps(row).encode() for row in ROWS) + b"\n"


def _table() -> pa.Table:
    plain = {
        "user": ["ann", None],
        "n": [1, 2],
        "price": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
        "at": pa.array([1_772_366_400_000_000, None], pa.timestamp("us", tz="UTC")),
        "day": pa.array([20_000, None], pa.date32()),
        "x": [0.5, None],
        "tags": pa.array([["a"], None], pa.list_(pa.string())),
    }
    return pa.table(plain)


def _stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _parquet_file(**options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(_table(), sink, **options)
    return sink.getvalue()


def _header() -> UnitHeader:
    return UnitHeader(STREAM, 7, 7, 1_234, Digest(2, -5, (0.5,)), 99, True, False)


@cache
def _log_file() -> tuple[str, bytes]:
    """The name and the content of the one segment of a small log."""
    place = Path(tempfile.mkdtemp(prefix="unbroken-fuzz-"))
    try:
        log = IngressLogFile(place)
        for index in range(1, 4):
            log.append(Entry(index, 1, f"body {index}".encode() * index, index, False))
        log.close()
        (path,) = place.glob("*.log")
        return path.name, path.read_bytes()
    finally:
        shutil.rmtree(place)


_MESSAGES = (
    Subscribe(STREAM, "client-1", 3),
    Ack(STREAM, "client-1", 3),
    DigestNote(REPLICA, STREAM, 7, Digest(1, 2, (0.5,))),
    Delivered(STREAM, 4),
    Progress(REPLICA, 9),
    Ping(5),
    Append(2, Entry(5, 1, b"line\nline\n", 3, True), 4),
    AppendAck(3, 4),
)


def _arrow_seeds() -> tuple[bytes, ...]:
    table = _table()
    return (_stream(table), _stream(table, "zstd"), _stream(table.slice(0, 0)), _stream(pa.table({"n": [1]})))


def _parquet_seeds() -> tuple[bytes, ...]:
    return (_parquet_file(), _parquet_file(compression="zstd"), _parquet_file(use_dictionary=False))


CSV_SEEDS = (
    b"user,n,price,at,day,ok,x\nann,1,1.25,2026-03-01T12:00:00Z,2026-03-01,true,0.5\nbob,2,,,,,\n",
    b'user,n,price\n"a ""b""",1,1.5EUR\n',
)
ORDER_SEEDS = (
    b'{"node":"a","writer":"w","term":1,"mark":[0,1,"a",0,0]}',
    _record_seal().seal(OrderRecord("a", "w", OrderLogMark(), 1)),
)
SETTINGS_SEEDS = (b'{"nodes": 3, "pulse_min": "300ms", "claim_bytes": "1GB", "bucket_origin": "2026-03-01T12:00:00Z"}',)
DOCUMENT = b'{"version": 7, "nodes": {"a": "d1"}}'
DOCUMENT_PATH = "/unbroken/clicks/layout"
_NETWORK_SEEDS = (NETWORK.encode(), yaml.safe_dump(yaml.safe_load(NETWORK)).encode())
_WIRE_SEEDS = tuple(MESSAGE.encode(message) for message in _MESSAGES)
_PUSH_SEEDS = (PushBatch("events", "p", 1, _lines()).to_bytes(),)


def _log_seed(*entries: Entry) -> bytes:
    """Heads and bodies of entries as they are written, without lengths and checksums."""
    return b"\x1e".join(entry_head(entry) + b"\n" + entry.body for entry in entries)


LOG_SEEDS = (
    _log_seed(Entry(1, 1, b"body 1", 1), Entry(2, 1, b"body 2", 2), Entry(3, 1, b"", 3, final=True)),
    _log_seed(Entry(1, 2, b"x", 3, final=True)),
)


def _layout() -> bytes:
    replicas = [ReplicaId(ShardId("seg", shard), number) for shard in (0, 1) for number in (0, 1)]
    placement = {replica: "ab"[replica.index] for replica in replicas}
    layout = Layout(7, {"a": "d1", "b": "d2"}, placement, {replica.shard: 2 for replica in replicas}, run="r")
    return LAYOUT.encode(layout)


def _base() -> IngressBase:
    return IngressBase(9, 3, {"events": {"file": "a"}}, 5, {"events": (4, 5)}, {"events": (("p", 1),)}, 3, 1)


def _kafka_seeds() -> tuple[bytes, ...]:
    return (b"\x1e".join(json.dumps(row).encode() for row in ROWS), b'{"n":1}\x1e{"n":\x1e{"n":2}')


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("json", (_lines(), b'{"n": 1}\n'), _json, (), (b"{\n", b'{"n":1}\n', b'{"price":1e5}\n', b"[", b'"')),
        Target("csv", CSV_SEEDS, _csv, (), (b"x,\n", b'"\n', b"a,1,1.5EUR,,,,\n", b'"', b",", b'"a",1,1.5EUR\ne\n')),
        Target("kafka", _kafka_seeds(), _kafka, (), (b"{\x1e", b'{"n":1}\x1e')),
        Target("arrow", _arrow_seeds(), _arrow),
        Target("push-batch", _PUSH_SEEDS, _batch, (UnbrokenError, ValueError)),
        Target("parquet", _parquet_seeds(), _parquet),
        Target("unit", (bytes(encode_unit(_header(), _table())),), _unit, (UnbrokenError,)),
        Target("log", (_log_file()[1],), _log, (UnbrokenError,)),
        Target("unit-inside", (HEADER.encode(_header()),), _unit_inside, (UnbrokenError,), (b"unit-header/1 \x91",)),
        Target("log-inside", LOG_SEEDS, _log_inside, (UnbrokenError,), (b"entry/1 ", b"\n\x1e")),
        Target("document-inside", (_layout(),), _document_inside, (UnbrokenError,), (b"layout/1 [",)),
        Target("file-inside", (BASE.encode(_base()),), _file_inside, (UnbrokenError,), (b"[",)),
        Target("wire", _WIRE_SEEDS, _wire, (UnbrokenError,), (b"message/1 \x92\xa4ping\x01", b"message/1 \x91")),
        Target("message", (UNCHANGED,), handle_message, (UnbrokenError,), cost=5),
        Target("nonsense", (b"nonsense",), handle_nonsense, cost=40),
        Target("order", ORDER_SEEDS, _order, (), (b"[", b'order-record/1 {"mark":{')),
        Target("document", (_seal().seal(DOCUMENT_PATH, DOCUMENT),), _document, (UnbrokenError,)),
        Target("file", (sealed(DOCUMENT),), _file, (UnbrokenError,)),
        Target("network", _NETWORK_SEEDS, _network, (FlowError,), (b"[", b"a: ", b"&a ")),
        Target("settings", SETTINGS_SEEDS, _settings, (FlowError,)),
    )
}
