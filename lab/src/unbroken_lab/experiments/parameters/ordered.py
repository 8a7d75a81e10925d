"""The inputs of the flow of `unbroken bench ordering`, which results are told apart by."""

from __future__ import annotations

KEYS = 500
"""Keys of each input: those of ``direct`` are below this number, those of ``stamped`` begin with it."""

WAYS = ("direct", "stamped")
"""The inputs of the ordered segment, the shorter way first."""
