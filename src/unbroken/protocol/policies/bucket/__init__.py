"""Bucket ordering: units are buckets of event time, and each source closes its own."""

from __future__ import annotations

from unbroken.protocol.kernel import Kernel
from unbroken.protocol.policies.bucket.sources import Buckets


def build(kernel: Kernel) -> Buckets:
    return Buckets(kernel.around, kernel.policies)
