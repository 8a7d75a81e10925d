"""Loads that take all that the processors have."""

from __future__ import annotations

from typing import Any

LARGE: dict[str, Any] = {"WORK": 0, "SHARDS": 1, "BATCH": 400_000, "JVM": "throughput", "MEMORY": "2g"}
"""Pulses so large that what every micro-batch costs does not count, and a compiler that takes its time."""
