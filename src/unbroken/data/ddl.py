"""Reads schemas written as DDL, such as ``"user string NOT NULL, tags array<string>"``.

PySpark parses DDL in the JVM. Declarations are loaded and checked by processes that have none, so this is the
part of the grammar that describes columns, in Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))")
_MAX_PRECISION = 38
_MAX_DEPTH = 50  # Deeper nesting is a mistake, and the parser is recursive.


def parse_ddl(text: str) -> StructType:
    """The columns that ``text`` declares.

    Types are byte, short, int, long (or tinyint, smallint, integer, bigint), float, double, string, binary,
    boolean, date, timestamp, timestamp_ntz, decimal(p,s), array<t>, map<k,v> and struct<name:t,...>; a column
    may be ``NOT NULL`` and have a ``COMMENT``; names with special characters are put in backquotes.

    Raises
    ------
    UnbrokenError
        If it cannot be understood; the message shows the place.
    """
    from pyspark.sql.types import StructType

    reader = _Reader(text, _tokens(text))
    if reader.peek() is None:
        raise UnbrokenError("The schema is empty", "name at least one column, as in 'user string, n long'")
    fields = [reader.column(0)]
    while reader.peek() is not None:
        reader.expect(",")
        fields.append(reader.column(0))
    _check_names(fields, text)
    return StructType(fields)


def parse_type(text: str) -> DataType:
    """A type as Spark's Python functions take it: ``long``, ``array<int>``, or columns, which are a struct.

    Raises
    ------
    UnbrokenError
        If it cannot be understood; the message says what to write.
    """
    try:
        return parse_ddl(text)
    except UnbrokenError:
        pass
    try:
        return _Reader(text, _tokens(text)).whole_type()
    except UnbrokenError:
        raise UnbrokenError(
            f"The type {text!r} cannot be read before Spark is started",
            "give an object of pyspark.sql.types such as "
            "LongType(), or declare the function inside of the segment that uses it",
        ) from None


@dataclass(frozen=True)
class _Token:
    text: str
    at: int
    kind: str


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            rest = text[at:].strip()
            raise UnbrokenError(
                f"The schema {text!r} cannot be read at {rest[:20]!r}",
                "put names with special characters in backquotes",
            )
        kind = ("quoted", "literal", "word", "symbol")[(match.lastindex or 1) - 1]
        tokens.append(_Token(match[match.lastindex or 1], match.start(match.lastindex or 1), kind))
        at = match.end()
    return tokens


def _check_names(fields: list[StructField], text: str) -> None:
    """Spark does not tell names apart by case, so ``a`` and ``A`` would be one ambiguous column."""
    seen: dict[str, str] = {}
    for field in fields:
        earlier = seen.setdefault(field.name.lower(), field.name)
        if earlier is not field.name:
            raise UnbrokenError(
                f"The schema {text!r} names {earlier!r} and {field.name!r}, which Spark takes for the same column",
                "rename one of them",
            )


class _Reader:
    """A recursive-descent parser over the tokens; each method consumes what it is named after."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._next = 0

    def peek(self) -> str | None:
        return self._tokens[self._next].text if self._next < len(self._tokens) else None

    def whole_type(self) -> DataType:
        kind = self._type(0, "result")
        if self.peek() is not None:
            raise self._error("expected nothing more")
        return kind

    def expect(self, symbol: str) -> None:
        if not self._skip(symbol):
            raise self._error(f"expected {symbol!r}")

    def column(self, depth: int) -> StructField:
        from pyspark.sql.types import StructField

        name = self._name()
        self._skip(":")
        kind = self._type(depth, name)
        nullable = not self._skip("not")
        if not nullable and not self._skip("null"):
            raise self._error(f"expected NULL after NOT of column {name!r}")
        metadata = {"comment": self._literal()} if self._skip("comment") else None
        return StructField(name, kind, nullable, metadata)

    def _error(self, what: str, remedy: str = "") -> UnbrokenError:
        if self._next < len(self._tokens):
            found = f"found {self._text[self._tokens[self._next].at :][:20]!r}"
        else:
            found = "found the end"
        return UnbrokenError(f"The schema {self._text!r} is wrong: {what}, {found}{'' if remedy else '.'}", remedy)

    def _skip(self, symbol: str) -> bool:
        token = self._tokens[self._next] if self._next < len(self._tokens) else None
        if token is None or token.kind not in ("word", "symbol") or token.text.lower() != symbol:
            return False
        self._next += 1
        return True

    def _take(self, kinds: tuple[str, ...], what: str) -> _Token:
        if self._next >= len(self._tokens) or self._tokens[self._next].kind not in kinds:
            raise self._error(f"expected {what}")
        self._next += 1
        return self._tokens[self._next - 1]

    def _name(self) -> str:
        token = self._take(("quoted", "word"), "a column name")
        name = token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text
        if not name:
            self._next -= 1
            raise self._error("a column name is empty")
        return name

    def _literal(self) -> str:
        return re.sub(r"\\(.)", r"\1", self._take(("literal",), "a comment in quotes").text[1:-1])

    def _type(self, depth: int, owner: str) -> DataType:
        from pyspark.sql import types

        if depth > _MAX_DEPTH:
            raise self._error(f"column {owner!r} is nested more than {_MAX_DEPTH} levels deep")
        word = self._take(("word",), f"the type of {owner!r}").text.lower()
        if word in ("decimal", "dec", "numeric"):
            return self._decimal(owner)
        if word == "array":
            self.expect("<")
            element = self._type(depth + 1, owner)
            self.expect(">")
            return types.ArrayType(element)
        if word == "map":
            self.expect("<")
            key = self._type(depth + 1, owner)
            self.expect(",")
            value = self._type(depth + 1, owner)
            self.expect(">")
            return types.MapType(key, value)
        if word == "struct":
            return self._struct(depth)
        atomic = _atomic_types()
        if word not in atomic:
            self._next -= 1
            known = ", ".join([*atomic, "decimal(p,s)", "array<>", "map<,>", "struct<>"])
            raise self._error(f"column {owner!r} has a type that is not known", f"use one of {known}")
        return atomic[word]

    def _struct(self, depth: int) -> StructType:
        from pyspark.sql.types import StructType

        self.expect("<")
        fields: list[StructField] = []
        while not self._skip(">"):
            if fields:
                self.expect(",")
            fields.append(self.column(depth + 1))
        _check_names(fields, self._text)
        return StructType(fields)

    def _decimal(self, owner: str) -> DataType:
        from pyspark.sql.types import DecimalType

        if not self._skip("("):
            return DecimalType(10, 0)
        precision = self._number("the precision")
        scale = self._number("the scale") if self._skip(",") else 0
        self.expect(")")
        if not (1 <= precision <= _MAX_PRECISION and scale <= precision):
            raise UnbrokenError(
                f"Column {owner!r} is decimal({precision},{scale})",
                f"the precision must be 1 to {_MAX_PRECISION} and the scale at most the precision",
            )
        return DecimalType(precision, scale)

    def _number(self, what: str) -> int:
        if not (self.peek() or "").isdecimal():
            raise self._error(f"expected {what} of a decimal")
        return int(self._take(("word",), what).text)


def _atomic_types() -> dict[str, DataType]:
    from pyspark.sql import types

    return {
        "byte": types.ByteType(),
        "tinyint": types.ByteType(),
        "short": types.ShortType(),
        "smallint": types.ShortType(),
        "int": types.IntegerType(),
        "integer": types.IntegerType(),
        "long": types.LongType(),
        "bigint": types.LongType(),
        "float": types.FloatType(),
        "real": types.FloatType(),
        "double": types.DoubleType(),
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "boolean": types.BooleanType(),
        "date": types.DateType(),
        "timestamp": types.TimestampType(),
        "timestamp_ltz": types.TimestampType(),
        "timestamp_ntz": types.TimestampNTZType(),
    }
