"""One JSON value against one Arrow type: the careful, row-by-row side of reading JSON lines.

Used only for rows that the vectorised reader refuses, to find out which of them are wrong and why.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from unbroken.data.rows.budget import MAX_DEPTH, clip
from unbroken.data.rows.values.decimals import unscaled
from unbroken.data.rows.values.times import YEAR_1_MS, YEAR_9999_MS, date_of_text, micros_of_text

Reader = Callable[[Any], Any]
"""Makes of a JSON value what `pa.array` takes; raises `Mismatch`."""

_INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_NO_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"|[^"\[{\]}]++', re.DOTALL)
_STEPS = np.array([{"[": 1, "{": 1, "]": -1, "}": -1}.get(chr(each), 0) for each in range(256)], np.int64)
_SHOWN = 60
_LONG_INTEGER = 40  # Digits; no type has more, and Python refuses to convert very many.


class Number:
    """A number as it is written, unless it is an integer of few digits; nothing is made of it until a type asks."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Mismatch(ValueError):
    """A value that does not fit its column; the sentence is only made for the rows that are kept."""

    def __init__(self, value: Any, wanted: object) -> None:
        self._value = value
        self._wanted = wanted
        self._path = ""

    def within(self, step: str) -> Mismatch:
        """Say that the value is in this place of a larger one."""
        self._path = clip(step, _SHOWN) + self._path
        return self

    def __str__(self) -> str:
        path = clip(self._path.removeprefix("."), 4 * _SHOWN)
        if self._value is None:
            return f"field {path!r} must not be null or missing"
        return f"field {path!r} must be {clip(str(self._wanted), 4 * _SHOWN)}, got {_show(self._value)}"


def _integer_or_text(text: str) -> int | Number:
    return int(text) if len(text) <= _LONG_INTEGER else Number(text)


Scan = Callable[[str, int], tuple[Any, int]]
_scan: Scan = json.JSONDecoder(parse_float=Number).raw_decode
_scan_long: Scan = json.JSONDecoder(parse_float=Number, parse_int=_integer_or_text).raw_decode


def load_object(line: bytes) -> dict[str, Any]:
    """The JSON object on a line; ValueError reports what is wrong with it. Fractions come as `Number`."""
    try:
        text = line.strip(b" \t\r\n").decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise ValueError(f"nested too deeply, more than {MAX_DEPTH} levels")
    value, end = _scanned(text)
    if end != len(text):
        raise ValueError(f"not JSON: Extra data at character {end + 1}")
    if not isinstance(value, dict):
        raise ValueError(f"a row must be a JSON object, got {_kind(value)}")
    return value


def _scanned(text: str) -> tuple[Any, int]:
    try:
        try:
            return _scan(text, 0)
        except json.JSONDecodeError:
            raise
        except ValueError:  # More digits than Python converts.
            return _scan_long(text, 0)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _depth(text: str) -> int:
    """How deep the brackets outside of strings are nested, at least up to the first place that is not JSON."""
    brackets = np.frombuffer(_NO_BRACKETS.sub("", text).encode(), np.uint8)
    return max(0, int(np.cumsum(_STEPS[brackets]).max(initial=0)))


