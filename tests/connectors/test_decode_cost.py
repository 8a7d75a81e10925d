"""What wrong input costs: time, memory and dead letters stay near what right input of the same size costs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from unbroken.connectors.base import BadRow, Rows
from unbroken.connectors.budget import BAD_CHARS, BAD_ROWS, RAW_CHARS
from unbroken.connectors.csvparse import parse_csv
from unbroken.connectors.deadletter import DeadLetters
from unbroken.connectors.files import Files
from unbroken.connectors.linescan import RUN_LINES
from unbroken.connectors.push import Push, PushBatch
from unbroken.connectors.rowparse import JsonFormat, parse_json_lines
from unbroken.spark.types import arrow_schema, parse_schema

LINES = 20_000
FACTOR = 5
JSON_FACTOR = 10
"""JSON lines that are refused are read singly, by Python: up to 7 times is measured where all are wrong, the rest is
for noise."""

ORDERS = arrow_schema(parse_schema("id long, at timestamp, amount double, price decimal(10,2), name string"))
PAIR = arrow_schema(parse_schema("a long, b string"))


def json_lines(at: bytes = b'"2024-01-01T00:00:00Z"', amount: bytes = b"1.5", price: bytes = b"2.25") -> bytes:
    return b"".join(
        b'{"id":%d,"at":%s,"amount":%s,"price":%s,"name":"somebody"}\n' % (i, at, amount, price) for i in range(LINES)
    )


def csv_lines(at: bytes = b"2024-01-01T00:00:00Z", amount: bytes = b"1.5", price: bytes = b"2.25") -> bytes:
    return b"".join(b"%d,%s,%s,%s,somebody\n" % (i, at, amount, price) for i in range(LINES))


def read_json(data: bytes) -> Rows:
    return parse_json_lines(data, ORDERS, "in", 10**6)


def read_csv(data: bytes) -> Rows:
    return parse_csv(data, ORDERS, "in", 10**6, header=False)


def cost_ratio(read: Callable[[bytes], Rows], wrong: bytes, right: bytes) -> float:
    """How much more the wrong text costs, per line or per byte: processor time, the best of several taken in turns."""
    best = [float("inf"), float("inf")]
    for _ in range(5):
        for i, data in enumerate((wrong, right)):
            start = time.process_time()
            read(data)
            best[i] = min(best[i], time.process_time() - start)
    return best[0] / best[1] / max(1.0, len(wrong) / len(right))


@pytest.mark.parametrize(
    "wrong",
    [
        csv_lines(amount=b"1.5EUR"),
        b"".join(b"%d,2024-01-01,%dEUR,%d.255,somebody\n" % (i, i, i) for i in range(LINES)),
        csv_lines(at=b"yesterday"),
        csv_lines(at=b"2024-01-01T99"),
        csv_lines(price=b"1e-9999999"),
        csv_lines(price=b"2.255"),
        csv_lines(amount=b'"1.5'),
        csv_lines(amount=b"1.5,EUR"),
        csv_lines(amount=b"\xff"),
        b"2024-01-01 12:00:00 INFO an ordinary line of a log file, put there by mistake\n" * LINES,
    ],
    ids=["unit", "units", "word", "hour", "exponent", "digits", "quote", "column", "bytes", "log"],
)
def test_wrong_csv_costs_little_more_than_right_csv(wrong: bytes) -> None:
    right = csv_lines()
    assert read_csv(right).table.num_rows == LINES and read_csv(wrong).rejected == LINES
    assert cost_ratio(read_csv, wrong, right) <= FACTOR


TURNS: dict[str, Callable[[int], bytes]] = {
    "value": lambda i: b"%d,2024-01-01T00:00:00Z,%dEUR,2.25,somebody" % (i, i),
    "digits": lambda i: b"%d,2024-01-01T00:00:00Z,1.5,%d.255,somebody" % (i, i),
    "column": lambda i: b"%d,2024-01-01T00:00:00Z,1.5,2.25,somebody,else" % i,
    "quoted": lambda i: b'%d,2024-01-01T00:00:00Z,"x%d",2.25,somebody' % (i, i),
    "return": lambda i: b"%d,2024-01-01T00:00:00Z,1\r%d,2.25,somebody" % (i, i),
    "blank": lambda i: b"",
    "bytes": lambda i: b"%d,2024-01-01T00:00:00Z,\xff,2.25,somebody" % i,
    "long": lambda i: b"x" * 2100,
}


@pytest.mark.parametrize("kind", TURNS)
@pytest.mark.parametrize("run", [1, 100, 1000])
def test_right_and_wrong_csv_lines_that_take_turns_cost_little_more(kind: str, run: int) -> None:
    right = csv_lines()
    lines = right.splitlines()
    mixed = [TURNS[kind](i) if i // run % 2 else line for i, line in enumerate(lines)]

    def read(data: bytes) -> Rows:
        return parse_csv(data, ORDERS, "in", 2000, header=False)

    found = read(b"\n".join(mixed))
    assert (found.table.num_rows, found.rejected) == (LINES // 2, 0 if kind == "blank" else LINES // 2)
    assert cost_ratio(read, b"\n".join(mixed), right) <= FACTOR


@pytest.mark.parametrize(
    "wrong",
    [
        json_lines(amount=b'"1.5EUR"'),
        json_lines(at=b'"yesterday"'),
        json_lines(at=b'"2024-01-01T99"'),
        json_lines(price=b"1e-9999999"),
        json_lines(amount=b"{"),
        b"{\n" * LINES,
        b"2024-01-01 12:00:00 INFO an ordinary line of a log file, put there by mistake\n" * LINES,
    ],
    ids=["unit", "word", "hour", "exponent", "brace", "braces", "log"],
)
def test_wrong_json_costs_little_more_than_right_json(wrong: bytes) -> None:
    right = json_lines()
    assert read_json(right).table.num_rows == LINES and read_json(wrong).rejected == LINES
    assert cost_ratio(read_json, wrong, right) <= JSON_FACTOR


def test_one_wrong_line_in_many_is_found_without_reading_the_others_singly(monkeypatch: pytest.MonkeyPatch) -> None:
    singly: list[bytes] = []
    plain = JsonFormat.read_lines

    def counted(self: JsonFormat, lines: list[bytes]) -> tuple[pa.Table, list[int]]:
        singly.extend(lines)
        return plain(self, lines)

    monkeypatch.setattr(JsonFormat, "read_lines", counted)
    assert read_json(json_lines().replace(b'"id":777,', b'"id":"777",')).rejected == 1
    assert 0 < len(singly) <= RUN_LINES


def test_rejected_rows_are_sampled_and_counted(tmp_path: Path) -> None:
    rows = parse_json_lines(b"{\n" * 500_000, PAIR, "p" * 200 + "/1", 10**6)
    assert (len(rows.bad), rows.rejected) == (BAD_ROWS, 500_000)
    DeadLetters(tmp_path).write("s", 1, rows.letters)
    (file,) = (each for each in tmp_path.rglob("*") if each.is_file())
    assert file.stat().st_size < 500_000
    assert f"{500_000 - BAD_ROWS} more rows were rejected" in json.loads(file.read_text().splitlines()[-1])["reason"]


def test_texts_of_bad_rows_are_bounded_singly_and_together() -> None:
    row = BadRow("x" * 10**6, "y" * 10**6, "z" * 10**6)
    assert row.chars <= RAW_CHARS + 1000
    rows = Rows(PAIR.empty_table(), (row,) * 1000)
    assert sum(each.chars for each in rows.bad) <= BAD_CHARS and rows.rejected == 1000
    joined = Rows.joined(PAIR, [rows] * 100)
    assert sum(each.chars for each in joined.bad) <= BAD_CHARS and joined.rejected == 100_000
    long = parse_json_lines((b'{"a":"' + b"x" * 50_000 + b'"}\n') * 500, PAIR, "in", 10**6)
    assert sum(each.chars for each in long.bad) <= BAD_CHARS and long.rejected == 500


WIDE = ", ".join(f"c{i} long" for i in range(500))


def test_short_lines_of_a_wide_schema_are_within_the_budget(tmp_path: Path) -> None:
    body = b"{}\n" * 1_000_000
    source = Push(WIDE)
    refusal = source.refusal(PushBatch("s", "p", 1, body))
    assert refusal is not None and refusal.status == "too-large"
    reader = source.open()
    reader.take(1, PushBatch("s", "p", 1, body))
    assert reader.read(None, 1).rejected == 1
    (tmp_path / "x").write_bytes(body)
    files = Files(tmp_path, format="json", schema=WIDE, settle_ms=0).open()
    files.poll(None, 0)
    rows = files.read(None, files.poll(None, 1000).position)
    assert (rows.rejected, rows.bad[0].origin) == (1, "x")
    assert "max_decoded_bytes" in rows.bad[0].reason


def test_limits_are_the_same_for_all_nodes() -> None:
    """What is kept depends on the input alone: reading it twice gives the same rows, bad rows and count."""
    data = b"".join(b'{"a":%s}\n' % (b"1" if i % 3 else b'"x"') for i in range(5000))
    first, second = (parse_json_lines(data, PAIR, "in", 10**6) for _ in range(2))
    assert first.table.equals(second.table) and (first.bad, first.rejected) == (second.bad, second.rejected)
    assert isinstance(first.table, pa.Table)
