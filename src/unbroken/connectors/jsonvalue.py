"""One JSON value against one Arrow type: the careful, row-by-row side of reading JSON lines.

Used only for rows that the vectorised reader refuses, to find out which of them are wrong and why.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa

from unbroken.connectors.texttime import YEAR_1_MS, YEAR_9999_MS, dates_from_text, micros_of_text

_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_SHOWN = 60


def load_object(line: bytes) -> dict[str, Any]:
    """The JSON object on a line; ValueError says what is wrong with it. Fractions come as Decimal."""
    try:
        value = json.loads(line, parse_float=Decimal)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"a row must be a JSON object, got {_kind(value)}")
    return value


def convert_row(value: dict[str, Any], schema: pa.Schema) -> list[Any]:
    """The values of the schema's columns, as `pa.array` takes them; ValueError names the field that is wrong.

    Fields that the schema does not have are ignored, missing ones are null.
    """
    return [_field(value.get(field.name), field, field.name) for field in schema]


def _field(value: Any, field: pa.Field, path: str) -> Any:
    if value is None:
        if not field.nullable:
            raise ValueError(f"field {path!r} must not be null or missing")
        return None
    return _convert(value, field.type, path)


def _convert(value: Any, kind: pa.DataType, path: str) -> Any:
    if pa.types.is_boolean(kind):
        return _require(value, isinstance(value, bool), kind, path)
    if pa.types.is_integer(kind):
        return _integer(value, kind, path)
    if pa.types.is_floating(kind):
        return _float(value, kind, path)
    if pa.types.is_decimal(kind):
        return _decimal(value, kind, path)
    if pa.types.is_struct(kind):
        _require(value, isinstance(value, dict), kind, path)
        return {field.name: _field(value.get(field.name), field, f"{path}.{field.name}") for field in kind}
    if pa.types.is_map(kind):
        _require(value, isinstance(value, dict), kind, path)
        return [
            (_key(key, kind.key_type, path), _field(item, kind.item_field, f"{path}.{key}"))
            for key, item in value.items()
        ]
    if pa.types.is_list(kind):
        _require(value, isinstance(value, list), kind, path)
        return [_field(item, kind.value_field, f"{path}[{i}]") for i, item in enumerate(value)]
    return _scalar_text(value, kind, path)


def _scalar_text(value: Any, kind: pa.DataType, path: str) -> Any:
    """The types that JSON writes as strings."""
    if pa.types.is_timestamp(kind):
        return _timestamp(value, kind, path)
    _require(value, isinstance(value, str), kind, path)
    if pa.types.is_date(kind):
        try:
            return dates_from_text(pa.array([value]))[0].as_py()
        except ValueError:
            raise _wrong(value, kind, path) from None
    if pa.types.is_binary(kind):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"field {path!r} must be binary in base64, got {_show(value)}") from None
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"field {path!r} holds half of a surrogate pair, which is no text") from None
    return value


def _integer(value: Any, kind: pa.DataType, path: str) -> int:
    _require(value, isinstance(value, int) and not isinstance(value, bool), kind, path)
    bits = kind.bit_width - 1
    _require(value, -(1 << bits) <= value < 1 << bits, kind, path)
    return int(value)


def _float(value: Any, kind: pa.DataType, path: str) -> float:
    _require(value, isinstance(value, int | float | Decimal) and not isinstance(value, bool), kind, path)
    try:
        number = float(value)
    except OverflowError:
        raise _wrong(value, kind, path) from None
    # An infinite float was written as Infinity; a finite number that becomes infinite was too large.
    _require(value, isinstance(value, float) or abs(number) != float("inf"), kind, path)
    return number


def _decimal(value: Any, kind: pa.DataType, path: str) -> Decimal:
    """Numbers and, so that producers need not write them as floats, numbers in quotes."""
    fits = isinstance(value, int | Decimal | str) and not isinstance(value, bool)
    if isinstance(value, str):
        fits = _DECIMAL.fullmatch(value) is not None
    _require(value, fits, kind, path)
    number = Decimal(value)
    try:
        return pa.scalar(number, kind).as_py()  # type: ignore[no-any-return]
    except pa.ArrowInvalid:
        raise _wrong(value, kind, path) from None


def _timestamp(value: Any, kind: pa.DataType, path: str) -> int:
    """Microseconds since the epoch, from ISO-8601 or epoch milliseconds."""
    try:
        if isinstance(value, str):
            return micros_of_text(value)
        if isinstance(value, int) and not isinstance(value, bool) and YEAR_1_MS <= value <= YEAR_9999_MS:
            return 1000 * value
        raise _wrong(value, kind, path)
    except ValueError:
        wanted = "a time (ISO-8601 or epoch milliseconds, years 1 to 9999)"
        raise ValueError(f"field {path!r} must be {wanted}, got {_show(value)}") from None


def _key(key: str, kind: pa.DataType, path: str) -> Any:
    """Keys of JSON objects are always strings, so those of maps from numbers are read from text."""
    if pa.types.is_integer(kind) and _INTEGER.fullmatch(key):
        return _integer(int(key), kind, path)
    return _convert(key, kind, f"{path}.{key}")


def _require(value: Any, fits: bool, kind: pa.DataType, path: str) -> Any:
    if not fits:
        raise _wrong(value, kind, path)
    return value


def _wrong(value: Any, kind: pa.DataType, path: str) -> ValueError:
    return ValueError(f"field {path!r} must be {kind}, got {_kind(value)} {_show(value)}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "the string", bool: "the boolean", type(None): "null"}
    return names.get(type(value), "the number")


def _show(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