class RowReader:
    """Makes rows of a schema from JSON objects.

    Fields that the schema does not have are ignored, missing ones are null.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._fields = _fields(schema)

    def row(self, value: dict[str, Any]) -> list[Any]:
        """The values of the columns, as `pa.array` takes them; `Mismatch` if one is wrong."""
        return [read(value.get(name)) for name, read in self._fields]

    def explain(self, value: dict[str, Any]) -> None:
        """Raise the `Mismatch` that `row` does, with the name of the field."""
        for name, read in self._fields:
            _at(value.get(name), read, name)


def _at(value: Any, read: Reader, step: str) -> Any:
    try:
        return read(value)
    except Mismatch as mismatch:
        raise mismatch.within(f".{step}") from None


def _fields(fields: Any) -> list[tuple[str, Reader]]:
    return [(field.name, _field(field)) for field in fields]


def _field(field: pa.Field) -> Reader:
    read = _reader(field.type)
    if not field.nullable:
        return read
    return lambda value: None if value is None else read(value)


def _reader(kind: pa.DataType) -> Reader:
    if pa.types.is_boolean(kind):
        return _of_class(bool, kind)
    if pa.types.is_integer(kind):
        return _integer(kind)
    if pa.types.is_floating(kind):
        return _float(kind)
    if pa.types.is_decimal(kind):
        return _decimal(kind)
    if pa.types.is_timestamp(kind):
        return _timestamp
    if pa.types.is_date(kind):
        return _date(kind)
    if pa.types.is_binary(kind):
        return _binary
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_map(kind):
        return _map(kind)
    if pa.types.is_list(kind):
        return _list(kind)
    return _text(kind)


def _of_class(wanted: type, kind: pa.DataType) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not wanted:
            raise Mismatch(value, kind)
        return value

    return read


def _integer(kind: pa.DataType) -> Reader:
    least, beyond = -(1 << kind.bit_width - 1), 1 << kind.bit_width - 1

    def read(value: Any) -> int:
        if type(value) is not int or not least <= value < beyond:
            raise Mismatch(value, kind)
        return value

    return read


def _float(kind: pa.DataType) -> Reader:
    def read(value: Any) -> float:
        if type(value) is float:
            return value  # It was written as NaN or Infinity.
        if type(value) not in (int, Number):
            raise Mismatch(value, kind)
        try:
            number = float(value.text if type(value) is Number else value)
        except OverflowError:
            raise Mismatch(value, kind) from None
        if abs(number) == float("inf"):  # A finite number that is too large.
            raise Mismatch(value, kind)
        return number

    return read


def _decimal(kind: pa.DataType) -> Reader:
    """Numbers and, so that producers need not write them as floats, numbers in quotes."""

    def read(value: Any) -> Decimal:
        text = value.text if type(value) is Number else value if type(value) is str else ""
        if type(value) is int:
            text = str(value)
        found = unscaled(text, kind)
        if found is None:
            raise Mismatch(value, kind)
        return Decimal(f"{found}e-{kind.scale}")

    return read


def _timestamp(value: Any) -> int:
    """Microseconds since the epoch, from ISO-8601 or epoch milliseconds."""
    try:
        if type(value) is str:
            return micros_of_text(value)
    except ValueError:
        pass
    if type(value) is int and YEAR_1_MS <= value <= YEAR_9999_MS:
        return 1000 * value
    raise Mismatch(value, "a time (ISO-8601 or epoch milliseconds, years 1 to 9999)")


def _date(kind: pa.DataType) -> Reader:
    def read(value: Any) -> Any:
        try:
            if type(value) is str:
                return date_of_text(value)
        except ValueError:
            pass
        raise Mismatch(value, kind)

    return read


def _binary(value: Any) -> bytes:
    try:
        if type(value) is str:
            return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise Mismatch(value, "binary in base64")


def _text(kind: pa.DataType) -> Reader:
    def read(value: Any) -> str:
        if type(value) is not str:
            raise Mismatch(value, kind)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Mismatch(value, "text, not half of a surrogate pair") from None
        return value

    return read


def _struct(kind: pa.DataType) -> Reader:
    fields = _fields(kind)

    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Mismatch(value, kind)
        return {name: _at(value.get(name), reader, name) for name, reader in fields}

    return read


def _map(kind: pa.DataType) -> Reader:
    read_key, read_item = _key(kind.key_type), _field(kind.item_field)

    def read(value: Any) -> list[tuple[Any, Any]]:
        if type(value) is not dict:
            raise Mismatch(value, kind)
        return [(_at(key, read_key, key), _at(item, read_item, key)) for key, item in value.items()]

    return read


def _key(kind: pa.DataType) -> Reader:
    """Keys of JSON objects are always strings, so those of maps from numbers are read from text."""
    read = _reader(kind)
    if not pa.types.is_integer(kind):
        return read
    return lambda key: read(int(key) if _INTEGER.fullmatch(key) else key)


def _list(kind: pa.DataType) -> Reader:
    read_item = _field(kind.value_field)

    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise Mismatch(value, kind)
        found = []
        try:
            for item in value:
                found.append(read_item(item))
        except Mismatch as mismatch:
            raise mismatch.within(f"[{len(found)}]") from None
        return found

    return read


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "the string", bool: "the boolean", type(None): "null"}
    return names.get(type(value), "the number")


def _show(value: Any) -> str:
    """A value in an error message: bounded, and without looking at more of it than is shown."""
    if isinstance(value, dict | list):
        return f"{_kind(value)} of {len(value)}"
    if isinstance(value, Number):
        return f"the number {clip(value.text, _SHOWN)}"
    if isinstance(value, str):
        return f"the string {clip(json.dumps(value[: _SHOWN + 1]), _SHOWN)}"
    return f"{_kind(value)} {clip(json.dumps(value), _SHOWN)}"
