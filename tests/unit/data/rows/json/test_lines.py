"""JSON lines: every line is a row or a bad row, in order, and vectorised and careful reading agree."""

from __future__ import annotations

import datetime as dt
import json
import string
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.data.rows.budget import MAX_DEPTH
from unbroken.data.rows.json.lines import JsonFormat, parse_json_lines
from unbroken.data.rows.parsed import Rows
from unbroken.data.rows.text.line_scan import RUN_LINES, Lines
from unbroken.data.rows.values.times import micros_of_text, times_from_text
from unbroken.data.schema import arrow_schema, parse_schema

LIMIT = 1_000_000
UTC = dt.UTC


def schema(ddl: str) -> pa.Schema:
    return arrow_schema(parse_schema(ddl))


EVENTS = schema("n int, l long, x double, s string, t timestamp, b boolean, d date, z binary, m decimal(10,2)")


def parse(data: bytes, ddl: str | pa.Schema = EVENTS, limit: int = LIMIT) -> Rows:
    return parse_json_lines(data, schema(ddl) if isinstance(ddl, str) else ddl, "in", limit)


def value(ddl: str, text: str) -> Any:
    """The one value that ``{"x": text}`` gives, read among enough others that the piece is vectorised first."""
    rows = parse(b'{"x":%s}\n' % text.encode(), f"x {ddl}")
    assert rows.bad == ()
    return rows.table.column("x").to_pylist()[0]


def reason(ddl: str, text: str) -> str:
    rows = parse(b'{"x":%s}\n' % text.encode(), f"x {ddl}")
    assert rows.table.num_rows == 0
    (bad,) = rows.bad
    assert bad.raw == f'{{"x":{text}}}' and bad.origin == "in:1"
    return bad.reason


def test_good_rows_have_the_schema_and_unknown_fields_are_ignored() -> None:
    rows = parse(b'{"n":1,"zz":{"a":[1,null]}}\n\n{"s":"a","t":"2024-01-02T03:04:05.5+01:00"}\r\n{"n":null}')
    assert rows.bad == () and rows.table.schema == EVENTS
    assert rows.table.column("n").to_pylist() == [1, None, None]
    assert rows.table.column("t").to_pylist()[1] == dt.datetime(2024, 1, 2, 2, 4, 5, 500_000, UTC)


@pytest.mark.parametrize(
    ("ddl", "text", "expected"),
    [
        ("double", "1", 1.0),
        ("double", "-Infinity", float("-inf")),
        ("timestamp", "1700000000123", dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)),
        ("timestamp", '"2024-01-01"', dt.datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp", '"2024-01-01T00:00:00.123456789Z"', dt.datetime(2024, 1, 1, 0, 0, 0, 123_456, UTC)),
        ("timestamp_ntz", '"2024-01-01 10:00:00"', dt.datetime(2024, 1, 1, 10)),
        ("date", '"2024-02-29"', dt.date(2024, 2, 29)),
        ("binary", '"/wA="', b"\xff\x00"),
        ("decimal(10,2)", "1.5", Decimal("1.50")),
        ("decimal(10,2)", '"1.5"', Decimal("1.50")),
        ("array<int>", "[1,null]", [1, None]),
        ("map<string,int>", '{"a":1,"b":null}', [("a", 1), ("b", None)]),
        ("map<int,array<string>>", '{"7":["x"]}', [(7, ["x"])]),
        ("struct<a:int,b:timestamp>", '{"a":1,"c":2}', {"a": 1, "b": None}),
        ("struct<a:date>", '{"a":"2024-01-02"}', {"a": dt.date(2024, 1, 2)}),
    ],
)
def test_values(ddl: str, text: str, expected: Any) -> None:
    assert value(ddl, text) == expected


