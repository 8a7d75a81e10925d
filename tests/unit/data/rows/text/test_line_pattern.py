"""The pattern of a schema calls no line wrong that is right, and nearly all that are wrong."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.data.rows.csv import pattern as csv_pattern
from unbroken.data.rows.csv.lines import CsvFormat, parse_csv
from unbroken.data.rows.json import pattern as json_pattern
from unbroken.data.rows.json.lines import JsonFormat, parse_json_lines
from unbroken.data.rows.text import line_pattern
from unbroken.data.rows.text.plausibility import up_to
from unbroken.data.schema import arrow_schema, parse_schema


def schema(ddl: str) -> pa.Schema:
    return arrow_schema(parse_schema(ddl))


FLAT = schema("n int, l long, x double, s string, t timestamp, b boolean, d date, z binary, m decimal(10,2)")
NESTED = schema("n int, q struct<a:int,n:int>, v array<array<int>>, w array<struct<a:int>>, `n o` int, ö string")


def sifted(line: bytes, of: pa.Schema = FLAT) -> str:
    found = json_pattern.JsonPattern(of).sift(pa.array([line], pa.large_binary()))
    return "likely" if found.likely[0] else "odd" if found.odd[0] else "wrong"


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        ' { "n" : 1 , "zz" : { "a" : [ 1 , "]" ] } } \r\n',
        '{"n":-2147483648,"l":9223372036854775807,"x":-1.5e308,"s":"\\ud83d\\ude00\\n","b":true}',
        '{"t":"2024-02-29T23:59:59.123456789+14:00","d":"2000-02-29","z":"/wA=","m":-12345678.10}',
        '{"t":-62135596800000}',
        '{"t":"0000-12-31T23:30:00-01:00"}',
        '{"t":"2024\\u002d01-01","m":"1\\u002E5","x":NaN}',
        '{"m":"+.5"}',
        '{"m":1e-1}',
        '{"m":"00012345678.000"}',
        '{"x":0e999}',
        '{"zz":NaN,"":-Infinity,"n2":"\\ud800","nn":1}',
        '{"n":null,"l":null,"x":null,"s":null,"t":null,"b":null,"d":null,"z":null,"m":null}',
    ],
)
def test_right_lines_are_likely(line: str) -> None:
    assert JsonFormat(FLAT).read_lines([line.encode()])[1] == []
    assert sifted(line.encode()) == "likely"


@pytest.mark.parametrize(
    "line",
    [
        '{"n":"x","n":1}',
        '{"n":"x","\\u006e":1}',
        '{"n":[],"l":1.5,"l":1,"n":2}',
        '{"n":"x","zz":[[[[[[[[[[1]]]]]]]]]],"n":1}',
        '{"zz":[[[[[[[[[[1]]]]]]]]]]}',
    ],
)
def test_lines_that_a_pattern_cannot_decide_are_read_singly(line: str) -> None:
    assert JsonFormat(FLAT).read_lines([line.encode()])[1] == []
    assert sifted(line.encode()) == "odd"


@pytest.mark.parametrize(
    "line",
    [
        b'{"q":{"a":1,"zz":[[[[[[[1]]]]]]]},"w":[{"zz":{"":[[[[[]]]]]}}],"v":[[1,null],null]}',
        '{"n o":1,"ö":"ö","ö2":2,"ó":3}'.encode(),
    ],
)
def test_nested_values_and_other_names_may_be_right(line: bytes) -> None:
    assert JsonFormat(NESTED).read_lines([line])[1] == []
    assert sifted(line, NESTED) != "wrong"


@pytest.mark.parametrize(
    "line",
    [
        b'{"n":2147483648}',
        b'{"l":9223372036854775808}',
        b'{"n":"1"}',
        b'{"n":1,"n":"x"}',
        b'{"n":1,"n":1.5,"s":"\\n"}',
        b'{"x":1e309}',
        b'{"x":1.5EUR}',
        b'{"x":01}',
        b'{"s":"\\ud800"}',
        b'{"s":"\xff"}',
        b'{"s":"\xed\xa0\x80"}',
        b'{"s":"a\tb"}',
        b'{"t":"2023-02-29"}',
        b'{"t":"1700000000123"}',
        b'{"t":300000000000000}',
        b'{"m":1.255}',
        b'{"m":""}',
        b'{"m":123456789}',
        b'{"n":[[[[[[[[[[1]]]]]]]]]]}',
        b'{"n":1',
        b'{"n":1, ',
        b'{"n":1,}',
        b'{"n":1 "l":2}',
        b'{"n":1}{"n":2}',
        b'{"n":1} null',
        b"{n:1}",
        b"5",
    ],
)
def test_wrong_lines_are_seen_without_being_read(line: bytes) -> None:
    assert JsonFormat(FLAT).read_lines([line])[1] == [0]
    assert sifted(line) == "wrong"


PARTS = [
    *(
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"n"',
        '"n":',
        '"s":',
        '"t":',
        '"m":',
        '"x":',
        '"zz":',
        '"\\u006e":',
        " ",
        "\t",
        "\r",
    ),
    *(
        "1",
        "-0",
        "1.5",
        "1e400",
        "1e5",
        "null",
        "true",
        "NaN",
        '"x"',
        '"\\ud800"',
        '"2024-02-30"',
        '"2024-02-29"',
        "\x00",
    ),
    *("é", '"é"', '"1.50"', '"\\', '"1\\u002e5"', "3000000000", "9223372036854775808", '"n":1', '"n":"x"', '"m":1.255'),
]
LINES = st.one_of(
    st.lists(st.sampled_from(PARTS), max_size=8).map("".join),
    st.lists(st.sampled_from(PARTS), max_size=6).map(lambda parts: "{" + "".join(parts) + "}"),
    st.lists(st.tuples(st.sampled_from(PARTS), st.sampled_from(PARTS)), max_size=4).map(
        lambda pairs: "{" + ",".join(a.rstrip(":") + ":" + b for a, b in pairs) + "}"
    ),
    st.dictionaries(st.sampled_from(["n", "s", "t", "m", "zz"]), st.sampled_from([1, "x", 1.5, None, [[1]]])).map(
        json.dumps
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=20))
def test_no_right_object_is_called_wrong(lines: list[str]) -> None:
    data = [line.encode() for line in lines if line.strip(" \t\r")]
    form = JsonFormat(FLAT)
    found = json_pattern.JsonPattern(FLAT).sift(pa.array(data, pa.large_binary()))
    for line, kept in zip(data, found.likely | found.odd, strict=True):
        assert kept or form.read_lines([line])[1] == [0], line
    with pytest.MonkeyPatch.context() as patch:
        text = b"\n".join(data)
        patch.setattr(line_pattern.LinePattern, "pays", lambda self, lines: True)
        sorted_first = parse_json_lines(text, FLAT, "in", 10**6)
        patch.setattr(line_pattern.LinePattern, "pays", lambda self, lines: False)
        singly = parse_json_lines(text, FLAT, "in", 10**6)
    assert str(sorted_first.table.to_pylist()) == str(singly.table.to_pylist())
    assert sorted_first.bad == singly.bad


CELLS = [
    *(
        "1",
        "-129",
        "0x7F",
        "+1",
        " 1\t",
        "1.",
        ".5e3",
        "inf",
        "true",
        "TRUE",
        "tRUE",
        "2024-02-29",
        "2023-02-29",
        "x",
        "",
    ),
    *(
        '"1"',
        '""',
        '"1"0',
        '" 1"',
        '"x""y"',
        '"a,b"',
        '"',
        'x"',
        "é",
        "\x00",
        "1.25",
        "1.255",
        "1e-2",
        "1e-300",
        "/wA=",
        "?",
    ),
    *("1700000000123", "300000000000000", "0000-12-31T23:30:00-01:00", "2024-01-01T00:00:00Z", "9" * 30, "\r"),
]
TABLES = [
    schema("n byte, x double, s string"),
    schema("t timestamp, d date, m decimal(10,2)"),
    schema("z binary, b boolean NOT NULL, l long"),
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(CELLS), min_size=2, max_size=4), min_size=1, max_size=15), st.sampled_from(TABLES)
)
def test_no_right_record_is_called_wrong(records: list[list[str]], of: pa.Schema) -> None:
    data = [",".join(cells).encode() for cells in records]
    form = CsvFormat(of, of.names)
    found = csv_pattern.CsvPattern(of, of.names).sift(pa.array([line + b"\n" for line in data], pa.large_binary()))
    for line, kept in zip(data, found.likely | found.odd, strict=True):
        assert kept or form.read_lines([line.removesuffix(b"\r")])[1] == [0], line
    with pytest.MonkeyPatch.context() as patch:
        text = b"\n".join(data)
        patch.setattr(line_pattern.LinePattern, "pays", lambda self, lines: True)
        sorted_first = parse_csv(text, of, "in", 10**6, header=False)
        patch.setattr(line_pattern.LinePattern, "pays", lambda self, lines: False)
        singly = parse_csv(text, of, "in", 10**6, header=False)
    assert str(sorted_first.table.to_pylist()) == str(singly.table.to_pylist())
    assert sorted_first.bad == singly.bad


def test_odd_lines_keep_their_places() -> None:
    lines = [b'{"n":%d}' % i if i % 3 else b'{"n":"x","n":%d}' % i if i % 2 else b'{"n":"%d"}' % i for i in range(3000)]
    rows = parse_json_lines(b"\n".join(lines), FLAT, "in", 10**6)
    assert rows.table.column("n").to_pylist() == [i for i in range(3000) if i % 3 or i % 2]
    assert rows.rejected == 500 and rows.bad[1].origin == "in:7"


@pytest.mark.parametrize("most", [1, 9, 10, 127, 128, 999, 1000, 2**31, 2**63, 253_402_300_799_999])
def test_integers_up_to_a_bound_match(most: int) -> None:
    near = {0, 1, most, most - 1, most // 2, most // 10, most // 10 * 9, *range(min(most, 300))}
    within = pa.array([b"%d" % n for n in sorted(near)])
    assert line_pattern.matching(within, rf"^{up_to(most)}$").all()
    assert line_pattern.matching(within, rf"^{up_to(most, 3)}$").all()
    beyond = pa.array([b"%d" % n for n in (most + 1, 2 * most + 1, 10 * most + 10)])
    assert not line_pattern.matching(beyond, rf"^{up_to(most)}$").any()
    assert not line_pattern.matching(beyond[1:], rf"^{up_to(most, 3)}$").any()


def test_wide_schemas_have_no_pattern() -> None:
    wide = schema(", ".join(f"c{i} timestamp" for i in range(100)))
    assert json_pattern.pattern_of(wide) is None and csv_pattern.pattern_of(wide, wide.names) is None
    assert json_pattern.pattern_of(FLAT) is not None and csv_pattern.pattern_of(FLAT, FLAT.names) is not None
