"""Decimals: exact, bounded, and no text or type ends the process, on any way into a flow."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.data.rows.csv.lines import parse_csv
from unbroken.data.rows.fit import fit
from unbroken.data.rows.json.lines import parse_json_lines
from unbroken.data.rows.values.decimals import MAX_CHARS, decimals_from_text, safe_in_json, unscaled
from unbroken.data.schema import arrow_schema, parse_schema

KINDS = st.sampled_from(
    [pa.decimal128(p, s) for p, s in [(10, 2), (38, 18), (38, 38), (18, 0), (5, 5), (38, 0), (1, 0)]]
)
DIGITS = st.text("0123456789", max_size=40)
TEXTS = st.one_of(
    st.none(),
    st.builds(
        "{}{}{}{}{}".format,
        st.sampled_from(["", "-", "+"]),
        DIGITS,
        st.sampled_from(["", "."]),
        DIGITS,
        st.one_of(st.just(""), st.integers(-80, 80).map("e{}".format)),
    ),
    st.text("0123456789.+-eE", max_size=8),
    st.text(max_size=4),
)

# What ended the process, or was taken for another number, inside of Arrow.
FAR = [
    "1e-40",
    "1e-41",
    "1e-100",
    "1e-9999999",
    "0e-999999999",
    "1e-2147483648",
    "1e99999999999",
    "0." + "0" * 70_000 + "1",
]
MANY = "9" * 5000


def value(text: str) -> Fraction | None:
    """What a text says, by other means."""
    try:
        mantissa, _, exponent = text.lower().partition("e")
        if len(text) > MAX_CHARS or not text.isascii() or "_" in text or text != text.strip():
            return None
        if "e" in text.lower() and (not exponent.lstrip("+-").isdigit() or len(exponent.lstrip("+-")) > 3):
            return None
        whole = Fraction(mantissa if "/" not in mantissa else "")
        return whole * Fraction(10) ** int(exponent or 0)
    except (ValueError, ZeroDivisionError):
        return None


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS, max_size=20), KINDS)
def test_a_column_is_exact_and_agrees_with_single_values(texts: list[str | None], kind: pa.DataType) -> None:
    found, wrong = decimals_from_text(pa.array(texts, pa.string()), kind)
    found.validate(full=True)
    for text, number, is_wrong in zip(texts, found.to_pylist(), wrong, strict=True):
        if text is None:
            assert number is None and not is_wrong
            continue
        meant = value(text)
        fits = (
            meant is not None
            and (meant * 10**kind.scale).denominator == 1
            and abs(meant) * 10**kind.scale < 10**kind.precision
        )
        assert fits != is_wrong, text
        assert (unscaled(text, kind) is None) == is_wrong
        assert number == (None if is_wrong else number) and (is_wrong or Fraction(number) == meant)


@pytest.mark.parametrize("text", [*FAR, "1e1000000000000000000000", MANY, "-" + MANY, "1.5EUR", "", "NaN"])
@pytest.mark.parametrize("ddl", ["decimal(10,2)", "decimal(38,18)"])
def test_far_exponents_and_many_digits_are_bad_rows(text: str, ddl: str) -> None:
    of = arrow_schema(parse_schema(f"a {ddl}"))
    nested = arrow_schema(parse_schema(f"a map<string,{ddl}>, s struct<d:{ddl}>, l array<{ddl}>"))
    for line, schema in (
        (f'{{"a":"{text}"}}', of),
        (f'{{"a":{{"k":"{text}"}}}}', nested),
        (f'{{"s":{{"d":"{text}"}}}}', nested),
        (f'{{"l":["{text}"]}}', nested),
    ):
        rows = parse_json_lines(line.encode(), schema, "in", 10**6)
        assert (rows.table.num_rows, rows.rejected) == (0, 1), line[:80]
    if text and text not in ("1.5EUR", "NaN"):
        assert parse_json_lines(f'{{"a":{text}}}'.encode(), of, "in", 10**6).rejected == 1
    if text:
        rows = parse_csv(f"a,b\n{text},1\n".encode(), of, "in", 10**6, header=True)
        assert (rows.table.num_rows, rows.rejected) == (0, 1)


def test_no_such_text_or_scale_ends_the_process() -> None:
    """In a process of its own, which is gone if one does."""
    code = f"""
    import io, pyarrow as pa
    from unbroken.data.rows.csv.lines import parse_csv
    from unbroken.connectors.push.source import Push, PushBatch
    from unbroken.data.rows.json.lines import parse_json_lines
    from unbroken.data.schema import arrow_schema, parse_schema
    for ddl in ("decimal(10,2)", "decimal(38,18)", "map<string,decimal(10,2)>", "bigint"):
        of = arrow_schema(parse_schema("a " + ddl))
        for text in {FAR!r}:
            parse_csv(b"a\\n" + text.encode(), arrow_schema(parse_schema("a decimal(10,2)")), "in", 10**6, header=True)
            for line in ('{{"a":%s}}', '{{"a":"%s"}}', '{{"a":{{"k":%s}}}}', '{{"price":1,"a":[%s]}}'):
                assert parse_json_lines((line % text).encode(), of, "in", 10**6).table.num_rows == 0
    for kind in (pa.decimal128, pa.decimal256):
        for scale in (-2147483648, -2000000, -30, -1, 6, 100, 2000000, 2147483647):
            width = 16 if kind is pa.decimal128 else 32
            array = pa.Array.from_buffers(kind(5, scale), 1, [None, pa.py_buffer((1).to_bytes(width, "little"))])
            for each in (array, pa.StructArray.from_arrays([array], ["a"]), pa.ListArray.from_arrays([0, 1], array)):
                body, table = io.BytesIO(), pa.table({{"price": each}})
                with pa.ipc.new_stream(body, table.schema) as writer:
                    writer.write_table(table)
                for ddl in ("decimal(10,2)", "struct<a:decimal(10,2)>", "array<decimal(10,2)>"):
                    batch = PushBatch("s", "p", 1, body.getvalue(), "arrow")
                    assert Push("price " + ddl).refusal(batch) is not None
    print("alive")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