@pytest.mark.parametrize(
    ("ddl", "text", "expected"),
    [
        ("int", "1.5", "field 'x' must be int32, got the number 1.5"),
        ("int", '"1"', "field 'x' must be int32, got the string"),
        ("int", "1e2", "must be int32"),
        ("int", "3000000000", "must be int32"),
        ("byte", "128", "must be int8"),
        ("int", "true", "got the boolean true"),
        ("double", '"1"', "must be double"),
        ("double", "1e999", "must be double"),
        ("string", "1", "must be string"),
        ("string", '"\\ud800"', "surrogate"),
        ("boolean", "1", "must be bool"),
        ("timestamp", '"1700000000123"', "must be a time"),
        ("timestamp", '"yesterday"', "must be a time"),
        ("timestamp", "1.5", "must be a time"),
        ("timestamp", "99999999999999999", "must be a time"),
        ("timestamp", '"0000-01-01"', "must be a time"),
        ("date", "5", "must be date32"),
        ("date", '"2024-02-30"', "must be date32"),
        ("binary", '"?"', "base64"),
        ("decimal(10,2)", "1.234", "must be decimal128"),
        ("decimal(4,2)", "123", "must be decimal128"),
        ("decimal(4,2)", '"NaN"', "must be decimal128"),
        ("array<int>", '[1,"2"]', "field 'x[1]' must be int32"),
        ("struct<a:int NOT NULL>", "{}", "field 'x.a' must not be null"),
        ("map<string,int>", "[]", "got an array"),
        ("int NOT NULL", "null", "must not be null"),
    ],
)
def test_wrong_values_are_bad_rows_that_name_the_field(ddl: str, text: str, expected: str) -> None:
    assert expected in reason(ddl, text)


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"5",
        b'"x"',
        b"[1]",
        b"{",
        b"}",
        b'{"n":1',
        b'{"n":1} {"n":2}',
        b'{"n":1} null {"n":2}',
        b'{"n":1}null',
        b'{"n":1}\r{"n":2}',
        b'{"n":1},',
        b'{"n":01}',
        b"{'n':1}",
        b'{"s":"\xff"}',
        b'{"s":"\xff","n":1} ',
        b'{"zz":' + b"[" * 100_000 + b"}",
        b'{"s":"a\tb"}',
        b"\x00",
        b"#",
    ],
)
@pytest.mark.parametrize("padding", [0, RUN_LINES + 50])
def test_a_broken_line_is_one_bad_row_and_its_neighbours_stay(line: bytes, padding: int) -> None:
    good = b'{"n":7}\n'
    rows = parse(good * padding + line + b"\n" + good * padding)
    assert rows.table.column("n").to_pylist() == [7] * 2 * padding
    (bad,) = rows.bad
    assert bad.origin == f"in:{padding + 1}"
    assert bad.reason and bad.raw == line.decode(errors="backslashreplace")[:10_000]


def test_a_long_line_is_bad_and_its_text_is_cut() -> None:
    rows = parse(b'{"n":1}\n{"s":"' + b"x" * 50_000 + b'"}\n{"n":2}\n', limit=40_000)
    assert rows.table.column("n").to_pylist() == [1, 2]
    (bad,) = rows.bad
    assert bad.origin == "in:2" and len(bad.raw) == 10_000 and "more than 40000" in bad.reason


def test_missing_required_fields_are_found_in_pieces_too() -> None:
    rows = parse(b'{"n":1}\n' * 100 + b"{}\n" + b'{"n":1}\n' * 100, "n int NOT NULL")
    assert rows.table.num_rows == 200 and [bad.origin for bad in rows.bad] == ["in:101"]


def test_times_as_numbers_and_texts_may_be_mixed() -> None:
    lines = [b'{"t":0}', b'{"t":"1970-01-01T00:00:00Z"}', b'{"t":"1970-01-01"}', b'{"t":null}'] * 50
    rows = parse(b"\n".join(lines))
    assert rows.bad == ()
    assert rows.table.column("t").cast(pa.int64()).to_pylist() == [0, 0, 0, None] * 50


def test_nothing_gives_nothing() -> None:
    for data in (b"", b"\n", b"\n\r\n", b"\xef\xbb\xbf", b"   \n\t"):
        rows = parse(data)
        assert rows.table.num_rows == 0 and rows.table.schema == EVENTS and rows.bad == ()


def test_a_byte_order_mark_is_ignored() -> None:
    assert parse(b'\xef\xbb\xbf{"n":1}').table.num_rows == 1


def test_lines_are_found() -> None:
    lines = Lines.of(b"a\r\n\r\nbc\n\nd")
    assert [lines.line(i) for i in range(len(lines))] == [b"a", b"", b"bc", b"", b"d"]
    assert len(Lines.of(b"")) == 0 and len(Lines.of(b"\n")) == 1


