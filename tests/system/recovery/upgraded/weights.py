"""Lies beside the flow's file and is used by it on Spark's workers."""

from __future__ import annotations


def weigh(value: int, factor: int) -> int:
    return value * factor
