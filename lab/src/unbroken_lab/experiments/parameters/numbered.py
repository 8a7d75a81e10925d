"""Rows that have a number and a payload which does not compress."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from unbroken_lab.experiments.parameters.rows import NOISE

PAYLOAD = 100
"""Bytes per row beside its number, which do not compress."""

SCHEMA = "n long, payload binary"


@dataclass(frozen=True)
class NumberedRows:
    """A generator's function: every row has its number and a payload."""

    def __call__(self, start: int, stop: int, seed: int) -> pa.Table:
        index = np.arange(start, stop, dtype=np.int64)
        noise = pa.py_buffer(np.ascontiguousarray(NOISE[(index * 31) % len(NOISE), :PAYLOAD]))
        payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(PAYLOAD), len(index), [None, noise])
        return pa.table({"n": index, "payload": payload.cast(pa.binary())})
