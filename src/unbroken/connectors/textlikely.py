"""Which texts of a column can be values of a type at all: a look at the whole column that finds nearly all wrong ones.

A text that is not likely is wrong. One that is likely is nearly always right, and the reader of its type decides.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from unbroken.connectors.texttime import YEAR_1_MS, YEAR_9999_MS

Bools = npt.NDArray[np.bool_]

TRUE = ("true", "True", "TRUE")
FALSE = ("false", "False", "FALSE")

_SURE_DIGITS = {8: 2, 16: 4, 32: 9, 64: 18}
"""By the width of a type in bits: the number of digits that it always holds."""

_LONGEST = 38  # Characters that Arrow may be given as a decimal without exponent.
_FLOAT = r"(?i)^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)$"
_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|[12][0-9]))"
)
_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_HOUR = r"(?:[01][0-9]|2[0-3])"
_CLOCK = rf"[T ]{_HOUR}(?::[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{{1,9}})?)?)?(?:Z|[+-]{_HOUR}(?::?[0-5][0-9])?)?"
_MILLIS = r"^-?[0-9]{1,15}$"
_PATTERNS = {
    "float": _FLOAT,
    "date": rf"^{_YEAR}-{_DAY}$",
    "time": rf"^(?:{_YEAR}|0000)-{_DAY}(?:{_CLOCK})?$",  # A zone may bring the end of the year 0 into the year 1.
    "binary": r"^[A-Za-z0-9+/=]*$",
}


def likely(texts: pa.Array, kind: pa.DataType, family: str) -> Bools:
    """Which texts, without the white space that their type allows, may be values of ``kind``; nulls are not."""
    if family == "integer":
        return _integers(texts, kind.bit_width)
    if family == "boolean":
        return as_bools(pc.is_in(texts, pa.array(TRUE + FALSE)))
    if family == "text":
        return as_bools(texts.is_valid())
    found = _matching(texts, _PATTERNS[family])
    return found | _millis(texts) if family == "time" else found


def as_bools(mask: pa.Array) -> Bools:
    """A mask as numpy has it; null is false."""
    return np.asarray(mask.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def only(texts: pa.Array, mask: Bools) -> pa.Array:
    """The texts where ``mask`` is true, null elsewhere."""
    return pc.if_else(pa.array(mask), texts, pa.scalar(None, texts.type))


def _matching(texts: pa.Array, pattern: str) -> Bools:
    return as_bools(pc.match_substring_regex(texts, pattern))


def _integers(texts: pa.Array, width: int) -> Bools:
    sure = _SURE_DIGITS[width]
    found = _matching(texts, rf"^(?:-?0*[0-9]{{1,{sure}}}|0[xX][0-9a-fA-F]{{1,{width // 4}}})$")
    edge = _matching(texts, rf"^-?0*[1-9][0-9]{{{sure}}}$")
    if not edge.any():
        return found
    short = edge & (np.asarray(pc.binary_length(texts).fill_null(0), np.int64) <= _LONGEST)
    numbers = only(texts, short).cast(pa.decimal128(_LONGEST, 0))
    least, most = (pa.scalar(bound, pa.decimal128(_LONGEST, 0)) for bound in (-(1 << width - 1), (1 << width - 1) - 1))
    fits = as_bools(pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most)))
    return found | fits | (edge & ~short)


def _millis(texts: pa.Array) -> Bools:
    found = _matching(texts, _MILLIS)
    if not found.any():
        return found
    numbers = only(texts, found).cast(pa.int64())
    return as_bools(pc.and_(pc.greater_equal(numbers, YEAR_1_MS), pc.less_equal(numbers, YEAR_9999_MS)))
