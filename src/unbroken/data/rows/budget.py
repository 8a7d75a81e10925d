"""What the decoding of one batch, file or record may cost.

Every limit here decides which rows a flow has, so all ingress nodes must come to the same decision: limits count bytes,
rows and characters, never seconds. Time is bounded by them, because each decoder does a bounded amount of work for each
byte of its input, wrong input included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

BAD_ROWS = 200
"""Rejected rows of a source that one pulse keeps in full; the others are counted."""

BAD_CHARS = 1_000_000
"""Characters of rejected rows that one pulse keeps, of all of them together."""

RAW_CHARS = 10_000
"""A bad row is kept to be looked at by a person; what is longer is no longer looked at."""

REASON_CHARS = 500
ORIGIN_CHARS = 300

MAX_DEPTH = 200
"""JSON that is nested deeper is refused. Readers recurse, and how deep they can depends on their callers."""

TEXT_BYTES = 16
"""What a value of variable length takes beside its content: an offset, and its share of the bitmap, rounded up."""

DECODED_FACTOR = 16
"""A file or the value of a record may always become this many times larger when decoded; honest ones seldom do."""


class OverBudget(ValueError):
    """The decoded form of an input is larger than its budget."""


@dataclass(frozen=True)
class DecodeBudget:
    """Limits of one decoded batch or file: bytes in memory, and rows.

    ``rows`` bounds inputs whose rows take no bytes. The defaults bound the memory of a node; a connector's setting
    ``max_decoded_bytes`` changes the first.
    """

    bytes: int = 256_000_000
    rows: int = 50_000_000

    def require(self, decoded_bytes: int, rows: int, what: str) -> None:
        """Raise `OverBudget` if ``what`` does not fit."""
        if rows > self.rows:
            raise OverBudget(f"{what} has {rows} rows, more than {self.rows}. Send or write smaller pieces.")
        if decoded_bytes > self.bytes:
            raise OverBudget(
                f"{what} takes {decoded_bytes} bytes when decoded, more than max_decoded_bytes ({self.bytes}). "
                "Send or write smaller pieces."
            )

    def require_lines(self, lines: int, text_bytes: int, schema: pa.Schema, what: str) -> None:
        """As `require`, for text with a row on each line: a short line, too, takes all columns of the schema."""
        self.require(text_bytes + lines * row_bytes(schema), lines, what)


def row_bytes(schema: pa.Schema) -> int:
    """What a row of nulls takes when decoded, about."""
    return sum(width(field.type) for field in schema)


def width(kind: pa.DataType) -> int:
    """Bytes of one value of a type, without the content of text and lists."""
    if pa.types.is_struct(kind):
        return 1 + sum(width(field.type) for field in kind)
    if pa.types.is_fixed_size_list(kind):
        return 1 + int(kind.list_size) * width(kind.value_type)
    try:
        return 1 + int(kind.bit_width) // 8
    except ValueError:
        return TEXT_BYTES


def clip(text: str, limit: int) -> str:
    """``text``, or its beginning if it is longer than ``limit``."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def first_line(error: BaseException) -> str:
    """What an error of another library says, short enough for a reason."""
    return clip(str(error).partition("\n")[0] or type(error).__name__, REASON_CHARS)


def by_environment(error: Exception) -> bool:
    """Whether an error while decoding is due to this node and not to the input.

    Then another node may decode the same input, so the input is not rejected; the attempt is repeated. Arrow reports
    damaged files as OSError, too, but without a number.
    """
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None)


def within_kept(sizes: Iterable[int]) -> int:
    """How many bad rows of these sizes, from the first on, are kept."""
    kept = total = 0
    for size in sizes:
        total += size
        if kept == BAD_ROWS or (kept and total > BAD_CHARS):
            break
        kept += 1
    return kept