TEXT = st.text(string.printable + 'äß{}[]null"\\\u2028', max_size=8)
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), TEXT, st.lists(st.integers(), max_size=2)
)
GOOD = st.fixed_dictionaries(
    {},
    optional={
        "n": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
        "x": st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False)),
        "s": TEXT,
        "t": st.one_of(st.integers(-(10**12), 10**12), st.datetimes().map(dt.datetime.isoformat)),
        "b": st.booleans(),
        "extra": JUNK,
    },
)
PERHAPS = st.dictionaries(st.sampled_from([field.name for field in EVENTS]), JUNK, max_size=3)
NOISE = st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"?"))


def dumped(row: dict[str, Any], ascii_only: bool) -> bytes:
    return json.dumps(row, ensure_ascii=ascii_only).encode()


LINE = st.one_of(
    st.builds(dumped, GOOD, st.booleans()),
    st.builds(dumped, PERHAPS, st.booleans()),
    st.builds(lambda row, cut: dumped(row, True)[:cut], GOOD, st.integers(0, 20)),
    st.builds(lambda a, b: dumped(a, True) + b, GOOD, NOISE),
    NOISE,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINE, max_size=80), st.booleans())
def test_every_line_is_a_row_or_a_bad_row(lines: list[bytes], end: bool) -> None:
    rows = parse(b"\n".join(lines) + b"\n" * end)
    blank = sum(not line.strip(b" \t\r") for line in lines)
    if not lines or not lines[0].startswith(b"\xef\xbb\xbf"):
        assert rows.table.num_rows + len(rows.bad) == len(lines) - blank
    rows.table.validate(full=True)
    numbers = [int(bad.origin.removeprefix("in:")) for bad in rows.bad]
    assert numbers == sorted(set(numbers))


@settings(max_examples=300, deadline=None)
@given(st.lists(LINE, min_size=1, max_size=40))
def test_reading_at_once_equals_reading_line_by_line(lines: list[bytes]) -> None:
    together = parse(b"\n".join(lines))
    alone = [JsonFormat(EVENTS).read_lines([line]) for line in lines]
    expected = pa.concat_tables([table for table, _ in alone])
    if not lines[0].startswith(b"\xef\xbb\xbf"):
        assert str(together.table.to_pylist()) == str(expected.to_pylist())  # As text, where nan equals nan.
        assert len(together.bad) == sum(len(wrong) for _, wrong in alone)


@settings(max_examples=100, deadline=None)
@given(st.lists(GOOD, max_size=30))
def test_good_rows_are_all_kept_with_their_values(good: list[dict[str, Any]]) -> None:
    rows = parse(b"\n".join(dumped(row, True) for row in good))
    assert rows.bad == ()
    found = rows.table.to_pylist()
    for row, got in zip(good, found, strict=True):
        for name in ("n", "s", "b", "x"):
            assert got[name] == row.get(name)


TIMES = st.builds(
    "{:04}-{:02}-{:02}{}{:02}:{:02}:{:02}{}{}".format,
    st.sampled_from([0, 1, 1969, 1970, 2024, 9999]),
    st.integers(0, 13),
    st.integers(0, 32),
    st.sampled_from("T t"),
    st.integers(0, 25),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from(["", ".1", ".123456", ".1234567", ".123456789", ".1234567890", "."]),
    st.sampled_from(["", "Z", "z", "+01:30", "-0130", "+23:59", "-24:00", "+00:60", "+01", "+1", "-01:", " Z"]),
)


@settings(max_examples=500, deadline=None)
@given(TIMES)
def test_one_time_is_read_as_a_column_of_them(text: str) -> None:
    kind = pa.timestamp("us", "UTC")
    try:
        expected = times_from_text(pa.array([text]), kind, digits_are_millis=False).cast(pa.int64())[0].as_py()
    except ValueError:
        with pytest.raises(ValueError):
            micros_of_text(text)
    else:
        assert micros_of_text(text) == expected


@pytest.mark.parametrize(
    "ddl", ["x int", "x double", "x string", "x decimal(10,2)", "x timestamp", "x map<string,int>"]
)
@pytest.mark.parametrize("number", ["1e1000000000000000000000", "-1e-1000000000000000000000", "9" * 5000])
def test_numbers_without_bounds_are_bad_rows_or_are_ignored(ddl: str, number: str) -> None:
    rows = parse(b'{"x":%s}' % number.encode(), ddl)
    tiny_double = ddl == "x double" and number.startswith("-1e-")
    assert (rows.table.num_rows, rows.rejected) == ((1, 0) if tiny_double else (0, 1))
    rows = parse(b'{"zz":[%s]}\n{bad}\n{"zz":{"y":%s}}' % (number.encode(), number.encode()), ddl)
    assert [bad.origin for bad in rows.bad] == ["in:2"] and rows.table.num_rows == 2


