"""Times written as text or as epoch milliseconds, turned into Arrow timestamps a column at a time."""

from __future__ import annotations

import datetime as dt
import re

import pyarrow as pa
import pyarrow.compute as pc

YEAR_1_MS = -62_135_596_800_000
YEAR_9999_MS = 253_402_300_799_999
"""Spark and Python know the years 1 to 9999; a time outside of them could be stored but never shown."""

_MILLIS = r"^-?[0-9]{1,15}$"
_ZONED = r"[Tt ][0-9:.,]*(?:[Zz]|[+-][0-9:]+)$"
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?)?(?:Z|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)
_COMMON = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(?:|(?:\.(?:[0-9]{3}|[0-9]{6}))?(?:Z|[+-][0-9]{2}:[0-5][0-9]))"
)
_NO_ZONE = len("2024-01-02T03:04:05")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_EPOCH = dt.datetime(1970, 1, 1)
_UTC_EPOCH = _EPOCH.replace(tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_400_YEARS = 146_097 * 86_400_000_000
_UTC_US = pa.timestamp("us", "UTC")


def times_from_text(texts: pa.Array, kind: pa.DataType, *, digits_are_millis: bool) -> pa.Array:
    """ISO-8601 texts as timestamps of ``kind`` (microseconds, UTC or without zone).

    A text without zone is taken for UTC, a zone is converted to UTC, and digits beyond microseconds are cut
    off. With ``digits_are_millis`` a text of digits is epoch milliseconds, as CSV has no other way to say it.

    Raises
    ------
    ValueError
        If any text is not a time, or lies outside of the years 1 to 9999.
    """
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    plain = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]{1,3}", r"\1")
    millis = pc.match_substring_regex(plain, _MILLIS)
    if not digits_are_millis and pc.any(millis).as_py():
        raise ValueError("a number in quotes is not a time; write ISO-8601 or epoch milliseconds as a number")
    zoned = pc.match_substring_regex(plain, _ZONED)
    numbers = _only(plain, millis).cast(pa.int64())
    with_zone = _only(plain, zoned).cast(_UTC_US).cast(pa.int64())
    without = _only(plain, pc.invert(pc.or_(millis, zoned))).cast(pa.timestamp("us")).cast(pa.int64())
    _check_range(pc.divide(pc.coalesce(with_zone, without), 1000))
    counted = times_from_millis(numbers, kind).cast(pa.int64())
    return pc.coalesce(counted, with_zone, without).cast(kind)


def times_from_millis(millis: pa.Array, kind: pa.DataType) -> pa.Array:
    """Epoch milliseconds as timestamps of ``kind``; ValueError if any lies outside of the years 1 to 9999."""
    _check_range(millis)
    return pc.multiply(millis, 1000).cast(kind)


def micros_of_text(text: str) -> int:
    """Microseconds since the epoch of one ISO-8601 text, exactly as `times_from_text` reads it.

    Arrow takes long for a single value, and longest for one that is wrong.
    """
    if _COMMON.fullmatch(text) and text[:4] != "0000":
        since = dt.datetime.fromisoformat(text + "+00:00" if len(text) == _NO_ZONE else text) - _UTC_EPOCH
        return _in_years((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("not a time")
    year, month, day, hour, minute, second = (int(match[i] or 0) for i in range(1, 7))
    # The calendar repeats after 400 years; a zone may bring the end of the year 0 into the year 1.
    local = dt.datetime(year or 400, month, day, hour, minute, second) - _EPOCH
    micros = local // _MICROSECOND + int((match[7] or "")[:6].ljust(6, "0")) - (0 if year else _400_YEARS)
    if match[8]:
        away_min = 60 * int(match[9]) + int(match[10] or 0)
        if int(match[9]) > 23 or int(match[10] or 0) > 59:
            raise ValueError("no such zone")
        micros -= (away_min if match[8] == "+" else -away_min) * 60_000_000
    return _in_years(micros)


def _in_years(micros: int) -> int:
    if not YEAR_1_MS * 1000 <= micros < (YEAR_9999_MS + 1) * 1000:
        raise ValueError("outside of the years 1 to 9999")
    return micros


def date_of_text(text: str) -> dt.date:
    """One ISO-8601 date, exactly as `dates_from_text` reads it."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError("not a date")
    return dt.date(int(match[1]), int(match[2]), int(match[3]))


def dates_from_text(texts: pa.Array) -> pa.Array:
    """ISO-8601 dates; ValueError if any text is not a date of the years 1 to 9999."""
    dates = texts.cast(pa.date32())
    _check_range(pc.multiply(dates.cast(pa.int32()).cast(pa.int64()), 86_400_000))
    return dates


def _only(texts: pa.Array, mask: pa.Array) -> pa.Array:
    return pc.if_else(mask, texts, pa.scalar(None, texts.type))


def _check_range(millis: pa.Array) -> None:
    bounds = pc.min_max(millis).as_py()
    if bounds["min"] is not None and (bounds["min"] < YEAR_1_MS or bounds["max"] > YEAR_9999_MS):
        raise ValueError("a time lies outside of the years 1 to 9999; epoch times are in milliseconds")
