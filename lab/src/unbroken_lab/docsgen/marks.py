"""Parts of pages that are made from the code, between two comments: the rest of a page is written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from unbroken.errors import UnbrokenError


def replaced(text: str, mark: str, content: str) -> str:
    """The page with ``content`` between the comments that say ``mark`` and ``end of mark``."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise UnbrokenError(f"a page that is to have {mark} needs one line {begin.strip()} and one {end.strip()} below")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{content}{end}{after}"


def cell(text: str) -> str:
    """Text that can stand in a table; two things in brackets side by side would be a link."""
    return " ".join(text.split()).replace("``", "`").replace("] [", "; ").replace("|", "\\|")


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines) + "\n"
