"""The packets that the demonstration monitors, made from nothing but their row numbers.

Packets come in groups of four, one of each step of a session's life (start, data, data, end), but of four
different sessions: a group with number g starts session g and carries the later packets of sessions that
started one, two and three blocks of groups earlier. Within a block the later packets come in another order
than the starts, so that sessions last between two and four blocks of time. Both the order and its inverse
are arithmetic, so every field of a row follows from its number alone and no row depends on another.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from unbroken.data.randomness import integers

SCHEMA = "app string, src string, dst string, started timestamp, ts timestamp, kind string"

KINDS = ("start", "data", "data", "end")
APPS = ("http", "ftp", "dns", "smtp", "gnutella")
SOURCES = 2_000
"""Times five applications: 10,000 different (app, src)."""

DESTINATIONS = 50
"""Times 2,000 sources: 100,000 different (src, dst)."""

BLOCK_S = 2
"""Sessions last between two and four blocks: 4 to 8 s, far below the watermark of a minute."""

SATURATED_RATE = 4_000
"""For whoever takes as many as can be had: packets for each second of the times in them, so that few sessions are open
however many packets come."""

EPOCH_US = 1_767_225_600_000_000
"""Time of row 0: the start of 2026. Times follow row numbers and not the clock, so a run can be repeated."""

Integers = npt.NDArray[np.int64]

_APP_NAMES = pa.array(APPS, pa.string())
_KIND_NAMES = pa.array(KINDS, pa.string())
_SOURCE_NAMES = pa.array([f"10.0.{i // 250}.{i % 250 + 1}" for i in range(SOURCES)], pa.string())
_DESTINATION_NAMES = pa.array([f"192.0.2.{i + 1}" for i in range(DESTINATIONS)], pa.string())


@dataclass(frozen=True)
class Packets:
    """The generator's function for a stream of ``rate`` packets per second.

    The first packets belong to sessions that were under way before row 0, so results begin at once.
    """

    rate: int

    def __call__(self, start: int, stop: int, seed: int) -> pa.Table:
        """Rows ``start`` to ``stop - 1``."""
        rows = np.arange(start, stop, dtype=np.int64)
        step = rows % len(KINDS)
        session = self.session(rows, seed)
        pair = integers(seed, session, "pair", 0, SOURCES * DESTINATIONS)
        return pa.table(
            {
                "app": _APP_NAMES.take(pa.array(integers(seed, session, "app", 0, len(APPS)))),
                "src": _SOURCE_NAMES.take(pa.array(pair % SOURCES)),
                "dst": _DESTINATION_NAMES.take(pa.array(pair // SOURCES)),
                "started": self._times(session * len(KINDS)),
                "ts": self._times(rows),
                "kind": _KIND_NAMES.take(pa.array(step)),
            }
        )

    def session(self, rows: Integers, seed: int) -> Integers:
        """The session that each row belongs to; negative for those that started before row 0."""
        group, step = rows // len(KINDS), rows % len(KINDS)
        size = self.block
        block, place = group // size, group % size
        origin = block - step
        turn = integers(seed, origin * len(KINDS) + step, "turn", 0, size)
        mixed = (place * self.stride + turn) % size
        return np.where(step == 0, group, origin * size + mixed)

    @property
    def block(self) -> int:
        """Groups, hence sessions, in a block."""
        return max(1, BLOCK_S * self.rate // len(KINDS))

    @property
    def stride(self) -> int:
        """A factor without a common divisor with the block, which makes the reordering a permutation."""
        stride = max(1, int(self.block * 0.618))
        while gcd(stride, self.block) != 1:
            stride += 1
        return stride

    def _times(self, rows: Integers) -> pa.Array:
        micros = EPOCH_US + rows * 1_000_000 // self.rate
        return pa.array(micros).cast(pa.timestamp("us", "UTC"))
