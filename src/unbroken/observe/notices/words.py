"""How a kind of notice is worded and explained: one row of the table that logs, pages and the handbook share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from unbroken.protocol.values.notices import Notice

N = TypeVar("N", bound=Notice)


@dataclass(frozen=True)
class Words(Generic[N]):
    """The sentence of a kind, what it means, what an operator does (empty: nothing), and examples for the handbook."""

    of: type[N]
    text: Callable[[N], str]
    meaning: str
    remedy: str
    examples: tuple[N, ...]


@dataclass(frozen=True)
class Topic:
    """Kinds that are explained together, under one heading of the handbook."""

    title: str
    rows: tuple[Words[Any], ...]
    introduction: str = ""


def names(items: Iterable[object]) -> str:
    return ", ".join(str(item) for item in items)


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
