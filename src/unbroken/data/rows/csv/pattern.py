"""The pattern of CSV lines that can be rows of a schema; it follows `columns`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from unbroken.data.rows.text.line_pattern import LinePattern, Sifted, character, matching
from unbroken.data.rows.text.plausibility import BASE64, DATE, FALSE, FLOAT, HEX, TIME, TRUE, integers, millis
from unbroken.data.rows.values.decimals import decimals_like

_PLAIN = character(r"[^,\r\n\x80-\xff]")
_FIRST = character(r'[^",\r\n\x80-\xff]')
_WITHIN = character(r'[^"\r\n\x80-\xff]')
_UNQUOTED = rf"{_FIRST}{_PLAIN}*"
_TEXT = rf'(?:"(?:{_WITHIN}|"")*"(?:{_UNQUOTED})?|{_UNQUOTED})'
"""Any value but an empty one. A quote counts at the beginning only, and what follows its end is added."""

_JOINED = r'"[^",\r\n\x80-\xff]*"[^",\r\n\x80-\xff][^,\r\n\x80-\xff]*'
"""A value that is partly in quotes; what it is when joined is left to the reader."""


def pattern_of(schema: pa.Schema, names: Sequence[str]) -> CsvPattern | None:
    """The pattern of lines with columns of these names, unless it is too long or no line can be right."""
    missing = any(not field.nullable and field.name not in names for field in schema)
    found = CsvPattern(schema, names)
    return None if missing or len(found.text) > found.max_chars else found


class CsvPattern(LinePattern):
    """The pattern of lines with columns of these names, some of which the schema has."""

    max_chars = 15_000
    chars_per_line = 3

    def __init__(self, schema: pa.Schema, names: Sequence[str]) -> None:
        known = {field.name: field for field in schema}
        values = [_value(known[name]) if name in known else rf"{_TEXT}?" for name in names]
        self.text = rf"^{','.join(values)}\r?\n?$"

    def sift(self, texts: pa.Array) -> Sifted:
        return Sifted(matching(texts, self.text), np.zeros(len(texts), np.bool_))


def _value(column: pa.Field) -> str:
    found = _of_type(column.type)
    return rf"(?:{found}){'?' if column.nullable else ''}"


def _of_type(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return _spaced(rf"{integers(kind.bit_width, '0*')}|{HEX}{{1,{kind.bit_width // 4}}}")
    if pa.types.is_floating(kind):
        return _spaced(FLOAT)
    if pa.types.is_decimal(kind):
        return _spaced(decimals_like(kind))
    if pa.types.is_date(kind):
        return _spaced(DATE)
    if pa.types.is_boolean(kind):
        return _typed("|".join(TRUE + FALSE))
    if pa.types.is_timestamp(kind):
        return _typed(rf"{TIME}|{millis('0*')}")
    if pa.types.is_binary(kind):
        return _typed(BASE64)
    return _TEXT


def _spaced(pattern: str) -> str:
    return _typed(rf"[ \t]*(?:{pattern})[ \t]*")


def _typed(pattern: str) -> str:
    # A quote may be missing on one side: then no line break may be within the value, which the reader notices.
    return rf'"?(?:{pattern})"?|{_JOINED}'
