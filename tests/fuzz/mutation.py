"""Inputs made from seeds: the same name always gives the same bytes, so a finding is replayed by its name."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

LARGEST = 64 * 1024
"""Bytes of an input. What costs too much shows at this size; larger ones only make a campaign slower."""

MOST_CHANGES = 8

TOKENS = (
    b"1e1000000000000000000000",
    b"1e-9999999",
    b"0e-999999999",
    b"1e-41",
    b"9" * 5_000,
    b"-0",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"null",
    b"true",
    b'""',
    b"{}",
    b"[]",
    b"{\n",
    b'"',
    b"\\",
    b"\\ud800",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r\n",
    b",,,,",
    b"1.5EUR",
    b"10183-12-31",
    b"-0001-01-01T00:00:00Z",
    b"9223372036854775808",
    b"2147483647",
    b"-1",
    b"../../etc/passwd",
    b"[" * 985 + b"]" * 985,
    b'{"a":' * 200 + b"1" + b"}" * 200,
    b"[" * 5_000,
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
)

_NUMBER = re.compile(rb"-?\d+(\.\d+)?")


def made(seeds: Sequence[bytes], name: str) -> bytes:
    """The input of this name: one of ``seeds``, or several, with some changes."""
    rng = random.Random(name)
    data = rng.choice(seeds)
    for _ in range(rng.randint(1, MOST_CHANGES)):
        data = rng.choice(_CHANGES)(rng, data, seeds)[:LARGEST]
    return data


def _flip(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _byte(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))]) + data[at + 1 :]


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    begin = rng.randint(0, len(data))
    return begin, min(len(data), begin + rng.choice((1, 2, 4, 8, 64, 1024)))


def _delete(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    begin, end = _span(rng, data)
    return data[:begin] + data[end:]


def _repeat(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    begin, end = _span(rng, data)
    times = rng.choice((1, 2, 10, 100, 2_000))
    return data[:begin] + data[begin:end] * min(times, LARGEST // max(1, end - begin)) + data[end:]


def _insert(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(TOKENS) + data[at:]


def _number(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """A number in the text becomes something else; in binary data this changes lengths and offsets at random."""
    found = [match.span() for match in _NUMBER.finditer(data[:4_096])]
    if not found:
        return _byte(rng, data, seeds)
    begin, end = rng.choice(found)
    return data[:begin] + rng.choice(TOKENS) + data[end:]


def _word(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """Four or eight aligned bytes, as lengths in binary formats are."""
    size = rng.choice((4, 8))
    if len(data) < size:
        return data
    at = rng.randrange(0, len(data) - size + 1, 4)
    value = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), rng.getrandbits(31), len(data), len(data) + 1))
    return data[:at] + value.to_bytes(size, rng.choice(("little", "big")), signed=True) + data[at + size :]


def _truncate(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _splice(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


_CHANGES: tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], ...] = (
    _flip,
    _flip,
    _byte,
    _delete,
    _repeat,
    _insert,
    _insert,
    _number,
    _word,
    _truncate,
    _splice,
)
