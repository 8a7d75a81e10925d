"""CSV: every line is a row or a bad row, in order, whatever its neighbours look like."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.data.rows.csv.lines import CsvFormat, parse_csv
from unbroken.data.rows.parsed import Rows
from unbroken.data.rows.text.line_scan import RUN_LINES
from unbroken.data.schema import arrow_schema, parse_schema


def schema(ddl: str) -> pa.Schema:
    return arrow_schema(parse_schema(ddl))


PAIR = schema("n int, s string")


def parse(data: bytes, of: pa.Schema = PAIR, *, header: bool = False, limit: int = 1000) -> Rows:
    return parse_csv(data, of, "in", limit, header=header)


def test_values_nulls_and_quotes() -> None:
    rows = parse(b'1,a\r\n2,\n3,""\n\n4,"x,""y"""\n"5", b \n,z')
    assert rows.bad == ()
    assert rows.table.column("n").to_pylist() == [1, 2, 3, 4, 5, None]
    assert rows.table.column("s").to_pylist() == ["a", None, "", 'x,"y"', " b ", "z"]


def test_all_types() -> None:
    of = schema("t timestamp, u timestamp_ntz, d date, b boolean, m decimal(6,2), z binary, x double")
    rows = parse(b"1700000000123,2024-01-02 03:04:05,2024-01-02,True,1.5,/wA=,1e3\n,,,,,,\n", of)
    assert rows.bad == ()
    first = rows.table.to_pylist()[0]
    assert first == {
        "t": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC),
        "u": dt.datetime(2024, 1, 2, 3, 4, 5),
        "d": dt.date(2024, 1, 2),
        "b": True,
        "m": Decimal("1.50"),
        "z": b"\xff\x00",
        "x": 1000.0,
    }
    assert set(rows.table.to_pylist()[1].values()) == {None}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"1", "Expected 2 columns, got 1"),
        (b"1,a,b", "Expected 2 columns, got 3"),
        (b"x,a", "invalid value 'x'"),
        (b"1.5,a", "invalid value '1.5'"),
        (b"99999999999,a", "invalid value"),
        (b'1,"a', "does not end on its line"),
        (b'1,x"y,"z', ""),
        (b"1,\xff", "UTF8"),
        (b"1,a\rb", "carriage return"),
        (b"1," + b"x" * 2000, "more than 1000"),
    ],
)
@pytest.mark.parametrize("padding", [0, RUN_LINES + 50])
def test_a_broken_line_is_one_bad_row_and_its_neighbours_stay(line: bytes, why: str, padding: int) -> None:
    rows = parse(b"7,ok\n" * padding + line + b"\n" + b"7,ok\n" * padding)
    assert rows.table.to_pylist() == [{"n": 7, "s": "ok"}] * 2 * padding
    (bad,) = rows.bad
    assert bad.origin == f"in:{padding + 1}" and why in bad.reason and bad.reason
    assert bad.raw == line.decode(errors="backslashreplace")


def test_too_many_digits_and_empty_required_values_are_bad() -> None:
    assert parse(b"123\n", schema("m decimal(4,2)")).table.num_rows == 0
    rows = parse(b"1,a\n,b\n", schema("n int NOT NULL, s string"))
    assert rows.table.num_rows == 1 and "must not be empty" in rows.bad[0].reason
    assert "column 't'" in parse(b"soon\n", schema("t timestamp")).bad[0].reason


def test_a_header_orders_columns_ignores_unknown_and_fills_missing_ones() -> None:
    rows = parse(b'\xef\xbb\xbfzz,"s",zz\r\n1,a,2\r\n3,b,4\r\n5,c\r\n', header=True)
    assert rows.table.to_pylist() == [{"n": None, "s": "a"}, {"n": None, "s": "b"}]
    assert [bad.origin for bad in rows.bad] == ["in:4"]


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"1,a", "none of the columns n, s"),
        (b"", "none of the columns"),
        (b"n,s,n", "twice"),
        (b"\xff,n", "cannot be read"),
        (b'n,"s', "cannot be read"),
        (b"n," * 600, "longer than 1000"),
    ],
)
def test_a_wrong_header_makes_the_file_one_bad_row(header: bytes, why: str) -> None:
    rows = parse(header + b"\n1,a\n2,b\n", header=True)
    assert rows.table.num_rows == 0
    (bad,) = rows.bad
    assert why in bad.reason and bad.origin == "in:1"


def test_an_empty_file_has_no_rows() -> None:
    for data in (b"", b"n,s", b"n,s\n", b"n,s\n\n"):
        rows = parse(data, header=True)
        assert rows.table.num_rows == 0 and rows.bad == ()


LINE = st.one_of(
    st.tuples(st.integers(-100, 100), st.sampled_from([b"a", b'"b"', b'""', b"", b'"x,""y"'])).map(
        lambda v: b"%d,%s" % v
    ),
    st.text('1,"ax\r ', max_size=8).map(str.encode),
    st.binary(max_size=6).map(lambda b: b.replace(b"\n", b",")),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINE, max_size=80))
