"""Decimals from text, a column at a time or singly.

Arrow reads beyond its table of powers of ten if a text has many more digits after the point than the type, by its
exponent or written out: it takes wrong values, or the process ends. And a number that exceeds 128 bits when its digits
are shifted to the scale of the type wraps around: Arrow takes 11 as decimal(38,38) for 0.79. So its parser is given
only texts without exponent whose digits, together with those of the scale, are at most 38; digits of other texts are
shifted here, and their length is bounded.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bools = npt.NDArray[np.bool_]

MAX_CHARS = 100
"""A longer text is no decimal: a type has at most 38 digits, which leaves room for sign, point, zeros and exponent."""

MAX_PLAIN_CHARS = 38
"""Arrow's powers of ten end here, so a text without exponent that is not longer cannot shift its digits too far.
Numbers of so many digits are within 128 bits."""

_UNSAFE_JSON = (
    r"[^-+.0-9A-Za-z][+-]?[0-9]*\.?[0-9]*[eE][+-]?[0-9]+[^-0-9A-Za-z]"  # A whole value with an exponent.
    r"|\\u"  # An escape may stand for any character of such a value.
)
_PLAIN_BYTES = np.isin(np.arange(256), np.frombuffer(b"0123456789.-", np.uint8))

_DECIMAL = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,3}))?", re.ASCII)
_EXPONENT = rf"^[+-]?[0-9.]{{1,{MAX_CHARS}}}[eE][+-]?[0-9]{{1,3}}$"
_LOOSE_EXPONENT = r"[+-]?(?:[0-9.]+[eE][+-]?0?(?:[0-9]{1,2}|1[0-3][0-9])|[0.]+[eE][+-]?[0-9]{1,3})"
"""An exponent that moves `MAX_CHARS` digits beyond any precision makes none of them fit, unless all are zero."""


def unscaled(text: str, kind: pa.DataType) -> int | None:
    """The integer that stands for a decimal of ``kind``, or None if ``text`` is not one, or does not fit exactly."""
    match = _DECIMAL.fullmatch(text) if len(text) <= MAX_CHARS else None
    if match is None or not (match[2] or match[3]):
        return None
    fraction = match[3] or ""
    digits = int(match[2] + fraction)
    precision = int(kind.precision)
    shift = int(kind.scale) - len(fraction) + int(match[4] or 0)
    if not digits:
        return 0
    if shift < 0:
        digits, rest = divmod(digits, 10**-shift)
        if rest:
            return None
    elif shift > precision:
        return None
    else:
        digits *= 10**shift
    if digits >= 10**precision:
        return None
    return int(-digits if match[1] == "-" else digits)


def decimals_from_text(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Bools]:
    """Decimals of ``kind`` (decimal128), and which texts are not such; null in their places."""
    whole = decimals_at_once(texts, kind)
    if whole is not None:
        return whole, np.zeros(len(texts), np.bool_)
    short = pc.less_equal(pc.binary_length(texts), MAX_PLAIN_CHARS)
    fits = pc.match_substring_regex(texts, rf"^{_fitting(kind)}$")
    plain = pc.and_(fits, short)
    unusual = pc.or_(pc.and_not(fits, short), pc.match_substring_regex(texts, _EXPONENT))
    found = pc.if_else(plain, texts, pa.scalar(None, texts.type)).cast(kind)
    if pc.any(unusual).as_py():
        # An unusual form, or a mistake in it, is often the same in all rows.
        coded = pc.if_else(unusual, texts, pa.scalar(None, texts.type)).dictionary_encode()
        values = [unscaled(text, kind) for text in coded.dictionary.to_pylist()]
        exact = [None if value is None else Decimal(f"{value}e-{kind.scale}") for value in values]
        found = pc.coalesce(found, pa.array(exact, kind).take(coded.indices))
    wrong = pc.and_not(texts.is_valid(), found.is_valid())
    return found, np.asarray(wrong.to_numpy(zero_copy_only=False), np.bool_)


@lru_cache(maxsize=64)
def _fitting(kind: pa.DataType) -> str:
    """Matches what is written without exponent and fits exactly."""
    before, after = kind.precision - kind.scale, kind.scale
    whole = rf"(?:0*[0-9]{{1,{before}}}|0+)" if before else "0+"
    fraction = rf"(?:[0-9]{{1,{after}}}0*|0+)" if after else "0+"
    return rf"[+-]?(?:{whole}(?:\.(?:{fraction})?)?|\.{fraction})"


def decimals_like(kind: pa.DataType) -> str:
    """Matches every text that `unscaled` takes for a decimal of ``kind``, and some others with an exponent."""
    return rf"(?:{_fitting(kind)}|{_LOOSE_EXPONENT})"


def safe_in_json(piece: pa.Array, scale: int) -> bool:
    """Whether Arrow's parser may be given any value in this JSON text: each has no exponent and few digits.

    ``scale`` is the largest one of the decimals that it may look for.
    """
    digits = rf"|[0-9.]{{{MAX_PLAIN_CHARS - scale + 1},}}"
    return not pc.any(pc.match_substring_regex(piece, _UNSAFE_JSON + digits)).as_py()


def decimals_at_once(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """A column by Arrow's parser, if all of its texts are safe for it and right."""
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is None:
        return pa.nulls(len(texts), kind)
    if not pa.types.is_string(texts.type) or longest + int(kind.scale) > MAX_PLAIN_CHARS:
        return None
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    used = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    if not _PLAIN_BYTES[used].all():
        return None
    try:
        found = texts.cast(kind)
        found.validate(full=True)  # The cast lets pass what has too many digits.
    except ValueError:
        return None
    return found
