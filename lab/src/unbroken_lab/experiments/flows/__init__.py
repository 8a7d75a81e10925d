"""Flows that are measured: each file is run by nodes of its own, with its load in the environment."""

from pathlib import Path

FLOWS = Path(__file__).parent
"""The directory of their files."""
