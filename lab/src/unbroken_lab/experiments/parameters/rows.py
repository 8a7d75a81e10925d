"""Made-up rows for the flows that benchmarks run: keys in turn, each row with a payload that does not compress."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

PAYLOAD = 200
"""Bytes of payload per row; they do not compress, so that state on disk and units on the wire are as large as they
say."""

SCHEMA = "k long, payload binary"

NOISE = np.random.default_rng(7).integers(0, 256, size=(8192, PAYLOAD), dtype=np.uint8)


@dataclass(frozen=True)
class KeyedRows:
    """A generator's function: row ``n`` has key ``n % keys``, so that all keys are known after ``keys`` rows."""

    keys: int

    def __call__(self, start: int, stop: int, seed: int) -> pa.Table:
        index = np.arange(start, stop, dtype=np.int64)
        noise = pa.py_buffer(np.ascontiguousarray(NOISE[(index * 31) % len(NOISE)]))
        payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(PAYLOAD), len(index), [None, noise])
        return pa.table({"k": index % self.keys, "payload": payload.cast(pa.binary())})