def test_every_line_is_a_row_or_a_bad_row_as_if_it_were_alone(lines: list[bytes]) -> None:
    while lines and lines[0].startswith(b"\xef"):  # what may begin a byte-order mark is no row
        lines = lines[1:]
    rows = parse(b"\n".join(lines) + b"\n")
    filled = [line for line in lines if line.removesuffix(b"\r")]
    assert rows.table.num_rows + len(rows.bad) == len(filled)
    form = CsvFormat(PAIR, PAIR.names)
    alone = [form.read_lines([line.removesuffix(b"\r")]) for line in filled]
    assert pa.concat_tables([PAIR.empty_table(), *(table for table, _ in alone)]).to_pylist() == rows.table.to_pylist()
    wrong = [line for line, (_, bad) in zip(filled, alone, strict=True) if bad]
    assert [form.reason(line.removesuffix(b"\r")) for line in wrong] == [bad.reason for bad in rows.bad]


CELLS = st.sampled_from(
    [
        *(
            "1",
            "-1",
            "+1",
            "007",
            "0x1F",
            "0X7f",
            "0xFFFFFFFFFFFFFFFF",
            "0x",
            " 1 ",
            "\t1",
            "1.5",
            "1.",
            "5.e3",
            ".5",
            "1e400",
        ),
        *(
            "inf",
            "-Inf",
            "NaN",
            "infinity",
            "1e-400",
            "",
            '""',
            '"a"',
            '"a,b"',
            '"a""b"',
            '"a"x',
            'x"y',
            '"',
            "true",
            "True",
        ),
        *("tRue", " true", "2024-01-01", " 2024-01-01", "2024-01-01T00:00:00Z", "2024-01-01 00:00", "0000-01-01", "-5"),
        *(
            "1700000000123",
            "99999999999999999",
            "/wA=",
            "?",
            "1.234",
            "1e-9999999",
            "1e3",
            "123456789.12",
            "1.5EUR",
            "\x00",
        ),
        *("é", "9" * 5000, "127", "128", "-129", "3.5e38", "2024-01-01T99", "yesterday"),
    ]
)
RICH = [
    schema("n long, s string"),
    schema("x double, f float, n byte"),
    schema("t timestamp, d date, u timestamp_ntz"),
    schema("m decimal(10,2), b boolean"),
    schema("z binary, n int NOT NULL"),
]


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(RICH))
def test_whether_a_line_counts_does_not_depend_on_its_neighbours(data: st.DataObject, of: pa.Schema) -> None:
    cells = st.lists(CELLS, min_size=len(of), max_size=len(of) + 1)
    lines = [",".join(each).encode() for each in data.draw(st.lists(cells, min_size=1, max_size=15))]
    together = parse_csv(b"\n".join(lines), of, "in", 10**6, header=False)
    alone = [parse_csv(line, of, "in", 10**6, header=False) for line in lines]
    form = CsvFormat(of, of.names)
    apart = [form.read_lines([line]) for line in lines if line]
    together.table.validate(full=True)
    for tables in ([rows.table for rows in alone], [of.empty_table(), *(table for table, _ in apart)]):
        assert str(pa.concat_tables(tables).to_pylist()) == str(together.table.to_pylist())
    assert together.rejected == sum(rows.rejected for rows in alone) == sum(len(wrong) for _, wrong in apart)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.booleans(), st.sampled_from(RICH))
def test_any_bytes_are_rows_or_bad_rows(data: bytes, header: bool, of: pa.Schema) -> None:
    rows = parse_csv(data, of, "in", 100, header=header)
    rows.table.validate(full=True)
    assert rows.rejected == len(rows.bad) and all(bad.reason for bad in rows.bad)


@pytest.mark.parametrize(
    ("ddl", "texts"),
    [
        ("long", [b"0xFFFFFFFFFFFFFFFF", b"0x1F", b" 7\t", b"-007", b"9223372036854775807"]),
        ("byte", [b"0xFF", b"0x7f", b"-128"]),
        ("double", [b"+.5", b"5.e3", b"-Inf", b"1e400", b"1e-400", b" 1 "]),
        ("boolean", [b"TRUE", b"false"]),
        (
            "timestamp",
            [b"-5", b"2024-01-01", b"2024-01-01 03", b"2024-01-01T03:04+01", b"2024-01-01T03:04:05.123456789Z"],
        ),
        ("date", [b" 2024-02-29"]),
    ],
)
def test_unusual_values_mean_the_same_next_to_a_wrong_one(ddl: str, texts: list[bytes]) -> None:
    of = schema(f"x {ddl}, s string")
    right = b"".join(text + b",a\n" for text in texts)
    rows = parse_csv(right + b"wrong,a\n", of, "in", 1000, header=False)
    assert rows.table.equals(parse_csv(right, of, "in", 1000, header=False).table)
    assert rows.table.num_rows == len(texts) and rows.rejected == 1


def test_lines_whose_wrong_numbers_of_values_cancel_out_are_both_bad() -> None:
    rows = parse(b"7,ok\n" * 600 + b"1\n1,a,b\n" + b"7,ok\n" * 600)
    assert rows.table.num_rows == 1200 and [bad.origin for bad in rows.bad] == ["in:601", "in:602"]