@pytest.mark.parametrize(
    "text", ["1e-9999999", "\\u0031e-9999999", "1\\u0065-9999999", "-e-9999999", "0." + "0" * 70_000]
)
def test_a_json_text_with_such_a_value_is_not_for_arrow(text: str) -> None:
    for value in (text, f'"{text}"'):
        assert not safe_in_json(pa.array([f'{{"a":1.5}}\n{{"a":{value}}}']), scale=2)
    assert safe_in_json(pa.array(['{"a":-1.5,"id":"3e4f-12e5-8e","b":"12.25"}']), scale=2)


WRAPPING = [("11", 38), ("11", 37), ("34028236692093846347", 18), ("79", 37), ("-11", 38), ("0011.0", 38)]
"""Numbers that Arrow takes for others: times a power of ten they are beyond 128 bits, and begin at 0 again."""


@pytest.mark.parametrize(("text", "scale"), WRAPPING)
def test_no_way_in_takes_a_number_for_another_one(text: str, scale: int) -> None:
    ddl = f"m decimal(38,{scale})"
    schema = arrow_schema(parse_schema(ddl))
    right = value(text)
    assert right is not None
    expected = [] if abs(right) * 10**scale >= 10**38 else [{"m": Decimal(text)}]
    number = text.lstrip("0") if not text.startswith("-") else text
    for line in (f'{{"m":{number}}}', f'{{"m":"{text}"}}'):
        assert parse_json_lines(line.encode(), schema, "o", 1000).table.to_pylist() == expected
    assert parse_csv(text.encode() + b"\n", schema, "o", 1000, header=False).table.to_pylist() == expected
    for sent in (pa.decimal128(38, 1), pa.decimal256(60, 2)):
        table = pa.table({"m": pa.array([Decimal(text)], sent)})
        nested = pa.table({"s": pa.array([{"l": [Decimal(text)]}], pa.struct([("l", pa.list_(sent))]))})
        wide = arrow_schema(parse_schema(f"s struct<l:array<decimal(38,{scale})>>"))
        for made, wanted in ((table, schema), (nested, wide)):
            if expected:
                assert fit(made, wanted, exact_names=True).num_rows == 1
            else:
                with pytest.raises(ValueError, match="does not fit"):
                    fit(made, wanted, exact_names=True)


@pytest.mark.parametrize(("precision", "scale"), [(10, 2), (38, 38), (38, 0), (5, 5)])
def test_sound_decimals_of_other_types_are_fitted_or_refused(precision: int, scale: int) -> None:
    schema = arrow_schema(parse_schema("m decimal(10,2)"))
    for kind in (pa.decimal128(precision, scale), pa.decimal256(min(76, 2 * precision), scale)):
        table = pa.table({"m": pa.array([Decimal(0), None], kind)})
        assert fit(table, schema, exact_names=True).column("m").to_pylist() == [0, None]


def test_a_number_in_a_decimal_column_keeps_its_digits() -> None:
    of = arrow_schema(parse_schema("m decimal(38,18), s struct<m:decimal(5,1)>, t string"))
    lines = [
        b'{"m":12345678901234567890.123456789012345678,"t":"\\"m\\":1"}',
        b'{"m" : -0.5 , "s":{"m":1.5}}',
        b'{"\\u006d":1.25}',
        b'{"m":1e3,"s":{"m":"2.5"}}',
    ]
    rows = parse_json_lines(b"\n".join(lines), of, "in", 10**6)
    assert rows.bad == ()
    assert [str(m) for m in rows.table.column("m").to_pylist()] == [
        "12345678901234567890.123456789012345678",
        "-0.500000000000000000",
        "1.250000000000000000",
        "1000.000000000000000000",
    ]
    assert rows.table.column("t").to_pylist()[0] == '"m":1'
