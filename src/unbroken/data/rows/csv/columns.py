"""Columns of text, as CSV has them, turned into typed columns; values that are wrong are found, not only refused.

A whole column is converted at once where it is right. Where it is not, each value is read singly, by rules that are
exactly those of Arrow's CSV reader, so that a wrong value costs little more than a right one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from unbroken.data.rows.text.plausibility import FALSE, TRUE, likely, only
from unbroken.data.rows.values.decimals import decimals_at_once, decimals_from_text, unscaled
from unbroken.data.rows.values.times import (
    YEAR_1_MS,
    YEAR_9999_MS,
    date_of_text,
    dates_from_text,
    micros_of_text,
    times_from_text,
)

Bools = npt.NDArray[np.bool_]

_SPACE = " \t"  # What Arrow's reader takes off, of all but text, times and binary values.
_SPACED = ("integer", "float", "date")
_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)
_HEX = re.compile(r"0[xX]([0-9a-fA-F]+)")
_FLOAT = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
_MILLIS = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_PROBE = 100  # Values; often they show that to convert the whole column is a vain attempt.
_MOST_DIGITS = 400  # Longer numbers are not read; int() takes quadratic time.


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def at_once(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of ``kind``; ValueError if any is wrong or needs a closer look, which `sift` takes."""
    if not pa.types.is_decimal(kind):
        whole = _READERS[_family(kind)][0]
        whole(texts.slice(0, _PROBE), kind)
        return whole(texts, kind)
    found = decimals_at_once(_trimmed(texts), kind)
    if found is None:
        raise ValueError("not a column of plain decimals that fit")
    return found


def sift(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Bools]:
    """Values of ``kind``, null where the text is null or wrong, and which ones are wrong."""
    if pa.types.is_decimal(kind):
        return decimals_from_text(_trimmed(texts), kind)
    family = _family(kind)
    whole, one = _READERS[family]
    with suppress(ValueError):
        whole(texts.slice(0, _PROBE), kind)
        return whole(texts, kind), np.zeros(len(texts), np.bool_)
    there = np.asarray(texts.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    fit = likely(_trimmed(texts) if family in _SPACED else texts, kind, family)
    texts = only(texts, fit)
    try:
        return whole(texts, kind), there & ~fit
    except ValueError:
        # A mistake is often the same in all lines.
        coded = texts.dictionary_encode()
        values, unfit = _one_by_one(coded.dictionary.to_pylist(), kind, one)
        places = np.asarray(coded.indices.fill_null(len(values)), np.int64)
        return values.take(coded.indices), (there & ~fit) | np.append(unfit, False)[places]


def _one_by_one(texts: list[str], kind: pa.DataType, one: Callable[[str, pa.DataType], Any]) -> tuple[pa.Array, Bools]:
    values, wrong = [], np.zeros(len(texts), np.bool_)
    for i, text in enumerate(texts):
        try:
            values.append(one(text, kind))
        except (ValueError, OverflowError):
            values.append(None)
            wrong[i] = True
    return pa.array(values, kind), wrong


def is_one(text: str, kind: pa.DataType) -> bool:
    """Whether one text is a value of ``kind``, as `sift` decides."""
    if pa.types.is_decimal(kind):
        return unscaled(text.strip(_SPACE), kind) is not None
    try:
        _READERS[_family(kind)][1](text, kind)
    except (ValueError, OverflowError):
        return False
    return True


def _family(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_timestamp(kind):
        return "time"
    if pa.types.is_date(kind):
        return "date"
    return "binary" if pa.types.is_binary(kind) else "text"


def _trimmed(texts: pa.Array) -> pa.Array:
    return pc.ascii_trim(texts, _SPACE)


def _integer(text: str, kind: pa.DataType) -> int:
    text = text.strip(_SPACE)
    found = _HEX.fullmatch(text)
    if found is not None and len(found[1]) <= kind.bit_width // 4:
        number = int(found[1], 16)
        return number - (1 << kind.bit_width) if number >> kind.bit_width - 1 else number
    if len(text) > _MOST_DIGITS or not _INTEGER.fullmatch(text):
        raise ValueError("not an integer")
    number = int(text)
    if not -(1 << kind.bit_width - 1) <= number < 1 << kind.bit_width - 1:
        raise ValueError("too large")
    return number


def _float(text: str, kind: pa.DataType) -> float:
    text = text.strip(_SPACE)
    if not _FLOAT.fullmatch(text):
        raise ValueError("not a number")
    return float(text)


def _boolean(text: str, kind: pa.DataType) -> bool:
    if text in TRUE or text in FALSE:
        return text in TRUE
    raise ValueError("neither true nor false")


def _time(text: str, kind: pa.DataType) -> int:
    if not _MILLIS.fullmatch(text):
        return micros_of_text(text)
    millis = int(text)
    if not YEAR_1_MS <= millis <= YEAR_9999_MS:
        raise ValueError("outside of the years 1 to 9999")
    return 1000 * millis


def _binary(text: str, kind: pa.DataType) -> bytes:
    return base64.b64decode(text, validate=True)


def _binaries(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.array([None if text is None else _binary(text, kind) for text in texts.to_pylist()], kind)


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    return _trimmed(texts).cast(kind)


def _booleans(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    yes, no = (pc.is_in(texts, pa.array(words)) for words in (TRUE, FALSE))
    if pc.all(pc.or_(pc.or_(yes, no), texts.is_null())).as_py() is False:
        raise ValueError("neither true nor false")
    return pc.if_else(texts.is_null(), None, yes)


_READERS: dict[str, tuple[Callable[[pa.Array, pa.DataType], pa.Array], Callable[[str, pa.DataType], Any]]] = {
    "integer": (_cast, _integer),
    "float": (_cast, _float),
    "boolean": (_booleans, _boolean),
    "time": (lambda texts, kind: times_from_text(texts, kind, digits_are_millis=True), _time),
    "date": (lambda texts, kind: dates_from_text(_trimmed(texts)), lambda text, kind: date_of_text(text.strip(_SPACE))),
    "binary": (_binaries, _binary),
    "text": (lambda texts, kind: texts, lambda text, kind: text),
}
"""For each family of types: how a whole column is converted (ValueError if a value is wrong), and how one value is."""
