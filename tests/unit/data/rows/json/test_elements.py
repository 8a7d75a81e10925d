"""Elements of arrays and maps count with all fields of their type, before anything is decoded."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from unbroken.connectors.files.source import Files
from unbroken.connectors.kafka.rows import parse_values, why_wrong
from unbroken.connectors.push.source import Push, PushBatch
from unbroken.data.rows.budget import row_bytes
from unbroken.data.rows.json.elements import elements
from unbroken.data.rows.json.lines import JsonFormat, parse_json_lines
from unbroken.data.schema import arrow_schema, parse_schema

FIELDS = ", ".join(f"c{i}: bigint" for i in range(100))
WIDE = f"a array<struct<{FIELDS}>>"


def schema(ddl: str) -> pa.Schema:
    return arrow_schema(parse_schema(ddl))


def many(element: str, size: int = 900_000) -> bytes:
    return b'{"a":[' + b",".join([element.encode()] * (size // (len(element) + 1))) + b"]}"


@pytest.mark.parametrize("element", ["{}", "null", " {}", "\tnull"])
def test_short_elements_of_a_wide_type_are_refused_by_push_and_files(tmp_path: Path, element: str) -> None:
    body = many(element)
    source = Push(WIDE)
    refusal = source.refusal(PushBatch("s", "p", 1, body))
    assert refusal is not None and refusal.status == "too-large" and "max_decoded_bytes" in refusal.reason
    reader = source.open()
    reader.take(1, PushBatch("s", "p", 1, body))
    assert reader.read(None, 1).rejected == 1
    (tmp_path / "x").write_bytes(body * 2)
    files = Files(tmp_path, format="json", schema=WIDE, max_decoded_bytes=128_000_000).open()
    rows = files.read(None, {"ctime_ns": 1, "name": "x", "count": 1, "files": [["x", 2 * len(body)]]})
    assert rows.rejected == 1 and "max_decoded_bytes" in rows.bad[0].reason


def test_a_record_with_too_many_elements_is_set_aside_alone() -> None:
    form = JsonFormat(schema(WIDE))
    values = pa.array([b'{"a":[{"c1":1}]}', many("{}"), b"{", b'{"a":[]}', many("null")], pa.binary())
    table, wrong = parse_values(values, form)
    assert wrong.tolist() == [1, 2, 4]
    assert table.column("a").combine_chunks().flatten().field("c1").to_pylist() == [1]
    second, third = (values[i].as_py() for i in (1, 2))
    assert "elements" in why_wrong(second, form) and "elements" not in why_wrong(third, form)


def test_full_elements_are_taken() -> None:
    """Fields of elements, and structures that are no elements, do not count as elements."""
    full = {f"c{i}": None if i % 2 else i for i in range(100)}
    ddl = f"{WIDE}, s struct<{FIELDS}>, t string"
    line = json.dumps({"a": [full] * 5, "s": {"c1": 1}, "t": "a, b, c"}).encode() + b"\n"
    source = Push(ddl)
    assert source.refusal(PushBatch("s", "p", 1, line * 2000)) is None
    assert source.refusal(PushBatch("s", "p", 1, b'{"s": {"c1": null}, "t": null}\n' * 10_000)) is None
    assert parse_json_lines(line * 3, schema(ddl), "x", 10**6).table.num_rows == 3


def test_flat_schemas_count_nothing() -> None:
    found = elements(schema("n long, s string, t struct<x: int, y: struct<z: string>>"))
    assert found.bytes_of(b'{"n":[{},{},null]}') == 0
    assert found.bytes_of_each(pa.array([b"[,,,"], pa.binary())).tolist() == [0]


NESTED = (
    "a array<struct<x: bigint, y: string, z: array<struct<p: double, q: bigint>>>>, m map<string, struct<u: bigint>>, "
    "l array<array<bigint>>, k map<string, bigint>"
)


def value(dice: random.Random, kind: str) -> Any:
    count = dice.choice([0, 1, 2, 5])
    if dice.random() < 0.2:
        return None
    if kind == "a":
        return [dice.choice([None, {}, {"x": 1}, {"z": [None, {}, {"p": 1.5}] * count}]) for _ in range(count)]
    if kind == "m":
        return {str(i): dice.choice([None, {}, {"u": i}]) for i in range(count)}
    if kind == "l":
        return [dice.choice([None, [], [1] * count]) for _ in range(count)]
    return {str(i): dice.choice([None, i]) for i in range(count)}


@pytest.mark.parametrize("columns", ["amlk", "a", "l", "al", "m", "k"])
def test_the_bound_is_not_below_what_is_decoded(columns: str) -> None:
    whole = schema(NESTED)
    part = pa.schema([field for field in whole if field.name in columns])
    dice = random.Random(7)
    for separators in ((",", ":"), (", ", ": "), (" , ", " : ")):
        rows = [{name: value(dice, name) for name in columns} for _ in range(100)]
        lines = [json.dumps(row, separators=separators).encode() for row in rows]
        text = b"\n".join(lines)
        found = parse_json_lines(text, part, "x", 10**6)
        assert found.rejected == 0
        bound = len(text) + len(rows) * row_bytes(part) + elements(part).bytes_of(text)
        assert bound >= found.table.combine_chunks().nbytes
        each = elements(part).bytes_of_each(pa.array(lines, pa.binary()))
        assert each.min() >= 0 and int(each.sum()) == elements(part).bytes_of(text)
