"""Where the tests find what is not theirs: the repository, their own helpers, and flows that several of them run."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
FLOWS = TESTS / "kit" / "flows"
