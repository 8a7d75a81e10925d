"""Operator networks: dataflows that are described in a YAML file, without Python.

A network becomes an ordinary `Dataflow`, each operator one of its segments, so that everything which takes a
flow takes a network as well.
"""

from __future__ import annotations

from pathlib import Path

SUFFIXES = (".yaml", ".yml")


def is_network(path: Path) -> bool:
    """Whether a file is an operator network rather than Python, by its name."""
    return path.suffix.lower() in SUFFIXES
