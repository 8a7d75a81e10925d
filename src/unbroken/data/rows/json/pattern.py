"""The pattern of JSON lines that can be rows of a schema.

It follows `value`: an object whose fields have values of their types, and other fields with any values. What no
pattern can follow is left to the reader of single lines: deep nesting, and a name that comes twice, of which the last
value counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from unbroken.data.rows.text.line_pattern import Bools, LinePattern, Sifted, character, matching, matching_among
from unbroken.data.rows.text.plausibility import BASE64, DATE, TIME, integers, millis
from unbroken.data.rows.values.decimals import decimals_like

_DEPTH = 5  # Levels of brackets within a field that the pattern follows.
_MAX_COLUMNS = 50  # Rows of wider schemas take so long that reading them singly costs little more.
_MAX_REPEATED = 10  # Columns; each of them is looked at separately in lines that may repeat a name.
_NAMES_AT_ONCE = 5  # The matcher has a state for each subset of the names that it has seen.

_S = r"[ \t\r\n]*"
_CHAR = character(r"[ !#-\[\]-\x7f]")
_HEX = "[0-9a-fA-F]"
_ESCAPE = rf'\\(?:["\\/bfnrt]|u{_HEX}{{4}})'
_STRING_END = rf'(?:{_CHAR}|{_ESCAPE})*"'
_STRING = rf'"{_STRING_END}'
_LOOSE_STRING = r'"(?:[^"\\]|\\.)*"'
_LETTER = rf'\\(?:["\\/bfnrt]|u(?:[0-9a-cA-Ce-fE-F]{_HEX}|[dD][0-7]){_HEX}{{2}})'
_PAIR_OF_SURROGATES = rf"\\u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"
_TEXT = rf'"(?:{_CHAR}|{_LETTER}|{_PAIR_OF_SURROGATES})*"'

_WHOLE = r"(?:0|[1-9][0-9]*)"
_NUMBER = rf"-?{_WHOLE}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_FINITE = (
    rf"-?(?:{_WHOLE}(?:\.[0-9]+)?|0(?:\.[0-9]+)?[eE][+-]?[0-9]+"
    r"|[1-9][0-9]*(?:\.[0-9]+)?[eE](?:-[0-9]+|\+?0*(?:[0-9]{1,2}|[12][0-9]{2}|30[0-8])))"
)
"""Numbers that a double can hold, and some with very many digits that it cannot."""

_SCALAR = rf"(?:{_STRING}|{_NUMBER}|true|false|null|NaN|-?Infinity)"


def _nested(levels: int) -> str:
    deeper = rf"|{_nested(levels - 1)}" if levels > 1 else ""
    return rf'[\[{{](?:[^"\[\]{{}}]|{_LOOSE_STRING}{deeper})*[\]}}]'


_SHALLOW = rf"(?:{_SCALAR}|{_nested(_DEPTH)})"
"""Any value with at most `_DEPTH` levels of brackets; what is between them is not looked at closely."""

_DEEP = rf'(?:{_SCALAR}|[\[{{](?:{_LOOSE_STRING}|[^"])*[\]}}])'

_IS_DEEP = rf"(?:[\[{{][^\[{{]*){{{_DEPTH + 2}}}"

_CLOSED = r"\}[ \t\r\n]*$"

_ESCAPED_KEY = r'"[^"\\]*\\.(?:[^"\\]|\\.)*"'
"""A key with an escape, which may stand for any name."""


def pattern_of(schema: pa.Schema) -> JsonPattern | None:
    """The pattern of a schema, unless it is too long."""
    found = JsonPattern(schema) if len(schema) <= _MAX_COLUMNS else None
    return found if found is not None and len(found.text) <= found.max_chars else None


class JsonPattern(LinePattern):
    """The pattern of a schema in JSON lines."""

    max_chars = 25_000
    chars_per_line = 20

    def __init__(self, schema: pa.Schema) -> None:
        columns = [_Column(column) for column in schema if _literal(column.name)]
        self._shallow, self._deep = _Objects(columns, _SHALLOW), _Objects(columns, _DEEP)
        self.text = self._shallow.plain

    def sift(self, texts: pa.Array) -> Sifted:
        likely = matching(texts, self._shallow.plain)
        likely = matching_among(texts, likely, _CLOSED)
        deep = matching_among(texts, ~likely, _IS_DEEP)
        odd = matching_among(texts, deep, self._deep.plain)
        odd |= self._deep.right_by_last_value(texts, deep & ~odd)
        return Sifted(likely, odd | self._shallow.right_by_last_value(texts, ~likely & ~deep))


class _Column:
    """One column: its name, and the patterns of the name as a key and of a pair."""

    def __init__(self, column: pa.Field) -> None:
        self.name = column.name.encode()
        self.key = f'"{"".join(_byte(each) for each in self.name)}"'
        self._column = column

    def pair(self, any_value: str) -> str:
        """Matches the name with a value; within structures it may be ``any_value``."""
        return rf"{self.key}{_S}:{_S}(?:{_value(self._column, any_value)})"


class _Objects:
    """Patterns of objects whose fields have values of their types, and others match ``any_value``."""

    def __init__(self, columns: Sequence[_Column], any_value: str) -> None:
        self._columns = columns
        self._any_value = any_value
        self._any = rf"{_S}:{_S}{any_value}"
        other = rf"(?:{_key_beside(column.name for column in columns)}|{_ESCAPED_KEY}){self._any}"
        pair = rf"(?:{'|'.join([*(column.pair(any_value) for column in columns), other])})"
        # The pattern of a pair is long: it is there once, at the price of braces where commas should be. What does not
        # end with a brace is found by `_CLOSED`.
        self.plain = rf"(?s)^{_S}\{{{_S}(?:\}}{_S}|(?:{pair}{_S}[,}}]{_S})+)$"

    def right_by_last_value(self, texts: pa.Array, among: Bools) -> Bools:
        """Which lines may repeat names, and are right if the last value of each name counts."""
        found = np.zeros(len(texts), np.bool_)
        for pattern in self._repeating:
            found |= matching_among(texts, among & ~found, pattern)
        if len(self._columns) <= _MAX_REPEATED and found.any():
            for pattern in self._last_is_right:
                found = matching_among(texts, found, pattern)
        return found

    @cached_property
    def _repeating(self) -> list[str]:
        """Together, lines with an escape or with a name that comes twice."""
        found = [rf"{column.key}{_S}:.*{column.key}{_S}:" for column in self._columns]
        return [r"\\", *("|".join(found[i : i + _NAMES_AT_ONCE]) for i in range(0, len(found), _NAMES_AT_ONCE))]

    @cached_property
    def _last_is_right(self) -> list[str]:
        """For each column: objects in which its last value, if there is one, can be right."""
        escaped = rf"{_ESCAPED_KEY}{self._any}"
        found = []
        for column in self._columns:
            other = rf"{_key_beside([column.name])}{self._any}"
            right = rf"(?:{column.pair(self._any_value)}|{escaped})"
            one = rf"(?:{_LOOSE_STRING}{self._any}{_S},{_S})*{right}(?:{_S},{_S}{other})*"
            found.append(rf"(?s)^{_S}\{{{_S}(?:{one}|{_list_of(other)}){_S}\}}{_S}$")
        return found


def _list_of(pattern: str) -> str:
    return rf"(?:{pattern}(?:{_S},{_S}{pattern})*)?"


def _literal(name: str) -> bool:
    """Whether a name is written as it is; one with a quote, for example, is always written with an escape."""
    return json.dumps(name, ensure_ascii=False) == f'"{name}"' and _encodable(name)


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _byte(value: int) -> str:
    return chr(value) if chr(value).isascii() and chr(value).isalnum() else rf"\x{value:02x}"


Names = dict[int, "Names"]
"""Names as a tree of their bytes; `_END` is where a name ends."""

_END = -1


def _key_beside(names: Iterable[bytes]) -> str:
    """Matches keys without escapes that are none of these names."""
    tree: Names = {}
    for name in names:
        node = tree
        for each in (*name, _END):
            node = node.setdefault(each, {})
    return '"' + _beside(tree)


def _beside(node: Names) -> str:
    """Matches the rest of a key from a place in the tree on, with the quote at its end."""
    following = sorted(node.keys() - {_END})
    excluded = "".join(_byte(each) for each in following)
    found = [rf'[^"\\\x00-\x1f{excluded}][^"\\\x00-\x1f]*"']
    if _END not in node:
        found.append('"')
    found += [_byte(each) + _beside(node[each]) for each in following]
    return rf"(?:{'|'.join(found)})"


def _value(column: pa.Field, any_value: str) -> str:
    typed = _of_type(column.type, any_value)
    return rf"{typed}|null" if column.nullable else typed


def _of_type(kind: pa.DataType, any_value: str) -> str:
    if pa.types.is_boolean(kind):
        return "true|false"
    if pa.types.is_integer(kind):
        return integers(kind.bit_width)
    if pa.types.is_floating(kind):
        return rf"{_FINITE}|NaN|-?Infinity"
    if pa.types.is_decimal(kind):
        return _decimal(kind)
    if pa.types.is_timestamp(kind):
        return rf"{_quoted(TIME, '-+0-9TZ :.')}|{millis()}"
    if pa.types.is_date(kind):
        return _quoted(DATE, "-0-9")
    if pa.types.is_binary(kind):
        return _quoted(BASE64, "A-Za-z0-9+/=")
    if pa.types.is_string(kind):
        return _TEXT
    if pa.types.is_list(kind):
        item = rf"(?:{_value(kind.value_field, any_value)})"
        return rf"\[{_S}{_list_of(item)}{_S}\]"
    return any_value


def _quoted(pattern: str, letters: str) -> str:
    """Matches a string of this pattern; if it has escapes, only that all others are such letters."""
    return rf'"(?:{pattern})"|"[{letters}]*{_ESCAPE}(?:[{letters}]|{_ESCAPE})*"'


def _decimal(kind: pa.DataType) -> str:
    before, after = kind.precision - kind.scale, kind.scale
    whole = rf"(?:0|[1-9][0-9]{{0,{before - 1}}})" if before else "0"
    fraction = rf"[0-9]{{1,{after}}}0*" if after else "0+"
    number = rf"-?(?:{whole}(?:\.{fraction})?|{_WHOLE}(?:\.[0-9]+)?[eE][+-]?[0-9]{{1,3}})"
    return rf"{number}|{_quoted(decimals_like(kind), '-+0-9.eE')}"
