"""Write what is made from the code into the pages of ``docs/``: ``python -m unbroken_lab.docsgen [docs]``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from unbroken.observe.metrics.definitions import reference as metrics
from unbroken_lab.docsgen.commands import commands
from unbroken_lab.docsgen.connectors import sinks, sources
from unbroken_lab.docsgen.marks import replaced
from unbroken_lab.docsgen.notices import notices
from unbroken_lab.docsgen.settings import settings
from unbroken_lab.docsgen.status import status

PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "settings.md": {"settings": settings},
    "connectors.md": {"sources": sources, "sinks": sinks},
    "operations.md": {"metrics": metrics},
    "cli.md": {"commands": commands},
    "status.md": {"status": status},
    "handbook.md": {"notices": notices},
}
"""For each page, what stands between which marks."""


def made(page: str, text: str) -> str:
    """The page with everything in it that the code says."""
    for mark, content in PARTS[page].items():
        text = replaced(text, mark, content())
    return text


def main(directory: Path) -> None:
    for page in PARTS:
        path = directory / page
        before = path.read_text()
        after = made(page, before)
        if after != before:
            path.write_text(after)
            print(f"{path} is written")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