@pytest.mark.parametrize("ddl", ["n long", "s string", "m map<string,int>"])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"k":', b"}")])
def test_nesting_is_bounded_and_the_same_whatever_stands_next_to_it(ddl: str, brackets: tuple[bytes, bytes]) -> None:
    name = ddl[0].encode()
    for depth in (10, MAX_DEPTH - 1, MAX_DEPTH, 900, 980, 985, 990, 999, 5000, 100_000):
        value = brackets[0] * depth + b"1" + brackets[1] * depth
        ignored, wrong = b'{"zz":' + value + b"}", b'{"' + name + b'":' + value + b"}"
        fits = depth < MAX_DEPTH
        for data in (ignored, ignored + b"\n{bad}"):
            assert parse(data, ddl).table.num_rows == fits, depth
        rows = parse(wrong + b"\n{}", ddl)
        assert rows.table.num_rows == 1 and len(rows.bad[0].reason) < 300
        assert ("nested too deeply" in rows.bad[0].reason) != fits


def test_brackets_within_strings_do_not_count_as_nesting() -> None:
    text = '[{\\"' * 1000
    rows = parse(json.dumps({"s": text}).encode() + b"\n{bad}", "s string")
    assert rows.table.column("s").to_pylist() == [text]


def test_an_unforeseen_error_of_one_row_is_one_bad_row(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = JsonFormat.read_lines

    def failing(self: JsonFormat, lines: list[bytes]) -> tuple[pa.Table, list[int]]:
        if any(b"poison" in line for line in lines):
            raise KeyError("a defect")
        return plain(self, lines)

    monkeypatch.setattr(JsonFormat, "read_lines", failing)
    monkeypatch.setattr(JsonFormat, "read_piece", lambda self, piece, rows: [][0])
    rows = parse(b'{"n":1}\n' * 700 + b'{"s":"poison"}\n' + b'{"n":1}\n' * 700)
    assert rows.table.num_rows == 1400 and [bad.origin for bad in rows.bad] == ["in:701"]


def test_an_error_of_the_machine_rejects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: JsonFormat, piece: bytes, rows: int) -> pa.Table:
        raise MemoryError

    monkeypatch.setattr(JsonFormat, "read_piece", failing)
    with pytest.raises(MemoryError):
        parse(b'{"n":1}')


ATOMS = [
    *("1", "-0.0", "1.5", "1e5", "1e-9999999", "1e400", "NaN", "-Infinity", "9" * 5000, "3.5e38", "01", "1.", "null"),
    *("true", '"x"', '"1.5"', '"\\ud800"', '"2024-01-01"', '"0000-12-31T23:30:00-01:00"', '"/wA="', '"a\\"m\\":1"'),
    *("{}", "[1.5,null]", '{"m":1.5}', "[" * 250 + "]" * 250),
]
NAMES = ["n", "x", "f", "s", "t", "d", "z", "m", "a", "q", "zz", "\\u006d", 'a\\"m']
STRUCTURED = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(ATOMS)), max_size=3).map(
    lambda items: ("{" + ",".join(f'"{name}":{value}' for name, value in items) + "}").encode()
)
MUTATED = st.builds(lambda line, cut, noise: line[:cut] + noise + line[cut:], STRUCTURED, st.integers(0, 30), NOISE)
RICH = [
    schema("n int, x double, f float, s string, t timestamp, d date, z binary, m decimal(10,2)"),
    schema("m decimal(38,18), q struct<m:decimal(5,1),n:int>, a array<double>"),
    schema("m map<string,decimal(5,2)>, s string NOT NULL"),
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(STRUCTURED, STRUCTURED, MUTATED), min_size=1, max_size=20), st.sampled_from(RICH))
def test_whether_a_line_counts_does_not_depend_on_its_neighbours(lines: list[bytes], of: pa.Schema) -> None:
    together = parse(b"\n".join(lines), of)
    alone = [parse(line, of) for line in lines]
    apart = [JsonFormat(of).read_lines([line]) for line in lines]
    together.table.validate(full=True)
    for tables in ([rows.table for rows in alone], [table for table, _ in apart]):
        assert str(pa.concat_tables(tables).to_pylist()) == str(together.table.to_pylist())
    assert together.rejected == sum(rows.rejected for rows in alone)
