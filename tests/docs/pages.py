"""The code blocks of the documentation, and what its pages say to the tests about them.

A page speaks to the tests in comments that readers do not see:

- ``<!-- not run: REASON -->`` right before a block: it cannot be run here, and why.
- ``<!-- given: LANGUAGE`` and lines of code up to ``-->``: what the blocks of the page take for granted; it is run in
  its place among them. With the name of a file instead of a language, the file is there.

A block of Python that begins with a comment such as ``# shop.py`` is the content of that file, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

from kit.places import ROOT

RUN = {"python", "sh", "console", "yaml", "json", "sql", "ini", "toml", "dockerfile"}
"""Languages of blocks that are run, or read by what they are written for."""

SHOWN = {"text"}
"""What a program printed, a formula, or a drawing of characters."""

_GIVEN = re.compile(r"<!-- given: ([\w./-]+)\n(.*?)-->\s*\Z", re.DOTALL)
_FILE = re.compile(r"# ([\w./-]+\.py)\n")
_NOT_RUN = re.compile(r"<!-- not run: (.*?) -->\s*\Z", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code. ``line`` is that of its first line of code, ``given`` says that readers do not see it."""

    page: str
    line: int
    language: str
    text: str
    given: bool = False
    not_run: str | None = None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """All pages, by their paths in the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def parse(page: str, text: str) -> Iterator[Block]:
    """The blocks of a page in their order."""
    reason: str | None = None
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "html_block":
            assert token.map is not None
            line, content = token.map[0] + 1, token.content
            if (given := _GIVEN.match(content)) is not None:
                yield Block(page, line + 1, given[1], given[2], given=True)
            elif content.startswith("<!-- given"):
                raise ValueError(f"{page}:{line}: write <!-- given: LANGUAGE, then lines of code, then -->")
            found = _NOT_RUN.match(content)
            reason = None if found is None else " ".join(found[1].split())
        elif token.type == "fence":
            assert token.map is not None
            yield Block(page, token.map[0] + 2, token.info.strip(), token.content, not_run=reason)
            reason = None
        elif token.type in ("paragraph_open", "heading_open", "table_open"):
            reason = None


@cache
def blocks(page: str) -> tuple[Block, ...]:
    return tuple(parse(page, text_of(page)))


def write_files(page: str, directory: Path) -> None:
    """Put the files that the page speaks of where its blocks are run."""
    for block in blocks(page):
        named = _FILE.match(block.text) if block.language == "python" else None
        name = named[1] if named is not None else block.language if block.given and "." in block.language else None
        if name is not None:
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)


def all_blocks(*languages: str) -> list[Block]:
    """The blocks of all pages that are run, in one of these languages; with none named, all blocks there are."""
    every = [block for page in pages() for block in blocks(page)]
    return [b for b in every if b.language in languages and b.not_run is None] if languages else every


def pages_with(*languages: str) -> list[str]:
    return sorted({block.page for block in all_blocks(*languages)})
