"""Rows that were parsed, and the ones that could not be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from unbroken.data.rows.budget import BAD_ROWS, ORIGIN_CHARS, RAW_CHARS, REASON_CHARS, clip, within_kept


@dataclass(frozen=True)
class BadRow:
    """A row that could not be taken, as it came, and why; each text is cut to its bound."""

    raw: str
    reason: str
    origin: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw", self.raw[:RAW_CHARS])
        object.__setattr__(self, "reason", clip(self.reason, REASON_CHARS))
        object.__setattr__(self, "origin", clip(self.origin, ORIGIN_CHARS))

    @property
    def chars(self) -> int:
        return len(self.raw) + len(self.reason) + len(self.origin)


@dataclass(frozen=True)
class Rows:
    """The rows of one pulse of one source, and the ones that could not be parsed.

    ``rejected`` is how many could not be. ``bad`` holds the first of them, as many as `budget` allows.
    """

    table: pa.Table
    bad: tuple[BadRow, ...] = field(default_factory=tuple)
    rejected: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rejected", max(self.rejected, len(self.bad)))
        object.__setattr__(self, "bad", self.bad[: within_kept(row.chars for row in self.bad)])

    @classmethod
    def joined(cls, schema: pa.Schema, parts: Iterable[Rows]) -> Rows:
        """The rows of all ``parts``, in their order."""
        tables: list[pa.Table] = [schema.empty_table()]
        bad: list[BadRow] = []
        rejected = 0
        for part in parts:
            tables.append(part.table)
            bad.extend(part.bad[: max(0, BAD_ROWS - len(bad))])
            rejected += part.rejected
        return cls(pa.concat_tables(tables), tuple(bad), rejected)

    @property
    def letters(self) -> tuple[BadRow, ...]:
        """``bad``, and at the end how many more there were."""
        return letters(self.bad, self.rejected)


def letters(bad: Sequence[BadRow], rejected: int) -> tuple[BadRow, ...]:
    """What is kept of ``rejected`` rows, the first of which are ``bad``."""
    more = rejected - len(bad)
    rest = (BadRow("", f"{more} more rows were rejected; they are counted, not kept", "(all others)"),)
    return (*bad, *(rest if more > 0 else ()))
