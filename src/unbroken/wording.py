"""Words that different sentences share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def choices(known: Iterable[str], wrong: str | None = None) -> str:
    """A remedy that names what there is, and first what was probably meant."""
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, 1) if wrong else []
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}use one of: {', '.join(names) or 'none'}"


def counted(number: int, what: str) -> str:
    """So many of something, such as ``2 shards``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
