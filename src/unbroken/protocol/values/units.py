"""Units: the numbered, immutable pieces of a stream, and the digests that compare them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from unbroken.protocol.values.ids import StreamId

FLOAT_TOLERANCE = 1e-9
"""Relative difference allowed between sums of a floating-point column: a shuffle may deliver rows in any
order, and that moves a sum of a million doubles by about 1e-12 of its size; a wrong row moves it by far more."""


@dataclass(frozen=True)
class Digest:
    """What is compared between replicas of a unit; it does not depend on the order of rows.

    ``exact`` is the wrap-around sum of 64-bit row hashes over exactly comparable columns; ``floats`` holds
    a weighted sum of each floating-point column, compared by tolerance.
    """

    rows: int
    exact: int
    floats: tuple[float, ...] = ()

    def matches(self, other: Digest) -> bool:
        return (
            self.rows == other.rows
            and self.exact == other.exact
            and len(self.floats) == len(other.floats)
            and all(
                math.isclose(a, b, rel_tol=FLOAT_TOLERANCE, abs_tol=FLOAT_TOLERANCE)
                or (math.isnan(a) and math.isnan(b))
                for a, b in zip(self.floats, other.floats, strict=True)
            )
        )


@dataclass(frozen=True)
class UnitHeader:
    """Everything the protocol knows about a unit; the rows themselves stay in files.

    ``pulse`` is the pulse that the unit completes, ``cut_ms`` the time at which the sources cut that pulse
    (the same on every replica) and ``final`` says that no unit will ever follow it. ``generation`` is the generation
    of the user's code whose results count for that pulse, which all sources agree on with the cut. In a flow that
    delivers at most once, so they do on the version of the ``layout`` that says who delivers it.

    A unit that is not ``stable`` was made without part of its input. It covers the pulses after ``since`` up to
    ``pulse``, and stable units of these pulses take its place; its number only counts the units of its own maker.

    ``fold`` is the last of the units of a stream that may be processed together with it. Their cut times are the same,
    and what had come to this unit before that time had come to all of them. Where units always come alone it is 0.
    """

    stream: StreamId
    number: int
    pulse: int
    cut_ms: int
    digest: Digest
    size: int = 0
    stable: bool = True
    final: bool = False
    generation: int = 1
    layout: int = 0
    since: int = 0
    fold: int = 0
