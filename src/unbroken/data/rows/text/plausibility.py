"""Which texts of a column can be values of a type at all: a look at the whole column that finds nearly all wrong ones.

A text that is not likely is wrong. One that is likely is nearly always right, and the reader of its type decides.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from unbroken.data.rows.values.times import YEAR_1_MS, YEAR_9999_MS

Bools = npt.NDArray[np.bool_]

TRUE = ("true", "True", "TRUE")
FALSE = ("false", "False", "FALSE")


def up_to(most: int, compared: int | None = None) -> str:
    """Matches the integers from 0 to ``most``, and with ``compared`` larger ones that begin with so many same digits.

    The pattern is the longer the more digits are compared.
    """
    digits = str(most)
    places = len(digits)
    compared = min(compared or places, places)
    largest = rf"{digits[compared - 1]}[0-9]{{{places - compared}}}"
    for i in reversed(range(compared)):
        digit, least = int(digits[i]), 0 if i else 1
        smaller = rf"[{least}-{digit - 1}][0-9]{{{places - i - 1}}}|" if digit > least else ""
        largest = rf"(?:{smaller}{largest if i == compared - 1 else digits[i] + largest})"
    return rf"(?:0|[1-9][0-9]{{0,{places - 2}}}|{largest})" if places > 1 else rf"[0-{digits}]"


def integers(width: int, zeros: str = "") -> str:
    """Matches the integers of a type of so many bits, and some that are less than its least.

    ``zeros`` matches what may precede their digits.
    """
    beyond = 1 << width - 1
    return rf"(?:{zeros}{up_to(beyond - 1)}|-{zeros}{up_to(beyond, 3)})"


def millis(zeros: str = "") -> str:
    """Matches epoch milliseconds of the years 1 to 9999, and some of the years near them."""
    return rf"(?:{zeros}{up_to(YEAR_9999_MS, 3)}|-{zeros}{up_to(-YEAR_1_MS, 3)})"


_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_HOUR = r"(?:[01][0-9]|2[0-3])"
_CLOCK = rf"[T ]{_HOUR}(?::[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{{1,9}})?)?)?(?:Z|[+-]{_HOUR}(?::?[0-5][0-9])?)?"

DATE = rf"(?:{_YEAR}-{_DAY}|{_LEAP}-02-29)"
TIME = rf"(?:{DATE}|0000-12-31)(?:{_CLOCK})?"  # A zone may bring the end of the year 0 into the year 1.
FLOAT = r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))"
BASE64 = r"[A-Za-z0-9+/=]*"
HEX = r"0[xX][0-9a-fA-F]"
"""Patterns of values, without the white space that may surround them."""

_WHOLE = {"float": FLOAT, "date": DATE, "time": rf"(?:{TIME}|{millis('0*')})", "binary": BASE64}


def likely(texts: pa.Array, kind: pa.DataType, family: str) -> Bools:
    """Which texts, without the white space that their type allows, may be values of ``kind``; nulls are not."""
    if family == "integer":
        return _matching(texts, rf"{integers(kind.bit_width, '0*')}|{HEX}{{1,{kind.bit_width // 4}}}")
    if family == "boolean":
        return as_bools(pc.is_in(texts, pa.array(TRUE + FALSE)))
    if family == "text":
        return as_bools(texts.is_valid())
    return _matching(texts, _WHOLE[family])


def as_bools(mask: pa.Array) -> Bools:
    """A mask as numpy has it; null is false."""
    return np.asarray(mask.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def only(texts: pa.Array, mask: Bools) -> pa.Array:
    """The texts where ``mask`` is true, null elsewhere."""
    return pc.if_else(pa.array(mask), texts, pa.scalar(None, texts.type))


def _matching(texts: pa.Array, pattern: str) -> Bools:
    return as_bools(pc.match_substring_regex(texts, rf"^(?:{pattern})$"))
